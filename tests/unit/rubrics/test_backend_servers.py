"""Backends against servers that read a request as vLLM and SGLang do.

Both ignore fields that they do not know, without a word. So a schema in the wrong field does not fail: the
answer is prose. vLLM (0.12 and newer) reads ``response_format`` and ``structured_outputs``, no longer
``guided_json``; SGLang reads ``response_format``, ``regex`` and ``ebnf``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

import pytest
from chat_server import ChatServer, Reply, Script, completion, text
from pydantic import BaseModel, Field

from onward.errors import ConfigError, EngineError
from onward.rubrics.backends import (
    ChatBackend,
    ModelAnswerError,
    RefusedAnswerError,
    TruncatedAnswerError,
    open_backend,
)
from onward.rubrics.tasks.persona import Persona

PROSE = "I would say red."
Server = Callable[[dict[str, Any]], Mapping[str, Any] | None]
"""From a request to the schema that the server enforces; None: any text."""


class Room(BaseModel):
    colour: Literal["red", "green", "blue"]
    coats: int = Field(ge=1, le=3)


def schema_of_vllm(body: dict[str, Any]) -> Mapping[str, Any] | None:
    form = body.get("response_format") or {}
    if form.get("type") == "json_schema":
        return form["json_schema"]["schema"]
    return (body.get("structured_outputs") or {}).get("json")


def schema_of_sglang(body: dict[str, Any]) -> Mapping[str, Any] | None:
    form = body.get("response_format") or {}
    if form.get("type") == "json_schema" and form["json_schema"].get("strict") is not False:
        return form["json_schema"]["schema"]
    return None


SERVERS: dict[str, Server] = {"vllm": schema_of_vllm, "sglang": schema_of_sglang}


def enforcing(schema_of: Server) -> Script:
    """Answers in the schema, chosen by seed and temperature; without one, in prose."""

    def script(body: dict[str, Any]) -> dict[str, Any]:
        schema = schema_of(body)
        if schema is None:
            return text(PROSE)
        colours = schema["properties"]["colour"]["enum"]
        coats = schema["properties"]["coats"]
        at = (body["seed"] if body["temperature"] else 0) % len(colours)
        said = {"colour": colours[at], "coats": coats["maximum"] if body["temperature"] > 1 else 1}
        return text(json.dumps({name: said[name] for name in schema["required"]}))

    return script


def backend(kind: str, server: ChatServer, **more: Any) -> ChatBackend:
    return ChatBackend(kind, "m1", server.url, least_pause=0.001, most_pause=0.002, **more)


def ended(message: dict[str, Any], reason: str) -> Reply:
    document = completion(message)
    document["choices"][0]["finish_reason"] = reason
    return Reply((document,))


each = pytest.mark.parametrize("kind", list(SERVERS))


@each
async def test_schema_seed_and_temperature_are_in_the_fields_that_the_server_reads(kind: str) -> None:
    with ChatServer(enforcing(SERVERS[kind])).running() as server:
        one = backend(kind, server)
        found = [
            await one.generate_structured("s", "u", Room, temperature, seed)
            for temperature, seed in ((0.7, 1), (1.2, 2), (0.0, 2))
        ]
    assert found == [Room(colour="green", coats=1), Room(colour="blue", coats=3), Room(colour="red", coats=1)]
    assert len(server.requests) == 3 and set(server.paths) == {"/v1/chat/completions"}
    assert all(body["max_tokens"] == 1024 and body["model"] == "m1" for body in server.requests)


def test_a_schema_in_a_field_of_another_server_would_show() -> None:
    """The fakes are as deaf as the servers: the removed field of vLLM gives prose."""
    schema = Room.model_json_schema()
    for kind, body in (
        ("vllm", {"guided_json": schema}),
        ("sglang", {"structured_outputs": {"json": schema}}),
    ):
        assert enforcing(SERVERS[kind])({**body, "seed": 0, "temperature": 1.0}) == text(PROSE)


@each
async def test_prose_is_asked_for_again_with_the_problem_and_is_then_one_clear_error(kind: str) -> None:
    said = iter([PROSE, '{"colour": "red", "coats": 9}'])
    with (
        ChatServer(lambda body: text(next(said))).running() as server,
        pytest.raises(ModelAnswerError, match=r"no Room \(coats: .*less than or equal to 3\)"),
    ):
        await backend(kind, server).generate_structured("s", "u", Room, 1.0, 7)
    first, second = server.requests
    assert second["messages"][:3] == [*first["messages"], {"role": "assistant", "content": PROSE}]
    assert "Invalid JSON" in second["messages"][3]["content"]
    assert (first["seed"], second["seed"]) == (7, 8)
    assert first["response_format"] == second["response_format"]


@each
async def test_an_empty_answer_is_told_too_and_no_message_is_empty(kind: str) -> None:
    said = iter(["", '{"colour": "red", "coats": 2}'])
    with ChatServer(lambda body: text(next(said))).running() as server:
        assert (await backend(kind, server).generate_structured("s", "u", Room)).coats == 2
    assert all(message["content"] for message in server.requests[1]["messages"])


@each
async def test_a_refusal_and_a_cut_off_answer_are_not_asked_for_again(kind: str) -> None:
    half = text('{"colour": "re')
    for reply, error, words in (
        (ended({"role": "assistant", "content": None, "refusal": "No."}, "stop"), RefusedAnswerError, "No."),
        (
            ended(half, "length"),
            TruncatedAnswerError,
            "cut off after 1024 tokens: allow more with max_tokens",
        ),
    ):
        with ChatServer(lambda body, said=reply: said).running() as server, pytest.raises(error, match=words):
            await backend(kind, server).generate_structured("s", "u", Room)
        assert len(server.requests) == 1


@each
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_busy_or_failing_server_is_asked_three_times(kind: str, status: int) -> None:
    said = iter([status, status, text('{"colour": "red", "coats": 1}')])
    with ChatServer(lambda body: next(said)).running() as server:
        assert (await backend(kind, server).generate_structured("s", "u", Room, 1.0, 3)).colour == "red"
    assert [body["seed"] for body in server.requests] == [3, 3, 3]
    with (
        ChatServer(lambda body: status).running() as server,
        pytest.raises(EngineError, match=f"status {status}: no"),
    ):
        await backend(kind, server).generate_structured("s", "u", Room)
    assert len(server.requests) == 3


@each
@pytest.mark.parametrize("reason", ["abort", "error"])
async def test_an_answer_that_the_server_ended_is_its_fault_and_no_rubric(kind: str, reason: str) -> None:
    with (
        ChatServer(lambda body: ended(text('{"colour": "red", "coats": 1}'), reason)).running() as server,
        pytest.raises(EngineError, match=rf"ended the answer of m1 \({reason}\): see its log"),
    ):
        await backend(kind, server).generate_structured("s", "u", Room)
    assert len(server.requests) == 1


@each
async def test_a_schema_that_the_server_cannot_enforce_is_reported_in_its_words(kind: str) -> None:
    words = "The provided JSON schema contains features not supported by xgrammar."
    refused = Reply(({"error": {"message": words, "type": "BadRequestError", "code": 400}},), status=400)
    with (
        ChatServer(lambda body: refused).running() as server,
        pytest.raises(
            EngineError, match=r"not supported by xgrammar\.\): change what it names, or use another"
        ),
    ):
        await backend(kind, server).generate_structured("s", "u", Room)
    assert len(server.requests) == 1


@pytest.mark.parametrize(("kind", "name"), [("vllm", "reasoning"), ("sglang", "reasoning_content")])
async def test_json_that_a_parser_of_thoughts_took_for_thoughts_is_the_answer(kind: str, name: str) -> None:
    said = {"role": "assistant", "content": None, name: ' {"colour": "blue", "coats": 3}'}
    with ChatServer(lambda body: said).running() as server:
        assert await backend(kind, server).generate_structured("s", "u", Room) == Room(colour="blue", coats=3)
    thoughts = {**said, "content": '{"colour": "red", "coats": 1}', name: "Blue? No."}
    with ChatServer(lambda body: thoughts).running() as server:
        assert (await backend(kind, server).generate_structured("s", "u", Room)).colour == "red"
    only = {"role": "assistant", "content": None, name: 'Maybe {"colour": "blue", "coats": 3}?'}
    with ChatServer(lambda body: only).running() as server, pytest.raises(ModelAnswerError, match="no Room"):
        await backend(kind, server).generate_structured("s", "u", Room)


@each
@pytest.mark.parametrize("status", [401, 500])
async def test_a_server_that_repeats_the_key_does_not_bring_it_into_the_error(
    kind: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "k" * 7 + "-" + "9" * 12
    monkeypatch.setenv(f"{kind.upper()}_API_KEY", key)
    echoed = Reply(({"error": {"message": f"Incorrect API key provided: {key}"}},), status=status)
    with ChatServer(lambda body: echoed).running() as server:
        one = backend(kind, server)
        with pytest.raises(EngineError, match="Incorrect API key provided: the key") as caught:
            await one.generate_structured("s", "u", Room)
        assert server.headers[0]["authorization"] == f"Bearer {key}"
        assert key not in str(caught.value) and key not in one.name and caught.value.__cause__ is None
        monkeypatch.delenv(f"{kind.upper()}_API_KEY")
        known = open_backend(f"{kind}:m1@{server.url.replace('http://', 'http://me:hidden@')}")
        assert isinstance(known, ChatBackend)
        known._pauses = (0.001, 0.002)
        with pytest.raises(EngineError) as caught:  # of a proxy in front of the server
            await known.generate_structured("s", "u", Room)
    assert "hidden" not in str(caught.value) and "at http://127.0.0.1" in str(caught.value)


@each
async def test_a_login_in_the_address_is_sent_alone_and_never_in_place_of_a_key(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """httpx sends the login of an address as Authorization, whatever header is set."""
    monkeypatch.delenv(f"{kind.upper()}_API_KEY", raising=False)
    with ChatServer(lambda body: text('{"colour": "red", "coats": 1}')).running() as server:
        address = server.url.replace("http://", "http://me:hidden@")
        one = open_backend(f"{kind}:m1@{address}")
        await one.generate_structured("s", "u", Room)
        monkeypatch.setenv(f"{kind.upper()}_API_KEY", "k" * 9)
        await open_backend(f"{kind}:m1@{server.url}").generate_structured("s", "u", Room)
        for refused in (
            lambda: open_backend(f"{kind}:m1@{address}"),
            lambda: ChatBackend(kind, "m1", address, key="k" * 9),
            lambda: Persona(address, "m1", "k" * 9),
        ):
            with pytest.raises(ConfigError, match="has a login, and a key is given too") as caught:
                refused()
            assert "hidden" not in f"{caught.value}{caught.value!r}" and "k" * 9 not in str(caught.value)
        async with Persona(address, "m1"):
            pass
    sent = [headers["authorization"] for headers in server.headers]
    assert sent == [f"Basic {base64.b64encode(b'me:hidden').decode()}", f"Bearer {'k' * 9}"]


@each
async def test_an_answer_that_is_no_completion_is_an_error_that_names_the_address(kind: str) -> None:
    for document in ({"detail": "Not Found"}, {"choices": []}, {"choices": [{"message": None}]}):
        with (
            ChatServer(lambda body, said=document: Reply((said,))).running() as server,
            pytest.raises(EngineError, match="something else than a chat completion: check the address"),
        ):
            await backend(kind, server).generate_structured("s", "u", Room)
