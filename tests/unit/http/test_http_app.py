import asyncio
import hashlib
import json
import socket
import stat
from types import SimpleNamespace

import httpx
import pytest
from fastapi import Depends, Request

from onward.api import service
from onward.clock import ManualClock, SystemClock
from onward.config import HttpSettings, Settings
from onward.errors import BusError, ConfigError, NotFoundError, PortBusyError
from onward.http.app import ApiKeys, HttpError, load_keys, make_app, read_json, require
from onward.http.hosts import AllowedHosts
from onward.http.server import Server, check_exposure
from onward.telemetry.metrics import Metrics

READER, ADMIN = "ok-" + "r" * 40, "ok-" + "a" * 40


def _sha(key):
    return hashlib.sha256(key.encode()).hexdigest()


@pytest.fixture
def parts():
    return {"engine": True}


@pytest.fixture
async def client(parts):
    keys = ApiKeys({_sha(READER): ["read"], _sha(ADMIN): ["admin"]})
    app = make_app("test", keys=keys, ready=lambda: parts, metrics=Metrics(), max_body=1000)

    @app.get("/read", dependencies=[Depends(require("read"))])
    async def read():
        return {"ok": True}

    @app.post("/echo")
    async def echo(request: Request):
        return await read_json(request)

    @app.post("/deploy", dependencies=[Depends(require("deploy"))])
    async def deploy(body: dict[str, int]):
        return body

    @app.get("/missing")
    async def missing():
        raise NotFoundError("There is no such thing.")

    @app.get("/defect")
    async def defect():
        raise RuntimeError("secret detail")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:3000") as client:
        yield client


def _bearer(key):
    return {"Authorization": f"Bearer {key}"}


async def test_health_is_open_and_ready_says_why_not(client, parts):
    assert (await client.get("/health")).json() == {"status": "ok", "service": "test"}
    assert (await client.get("/ready")).status_code == 200
    parts.update(engine="the engine is away", bus=False)
    answer = await client.get("/ready")
    assert answer.status_code == 503
    assert answer.json() == {
        "ready": False,
        "reasons": {"engine": "the engine is away", "bus": "not ready"},
        "warnings": {},
    }
    assert "onward_alerts" in (await client.get("/metrics")).text


async def test_keys_need_the_scope(client):
    assert (await client.get("/read")).status_code == 401
    assert (await client.get("/read", headers=_bearer("ok-wrong"))).status_code == 401
    assert (await client.get("/read", headers=_bearer(READER))).status_code == 200
    assert (await client.get("/read", headers={"X-API-Key": READER})).status_code == 200
    assert (await client.get("/read", headers={"Authorization": READER})).status_code == 401
    refused = await client.post("/deploy", headers=_bearer(READER), json={"a": 1})
    assert refused.status_code == 403
    assert refused.json()["error"]["type"] == "permission_error"
    assert (await client.post("/deploy", headers=_bearer(ADMIN), json={"a": 1})).json() == {"a": 1}


async def test_errors_have_one_shape(client):
    for path, status, kind in [
        ("/missing", 404, "not_found_error"),
        ("/nowhere", 404, "not_found_error"),
        ("/defect", 500, "internal_error"),
    ]:
        answer = await client.get(path)
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"type", "message", "param"}
        assert answer.json()["error"]["type"] == kind
        assert "secret" not in answer.text
    invalid = await client.post("/deploy", headers=_bearer(ADMIN), json={"a": "x"})
    assert invalid.status_code == 400 and invalid.json()["error"]["param"] == "a"


async def test_curl_without_a_content_type_is_read_as_json(client):
    for kind in ["application/x-www-form-urlencoded", "text/plain", "application/json; charset=utf-8", None]:
        headers = {"Content-Type": kind} if kind else {}
        answer = await client.post("/echo", content=b'{"a": 1}', headers=headers)
        assert answer.json() == {"a": 1}, kind
    answer = await client.post(
        "/deploy",
        content=b'{"a": 1}',
        headers={**_bearer(ADMIN), "Content-Type": "application/x-www-form-urlencoded"},
    )
    assert answer.json() == {"a": 1}


