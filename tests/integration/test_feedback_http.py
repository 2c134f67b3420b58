"""``POST /feedback`` on a real api role: who may speak, how often, and that what is accepted arrives once."""

from __future__ import annotations

import asyncio
import hashlib
import json

import httpx
import pytest
from serving_world import eventually

from onward.api import service
from onward.bus import Bus
from onward.clock import ManualClock
from onward.config import Settings
from onward.context import Context
from onward.contracts import Feedback, decode
from onward.feedback.tokens import Subject, TokenKeys
from onward.telemetry.alerts import Alerts
from onward.telemetry.metrics import Metrics
from onward.warehouse import Objects

CHAT = "https://chat.example.org"
SERVER, READER = "ok-" + "s" * 40, "ok-" + "r" * 40


class _Rows:
    """A warehouse with one trajectory."""

    async def query(self, sql: str, **given):
        return [{"trajectory_id": "t-1", "session_id": "s1"}] if "t-1" in given["ids"] else []


class Api:
    def __init__(self, bus: Bus, folder, **feedback) -> None:
        clock, metrics = ManualClock(), Metrics()
        keys = {hashlib.sha256(SERVER.encode()).hexdigest(): ["feedback"]}
        keys[hashlib.sha256(READER.encode()).hexdigest()] = ["read"]
        settings = Settings.model_validate(
            {
                "data_dir": folder / "data",
                "http": {"api_port": 0, "keys": keys},
                "feedback": {"origins": [CHAT], **feedback},
                "capture": {"opt_out": "session:private-*"},
            }
        )
        self.bus, self.clock, self.settings = bus, clock, settings
        self.ctx = Context(
            settings=settings,
            clock=clock,
            bus=bus,
            warehouse=_Rows(),  # type: ignore[arg-type]
            objects=Objects.open(folder / "objects"),
            metrics=metrics,
            alerts=Alerts(bus, clock, metrics),
        )

    async def __aenter__(self) -> Api:
        self._role = asyncio.create_task(service.run(self.ctx))

        async def up():
            return self._role.done() or "api_url" in self.ctx.endpoints

        await eventually(up)
        if self._role.done():
            self._role.result()
        self.client = httpx.AsyncClient(base_url=self.ctx.endpoints["api_url"], timeout=30)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        self._role.cancel()
        await asyncio.gather(self._role, return_exceptions=True)

    def token(self, session: str, trajectory: str | None = None, seconds: float = 3600.0) -> str:
        from datetime import timedelta

        keys = TokenKeys(self.settings.run_dir)
        return keys.issue(Subject(session, trajectory), self.clock.now(), timedelta(seconds=seconds))

    async def post(self, body, bearer: str | None, path: str = "/feedback", **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if bearer is not None:
            named["Authorization"] = f"Bearer {bearer}"
        return await self.client.post(path, json=body, headers=named)

    async def published(self, count: int) -> list[Feedback]:
        async def there():
            info = await self.bus.js.stream_info("RL_FEEDBACK")
            return info.state.messages >= count

        await eventually(there)
        found = []
        for sequence in range(1, (await self.bus.js.stream_info("RL_FEEDBACK")).state.last_seq + 1):
            message = await self.bus.js.get_msg("RL_FEEDBACK", seq=sequence)
            found.append(decode(message.data or b"", Feedback))
        return found


@pytest.fixture
async def api(bus, tmp_path):
    async with Api(bus, tmp_path) as api:
        yield api


def _sentence(answer: httpx.Response) -> str:
    return answer.json()["error"]["message"]


UP = {"signal": "thumbs_up"}


async def test_a_server_votes_with_its_api_key(api):
    answer = await api.post(
        {"session_id": "s1", "trajectory_id": "t-9", "turn_id": 3, "signal": "rating", "stars": 4}, SERVER
    )
    assert answer.status_code == 202
    (vote,) = await api.published(1)
    assert answer.json() == {
        "feedback_id": vote.feedback_id,
        "session_id": "s1",
        "trajectory_id": "t-9",
        "kept": True,
    }
    assert (vote.session_id, vote.trajectory_id, vote.turn_id) == ("s1", "t-9", 3)
    assert (vote.signal, vote.value, vote.kind, vote.source) == ("rating", 0.8, "explicit", "api")
    assert vote.timestamp == api.clock.now()


async def test_a_browser_votes_with_a_token(api):
    token = api.token("s1", "t-1")
    answer = await api.post({"signal": "thumbs_down", "turn_id": 2}, token, Origin=CHAT)
    assert answer.status_code == 202
    assert answer.headers["access-control-allow-origin"] == CHAT
    (vote,) = await api.published(1)
    assert (vote.session_id, vote.trajectory_id, vote.turn_id) == ("s1", "t-1", 2)


async def test_the_session_of_a_trajectory_is_looked_up(api):
    assert (await api.post({**UP, "trajectory_id": "t-1"}, SERVER)).json()["session_id"] == "s1"
    unknown = await api.post({**UP, "trajectory_id": "t-2"}, SERVER)
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "trajectory_id")
    assert (await api.post(UP, SERVER)).status_code == 400


