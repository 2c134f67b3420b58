"""The short way past the framework's layers: the same answers, protections and errors as the long one."""

import json
import math

import httpx
import pytest
from starlette.routing import Route

from onward.errors import ConfigError, EngineError
from onward.http.app import ApiKeys, HttpError, authorize, make_app, read_json
from onward.http.cors import Cors
from onward.http.direct import Direct, FastJson

KEY = "ok-" + "a" * 32


async def answer(request):
    caller = authorize(request, "chat")
    asked = await read_json(request)
    raised = {
        "http": HttpError(429, "Slower.", headers={"Retry-After": "3"}),
        "config": ConfigError("A wrong setting."),
        "engine": EngineError("The engine is away."),
        "defect": ZeroDivisionError("not for clients"),
    }
    if asked["do"] in raised:
        raise raised[asked["do"]]
    return FastJson({"asked": asked, "key": caller.key_hash[:4]}, headers={"X-One": "1"})


def made():
    import hashlib

    app = make_app(
        "test", keys=ApiKeys({hashlib.sha256(KEY.encode()).hexdigest(): ["chat"]}), ready=dict, max_body=200
    )
    app.router.routes.insert(0, Route("/v1/x", answer, methods=["POST"]))
    return app


ASKED = json.dumps({"do": "ok"}).encode()
CASES = {
    "answer": ("POST", "/v1/x", ASKED, {}),
    "error of HTTP": ("POST", "/v1/x", b'{"do": "http"}', {}),
    "error of settings": ("POST", "/v1/x", b'{"do": "config"}', {}),
    "error of the engine": ("POST", "/v1/x", b'{"do": "engine"}', {}),
    "defect": ("POST", "/v1/x", b'{"do": "defect"}', {}),
    "wrong key": ("POST", "/v1/x", ASKED, {"authorization": "Bearer no"}),
    "wrong host": ("POST", "/v1/x", ASKED, {"host": "evil.example"}),
    "form of a browser": ("POST", "/v1/x", ASKED, {"origin": "http://evil", "content-type": "text/plain"}),
    "large body": ("POST", "/v1/x", b'{"do": "' + b"x" * 300 + b'"}', {}),
    "no JSON": ("POST", "/v1/x", b"{", {}),
    "other method": ("GET", "/v1/x", b"", {}),
    "other path": ("POST", "/v1/y", ASKED, {}),
    "health": ("GET", "/health", b"", {}),
}
STATUS = {
    "answer": 200, "error of HTTP": 429, "error of settings": 400, "error of the engine": 503, "defect": 500,
    "wrong key": 401, "wrong host": 421, "form of a browser": 415, "large body": 413, "no JSON": 400,
    "other method": 405, "other path": 404, "health": 200,
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
async def test_both_ways_give_the_same_answer(case):
    method, path, body, headers = CASES[case]
    app = made()
    found = []
    for way in (app, Direct(app, {"/v1/x": answer})):
        transport = httpx.ASGITransport(way, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            sent = {"authorization": f"Bearer {KEY}", "content-type": "application/json", **headers}
            reply = await client.request(method, path, content=body, headers=sent)
            found.append((reply.status_code, dict(reply.headers), reply.content))
    assert found[0] == found[1] and found[0][0] == STATUS[case]
    assert b"not for clients" not in found[1][2]


async def test_a_defect_reaches_the_log():
    app = made()
    transport = httpx.ASGITransport(Direct(app, {"/v1/x": answer}))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        with pytest.raises(ZeroDivisionError):
            sent = {"authorization": f"Bearer {KEY}"}
            await client.post("/v1/x", content=b'{"do": "defect"}', headers=sent)


def test_an_app_with_further_layers_has_no_short_way():
    app = made()
    app.add_middleware(Cors, paths=["/v1/x"], origins=[])
    with pytest.raises(ValueError):
        Direct(app, {})


def test_json_is_written_as_the_standard_library_reads_it():
    value = {"a": [1, 2.5, 1e-7, -0.0, 10**30, True, None], "ü": "😀\n", "nan": math.nan}
    assert json.loads(FastJson(value).body) == {**value, "nan": None}
    deep: list = []
    for _ in range(400):
        deep = [deep]
    for odd in ({"half": "\ud83d"}, deep):
        assert json.loads(FastJson(odd).body) == odd