@pytest.mark.parametrize("header", ["Origin", "Sec-Fetch-Site", "Sec-Fetch-Mode"])
async def test_a_browser_must_say_json_so_that_cors_can_refuse(client, header):
    headers = {header: "https://evil.example"}
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]:
        answer = await client.post("/echo", content=b"{}", headers={**headers, "Content-Type": kind})
        assert answer.status_code == 415
    assert (await client.post("/echo", content=b"{}", headers=headers)).status_code == 415
    answer = await client.post("/echo", json={}, headers=headers)
    assert answer.status_code == 200 and "access-control-allow-origin" not in answer.headers
    preflight = await client.options("/echo", headers={**headers, "Access-Control-Request-Method": "POST"})
    assert preflight.status_code == 405 and "access-control-allow-origin" not in preflight.headers


async def test_bad_bodies_are_one_sentence(client):
    for body in [b"{", b"\xff", b"[1]", b"[" * 900, b""]:
        answer = await client.post("/echo", content=body)
        assert answer.status_code == 400, body[:10]
        assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"\\ud800": 1}', "half of a surrogate pair"),
        (b'{"a": ["\\uDFFF"]}', "half of a surrogate pair"),
        (b'{"a": "\\ud83d\\ud83d\\ude00"}', "half of a surrogate pair"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "infinite"),
        (b'{"a": 1e999}', "too large for a double"),
        (b'{"a": 1' + b"0" * 400 + b"}", "too large for a double"),
        (b'{"a": ' + b"[" * 101 + b"]" * 101 + b"}", "deeper than 100 levels"),
        (b'{"a": 1, "a": 2}', "same key twice"),
    ],
)
async def test_json_that_nothing_behind_can_hold_is_refused_with_its_reason(client, body, says):
    answer = await client.post("/echo", content=body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


async def test_a_body_nested_a_million_times_is_refused(parts):
    app = make_app("test", keys=ApiKeys({}), ready=lambda: parts, max_body=4 << 20)

    @app.post("/echo")
    async def echo(request: Request):
        return await read_json(request)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        answer = await client.post("/echo", content=b'{"a":' * 600_000)
        assert answer.status_code == 400 and "levels" in answer.json()["error"]["message"]


async def test_whole_characters_and_nul_pass_as_they_are(client):
    sent = {"a\x00b": "\U0001f600 \x00"}
    for body in (json.dumps(sent), json.dumps(sent, ensure_ascii=False)):
        assert (await client.post("/echo", content=body.encode())).json() == sent


def test_an_error_can_repeat_half_a_surrogate_pair():
    error = HttpError(400, "'\ud800' is not known here.", param="\ud800")
    assert json.loads(bytes(error.response().body))["error"]["param"] == "\ud800"


async def test_a_large_header_is_refused(client):
    assert (await client.get("/health", headers={"X": "a" * 30_000})).status_code == 200
    for one in ({"headers": {"X": "a" * 40_000}}, {"params": {"q": "a" * 40_000}}):
        answer = await client.get("/health", **one)
        assert answer.status_code == 431 and "at most 32768" in answer.json()["error"]["message"]
    many = [(f"X-{n}", "a" * 10) for n in range(3000)]
    assert (await client.get("/health", headers=many)).status_code == 431


async def test_wrong_keys_of_an_address_are_limited_and_a_valid_key_is_still_served(parts):
    clock = ManualClock()
    app = make_app(
        "test",
        keys=ApiKeys({_sha(READER): ["read"]}),
        ready=lambda: parts,
        wrong_keys_per_minute=3,
        clock=clock,
    )

    @app.get("/read", dependencies=[Depends(require("read"))])
    async def read():
        return {"ok": True}

    def caller(address):
        transport = httpx.ASGITransport(app, client=(address, 1234))
        return httpx.AsyncClient(transport=transport, base_url="http://localhost")

    async with caller("10.0.0.1") as guesser, caller("10.0.0.2") as other:
        statuses = [(await guesser.get("/read", headers=_bearer(f"ok-{n}"))).status_code for n in range(5)]
        assert statuses == [401, 401, 401, 429, 429]
        answer = await guesser.get("/read", headers={"X-API-Key": "ok-wrong"})
        assert answer.status_code == 429 and answer.headers["retry-after"] == "20"
        assert (await guesser.get("/read", headers=_bearer(READER))).status_code == 200
        assert (await guesser.get("/read")).status_code == 401  # no key is no guess
        assert (await other.get("/read", headers=_bearer("ok-wrong"))).status_code == 401
        await clock.advance(20)
        assert (await guesser.get("/read", headers=_bearer("ok-wrong"))).status_code == 401


async def test_the_schema_wants_a_key(client):
    assert (await client.get("/openapi.json")).status_code == 401
    for path in ("/docs", "/redoc"):
        assert (await client.get(path)).status_code == 404
    schema = (await client.get("/openapi.json", headers=_bearer(READER))).json()
    assert {"/health", "/read"} <= schema["paths"].keys()


async def test_large_bodies_are_refused_also_without_a_length(client):
    assert (await client.post("/echo", content=b"x" * 1001)).status_code == 413

    async def slices():
        for _ in range(3):
            yield b"x" * 500

    assert (await client.post("/echo", content=slices())).status_code == 413


@pytest.mark.parametrize(
    ("bound", "header", "allowed"),
    [
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "LOCALHOST:3000", True),
        ("127.0.0.1", "127.0.0.1:3000", True),
        ("127.0.0.1", "[::1]:3000", True),
        ("127.0.0.1", "evil.example", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "10.0.0.5", False),
        ("127.0.0.1", "", False),
        ("127.0.0.1", "localhost.", True),
        ("127.0.0.1", "localhost.:3000", True),
        ("127.0.0.1", "localhost..", False),
        ("127.0.0.1", "[0:0:0:0:0:0:0:1]:3000", True),
        ("127.0.0.1", "[::1]evil.example", False),
        ("127.0.0.1", "[::1", False),
        ("127.0.0.1", "[127.0.0.1]", False),
        ("127.0.0.1", "localhost:evil.example", False),
        ("127.0.0.1", "localhost:3000:evil", False),
        ("127.0.0.1", "localhost@evil.example", False),
        ("127.0.0.1", "evil.example:80@localhost", False),
        ("127.0.0.1", "notlocalhost", False),
        ("127.0.0.1", "localhost/evil", False),
        ("127.0.0.1", "localhost, evil.example", False),
        ("127.0.0.1", "127.0.0.1.evil.example", False),
        ("127.0.0.1", "127.1", False),
        ("127.0.0.1", "2130706433", False),
        ("Onward.Internal.", "onward.internal", True),
        ("::1", "[::1%25lo]", False),
        ("0.0.0.0", "[fe80::1]", True),
        ("0.0.0.0", "[10.0.0.5]", False),
        ("onward.internal", "onward.internal:443", True),
        ("0.0.0.0", "10.0.0.5:3000", True),
        ("0.0.0.0", "evil.example", False),
        ("10.0.0.5", "10.0.0.5", True),
        ("10.0.0.5", "10.0.0.6", False),
    ],
)
def test_host_headers(bound, header, allowed):
    assert AllowedHosts([bound]).allows(header) is allowed