async def test_the_same_id_is_taken_once_and_never_for_other_words(api):
    first = await api.post({**UP, "session_id": "s1", "feedback_id": "mine-1"}, SERVER)
    await api.clock.advance(10)
    again = await api.post({**UP, "session_id": "s1", "feedback_id": "mine-1"}, SERVER)
    assert first.json() == again.json() and first.json()["feedback_id"] == "mine-1"
    other = await api.post({"signal": "thumbs_down", "session_id": "s1", "feedback_id": "mine-1"}, SERVER)
    assert other.status_code == 409
    token = api.token("s1")
    ids = {(await api.post(UP, token, Idempotency_Key="k1")).json()["feedback_id"] for _ in range(3)}
    ids.add((await api.post(UP, api.token("s2"), Idempotency_Key="k1")).json()["feedback_id"])
    ids.add((await api.post({**UP, "session_id": "s1"}, SERVER, Idempotency_Key="k1")).json()["feedback_id"])
    assert len(ids) == 3  # of one session, of another, of a server
    assert (await api.post({"signal": "thumbs_down"}, token, Idempotency_Key="k1")).status_code == 409
    await api.post({**UP, "session_id": "end"}, SERVER)
    assert [vote.session_id for vote in await api.published(5)] == ["s1", "s1", "s2", "s1", "end"]
    both = await api.post({**UP, "session_id": "s1", "feedback_id": "a"}, SERVER, Idempotency_Key="b")
    assert both.status_code == 400


async def test_what_was_answered_survives_a_nats_that_is_away_and_a_restart(own_server, tmp_path):
    bus = await Bus.connect(own_server.url, token=own_server.token)
    await bus.ensure_streams()
    async with Api(bus, tmp_path) as api:
        await own_server.stop()
        answer = await api.post({**UP, "session_id": "s1", "feedback_id": "kept"}, SERVER)
        assert answer.status_code == 202
    await own_server.start()
    async with Api(bus, tmp_path) as api:
        again = await api.post({**UP, "session_id": "s1", "feedback_id": "kept"}, SERVER)
        assert again.json() == answer.json()
        await api.post({**UP, "session_id": "s2"}, SERVER)
        assert [vote.session_id for vote in await api.published(2)] == ["s1", "s2"]
    await bus.close()


async def test_a_comment_is_redacted_before_it_is_on_disk(api):
    secret = "ghp_" + "a1B2" * 9
    await api.post({"signal": "correction", "comment": f"use {secret} instead"}, api.token("s1"))
    (vote,) = await api.published(1)
    assert vote.comment is not None and "use" in vote.comment and secret not in vote.comment
    for file in (api.settings.data_dir / "outbox").iterdir():
        assert secret.encode() not in file.read_bytes()


async def test_a_comment_that_cannot_be_redacted_is_not_taken(api, monkeypatch):
    from onward.errors import RedactionError
    from onward.redaction import Redactor

    def fails(self, document):
        raise RedactionError("no")

    monkeypatch.setattr(Redactor, "document", fails)
    answer = await api.post({**UP, "comment": "hm"}, api.token("s1"))
    assert (answer.status_code, "comment" in _sentence(answer)) == (503, True)


