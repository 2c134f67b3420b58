"""Answers 404 and 405 of the gateway name what it serves."""

import pytest

from onward.serving.http import paths

SERVED = {
    "/v1/chat/completions": frozenset({"POST"}),
    "/v1/models": frozenset({"GET"}),
    "/v1/models/{name}": frozenset({"GET"}),
    "/ready": frozenset({"GET"}),
}
BASE = "http://127.0.0.1:3000/"


@pytest.mark.parametrize(
    "path", ["/chat/completions", "/v1/v1/chat/completions", "/models", "/api/chat/completions"]
)
def test_a_wrong_base_url_is_corrected(path):
    told = paths.not_found(path, BASE, SERVED)
    assert told == f"There is no {path} here: the base URL for an OpenAI client is http://127.0.0.1:3000/v1."


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/embeddings", "embeddings"),
        ("/v1/responses/resp_1", "stored responses"),
        ("/v1/audio/speech", "audio"),
    ],
)
def test_another_api_is_named_and_the_base_url_is_not_blamed(path, name):
    told = paths.not_found(path, BASE, SERVED)
    assert f"does not serve {name}. Use POST /v1/chat/completions." in told and "base URL" not in told


def test_any_other_path_gets_the_list_of_paths():
    told = paths.not_found("/v1/" + "x" * 200, BASE, SERVED)
    assert "POST /v1/chat/completions, GET /v1/models, GET /v1/models/{name}." in told
    assert "/ready" not in told and "x" * 80 not in told


def test_a_wrong_method_gets_the_right_one():
    assert paths.wrong_method("GET", "/v1/chat/completions", SERVED).endswith("use POST.")
    assert "GET /v1/models/{name}" in paths.wrong_method("PUT", "/v1/models/x", SERVED)