async def test_a_rebound_name_is_refused(client):
    answer = await client.get("/health", headers={"Host": "evil.example"})
    assert answer.status_code == 421 and answer.json()["error"]["param"] == "Host"


def test_the_local_key_is_made_once_and_private(tmp_path):
    keys = load_keys({_sha(READER): ["read"]}, tmp_path / "run")
    text = (tmp_path / "run" / "api.key").read_text()
    assert stat.S_IMODE((tmp_path / "run" / "api.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    local, reader = keys.find(text), keys.find(READER)
    assert local is not None and "chat" in local.scopes
    assert reader is not None and reader.scopes == {"read"}
    assert load_keys({}, tmp_path / "run").find(text) is not None
    assert text not in repr(keys.__dict__)


@pytest.mark.parametrize("keys", [{READER: ["read"]}, {"0" * 64: []}, {"0" * 64: ["root"]}])
def test_wrong_key_settings_are_refused_without_repeating_them(keys):
    with pytest.raises(ConfigError) as caught:
        ApiKeys(keys)
    assert READER not in str(caught.value)


def test_other_machines_are_let_in_only_with_a_configured_key():
    check_exposure("127.0.0.1", {})
    check_exposure("::1", {})
    check_exposure("0.0.0.0", {"0" * 64: ["read"]})
    for host in ["0.0.0.0", "10.0.0.5", "onward.internal"]:
        with pytest.raises(ConfigError):
            check_exposure(host, {})


async def test_a_server_starts_stops_and_names_a_busy_port():
    app = make_app("test", keys=ApiKeys({}), ready=dict)
    server = Server(app, "127.0.0.1", 0)
    await server.start()
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{server.url}/health")).status_code == 200
    second = Server(app, "127.0.0.1", server.port, what="The gateway")
    with pytest.raises(PortBusyError, match=r"The gateway cannot listen on 127\.0\.0\.1"):
        await second.start()
    await server.stop()
    await server.stop()
    third = Server(app, "127.0.0.1", server.port)
    await third.start()
    await third.stop()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", server.port)) != 0


async def test_an_address_of_another_machine_is_one_sentence():
    with pytest.raises(ConfigError, match=r"203\.0\.113\.1"):
        await Server(make_app("t", keys=ApiKeys({}), ready=dict), "203.0.113.1", 0, what="The api").start()


def test_answers_do_not_wait_40_ms_for_an_acknowledgement():
    """asyncio sets TCP_NODELAY only on sockets that name their protocol."""
    listener = Server(make_app("t", keys=ApiKeys({}), ready=dict), "127.0.0.1", 0)._bind()
    assert listener.proto == socket.IPPROTO_TCP
    listener.close()


def test_errors_keep_their_headers():
    error = HttpError(429, "Wait.", headers={"Retry-After": "1"})
    assert error.response().headers["retry-after"] == "1"


class _Context:
    def __init__(self, folder):
        self.settings = Settings(
            data_dir=folder,
            http=HttpSettings.model_validate({"api_port": 0, "names": ["agents.example.org"]}),
        )
        self.metrics, self.ready, self.endpoints = Metrics(), {"collector": True}, {}
        self.probes, self.warnings, self.children = {}, {}, {}
        self.clock = SystemClock()
        # All that an empty outbox asks of it, and a table of jobs that does not answer.
        self.bus = SimpleNamespace(clock=self.clock, bucket=lambda name: SimpleNamespace(entries=_away))
        self.warehouse = None


async def _away(prefix=""):
    raise BusError("NATS is away.")


async def test_the_api_role_serves_readiness_and_status_until_cancelled(tmp_path, monkeypatch):
    ctx = _Context(tmp_path)

    async def collect(*_):
        return {"jobs": 3}

    monkeypatch.setattr(service.status, "collect", collect)
    role = asyncio.create_task(service.run(ctx))  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        while "api_url" not in ctx.endpoints:
            await asyncio.sleep(0.01)
    key = (tmp_path / "run" / "api.key").read_text()
    async with httpx.AsyncClient(base_url=ctx.endpoints["api_url"]) as client:
        assert (await client.get("/ready")).status_code == 200
        named = await client.get("/health", headers={"Host": "agents.example.org:8100"})
        assert named.status_code == 200 and named.json()["training"]["queued"] is None
        assert (await client.get("/health", headers={"Host": "example.org"})).status_code == 421
        ctx.ready["collector"] = False
        assert (await client.get("/ready")).json()["reasons"] == {"collector": "not ready"}
        assert (await client.get("/status")).status_code == 401
        shown = (await client.get("/status", headers=_bearer(key))).json()
        assert shown["jobs"] == 3 and shown["ready"]["api"] is True
    role.cancel()
    with pytest.raises(asyncio.CancelledError):
        await role
    assert ctx.ready["api"] is False


async def test_a_client_that_goes_away_while_it_sends_is_no_defect():
    async def gone():
        return {"type": "http.disconnect"}

    with pytest.raises(HttpError) as raised:
        await read_json(Request({"type": "http", "method": "POST", "headers": []}, gone))
    assert raised.value.status == 400