async def test_a_vote_on_a_session_that_is_stored_redacted_is_refused_and_not_lost(api):
    """Trajectories of a session that is called like a phone number are stored under another id."""
    phone = "+49 170 " + "1234567"
    answer = await api.post(UP, api.token(phone))
    assert answer.status_code == 400 and "name a 'trajectory_id'" in _sentence(answer)
    assert (await api.post(UP, api.token(phone, "t-1"))).status_code == 202
    (vote,) = await api.published(1)
    assert (vote.trajectory_id, phone in vote.session_id) == ("t-1", False)


async def test_who_opted_out_leaves_nothing(api):
    answer = await api.post(UP, api.token("private-1"))
    assert (answer.status_code, answer.json()["kept"]) == (202, False)
    await api.post(UP, api.token("s1"))
    assert [vote.session_id for vote in await api.published(1)] == ["s1"]


@pytest.mark.parametrize(
    ("bearer", "status", "word"),
    [
        (None, 401, "feedback token or an API key"),
        ("ok-wrong", 401, "API key"),
        (READER, 403, "'feedback'"),
        ("oft1.abc.def", 401, "changed"),
        ("oft9.abc.def", 401, "kind"),
        ("oft1", 401, "no feedback token"),
    ],
)
async def test_who_may_not_speak_is_told_so_in_one_sentence(api, bearer, status, word):
    answer = await api.post(UP, bearer, Origin=CHAT)
    assert answer.status_code == status
    assert word in _sentence(answer) and _sentence(answer).endswith((".", ")."))
    assert answer.headers["access-control-allow-origin"] == CHAT  # so that the page can tell its reader


async def test_a_token_ends_and_cannot_be_widened(api):
    token = api.token("s1", seconds=60)
    assert (await api.post({**UP, "session_id": "s2"}, token)).status_code == 403
    assert (await api.post({**UP, "trajectory_id": "t-1"}, token)).status_code == 403
    assert (await api.post({**UP, "turn_id": 1}, token)).status_code == 400
    await api.clock.advance(60)
    ended = await api.post(UP, token)
    assert (ended.status_code, "ended at" in _sentence(ended)) == (401, True)


async def test_a_chat_backend_gets_tokens_with_its_api_key(api):
    answer = await api.post({"session_id": "s1", "expires_in": 60}, SERVER, "/feedback/tokens")
    assert answer.status_code == 201
    made = answer.json()
    assert made["session_id"] == "s1" and made["expires_at"] == "2026-01-01T00:01:00.000Z"
    assert (await api.post(UP, made["token"])).status_code == 202
    by_trajectory = await api.post({"trajectory_id": "t-1"}, SERVER, "/feedback/tokens")
    assert by_trajectory.json()["session_id"] == "s1"
    assert by_trajectory.json()["expires_at"] == "2026-01-08T00:00:00.000Z"
    for body, bearer, status in [
        ({"session_id": "s1"}, READER, 403),
        ({"session_id": "s1"}, made["token"], 401),  # a token makes no tokens
        ({}, SERVER, 400),
        ({"session_id": "s1", "expires_in": 0}, SERVER, 400),
        ({"session_id": "s1", "expires_in": 86_400 * 31}, SERVER, 400),
        ({"session_id": "s1", "days": 3}, SERVER, 400),
    ]:
        assert (await api.post(body, bearer, "/feedback/tokens")).status_code == status, body


async def test_pages_of_other_origins_are_refused_before_anything_is_read(api):
    for origin in ("https://evil.example", "null", "https://chat.example.org.evil.example"):
        answer = await api.post(UP, api.token("s1"), Origin=origin)
        assert answer.status_code == 403 and "access-control-allow-origin" not in answer.headers
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    preflight = await api.client.options("/feedback", headers={**asked, "Origin": CHAT})
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-headers"] == "authorization, content-type, idempotency-key"
    assert preflight.headers["vary"] == "Origin"
    refused = await api.client.options("/feedback", headers={**asked, "Origin": "https://evil.example"})
    assert refused.status_code == 403 and "access-control-allow-origin" not in refused.headers
    other = await api.client.options("/feedback/tokens", headers={**asked, "Origin": CHAT})
    assert other.status_code == 405 and "access-control-allow-origin" not in other.headers
    form = await api.client.post(
        "/feedback", content=b"{}", headers={"Origin": CHAT, "Content-Type": "text/plain"}
    )
    assert form.status_code == 415


async def test_limits_say_when_to_come_again(bus, tmp_path):
    limits = {"per_session_per_minute": 2, "per_address_per_minute": 5, "per_key_per_minute": 4}
    async with Api(bus, tmp_path, **limits) as api:
        token = api.token("s1")
        assert [(await api.post(UP, token)).status_code for _ in range(3)] == [202, 202, 429]
        answer = await api.post(UP, token, Origin=CHAT)
        assert answer.headers["retry-after"] == "30"
        assert answer.headers["access-control-expose-headers"] == "retry-after"
        assert "on this session" in _sentence(answer) and "30 s" in _sentence(answer)
        assert (await api.post(UP, api.token("s2"))).status_code == 202
        address = await api.post(UP, "oft1.abc.def")  # the sixth from here, whatever it brings
        assert (address.status_code, "address" in _sentence(address)) == (429, True)
        by_key = [(await api.post({**UP, "session_id": f"k{n}"}, SERVER)).status_code for n in range(5)]
        assert by_key == [202] * 4 + [429]
        await api.clock.advance(30)
        assert (await api.post(UP, token)).status_code == 202
        text = (await api.client.get("/metrics")).text
        assert 'onward_feedback_posts_total{result="accepted",way="token"} 4.0' in text
        assert 'onward_feedback_posts_total{result="limited",way="key"} 1.0' in text


async def test_what_is_too_large_is_refused(api):
    answer = await api.post({**UP, "comment": "x" * 17_000}, api.token("s1"))
    assert answer.status_code == 413
    answer = await api.client.post(
        "/feedback", content=b"[1]", headers={"Authorization": f"Bearer {api.token('s1')}"}
    )
    assert answer.status_code == 400


async def test_the_widget_is_served_to_any_page(api):
    answer = await api.client.get("/feedback.js")
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "customElements.define" in answer.text
    again = await api.client.get("/feedback.js", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_a_flood_of_posts_for_one_session_is_a_handful_of_votes(api):
    """What a flood leaves: as many votes as one session may give in a minute, whatever ids they carry."""
    token = api.token("s1")
    codes: dict[int, int] = {}
    client = api.client
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = json.dumps({"signal": "thumbs_down"}).encode()
    async with asyncio.TaskGroup() as group:

        async def flood():
            for _ in range(125):
                status = (await client.post("/feedback", content=body, headers=headers)).status_code
                codes[status] = codes.get(status, 0) + 1

        for _ in range(8):
            group.create_task(flood())
    assert codes == {202: 20, 429: 980}
    assert len(await api.published(20)) == 20


async def test_the_api_refuses_odd_feedback(bus, tmp_path):
    async with Api(bus, tmp_path) as api:
        key = {"Authorization": f"Bearer {SERVER}"}
        for path in ("/feedback", "/feedback/tokens"):
            for body in (
                rb'{"\ud800":1}',
                rb'{"session_id":"\ud800","signal":"thumbs_up"}',
                rb'{"session_id":"s1","signal":"thumbs_up","comment":"\ud800"}',
                rb'{"session_id":"s1","signal":"rating","value":NaN}',
                b'{"session_id":"s1","expires_in":1e999,"signal":' + b"9" * 400 + b"}",
                b'{"a":' * 3000,
                b"[" * 16000,
                b"\xff\xfe",
            ):
                answer = await api.client.post(path, content=body, headers=key)
                assert answer.status_code == 400, (path, body[:60], answer.text)
                assert answer.json()["error"]["message"]
        for token in (b"oft1.\xed\xa0\x80.x", b"oft\xff"):
            answer = await api.client.post(
                "/feedback", content=b"{}", headers={b"Authorization": b"Bearer " + token}
            )
            assert answer.status_code == 401
        answer = await api.client.get("/rewards/%ED%A0%80%00", headers=key)
        assert answer.status_code in (400, 403)
