"""What cannot be redacted is held encrypted, listed, retried and dropped; the raw bytes are nowhere.

One data folder holds everything that Onward writes (stream, warehouse, objects, keys, logs), and is searched
for the secret. The redactor's fault repeats the whole document in its message, as a careless one would.
"""

import asyncio
import contextlib
import io
import json
import os
import stat
import subprocess
import sys
from unittest import mock

import httpx
import pytest
import pytest_asyncio
from collector_world import bodies, collect, count, document, on_disk, publish, rows

from onward.bus import Bus, NatsServer
from onward.bus.deadletter import dead_letters
from onward.capture import claims, collector
from onward.capture.judge import Fate, Judge
from onward.capture.opt_out import OptOut
from onward.capture.quarantine import KEY_FILE, Keys, Quarantine
from onward.capture.recorder import Recorder
from onward.capture.redaction import redact_trajectory
from onward.capture.retry import retry
from onward.cli import main
from onward.clock import SystemClock
from onward.config import load
from onward.context import Context
from onward.contracts import MAX_BYTES, canonical_json, subjects
from onward.errors import BusError, NotFoundError, ObjectError
from onward.serving.engines.scripted import ScriptedEngine
from onward.serving.gateway import Gateway
from onward.telemetry import Alerts, Metrics
from onward.warehouse import EmbeddedWarehouse, Objects

pytestmark = pytest.mark.asyncio(loop_scope="module")
LONG = pytest.mark.long
SECRET = "ghp_" + "aB3dE5fG7hJ9" * 3
DEEP = (
    b'{"trajectory_id": "00000000-0000-4000-8000-000000000077", "a":'
    + b"[" * 60
    + (b'"' + SECRET.encode() + b'"' + b"]" * 60 + b"}")
)

CHILD = """
import asyncio, sys
from onward.bus import Bus
from onward.capture import collector
from onward.capture.redaction import redactor
from onward.clock import SystemClock
from onward.config import load
from onward.context import Context
from onward.telemetry import Alerts, Metrics, logs
from onward.warehouse import Objects, connect

def fault(document, **_):
    raise RuntimeError(f"cannot redact {document}")

async def main():
    collector.ACK_WAIT_SECONDS = 1.0
    redactor.redact_trajectory = fault
    logs.setup("debug")
    settings = load(environ={}, overrides={"data_dir": sys.argv[1]})
    clock, metrics = SystemClock(), Metrics()
    bus = await Bus.connect(sys.argv[2], token=sys.argv[3])
    alerts, warehouse = Alerts(bus, clock, metrics), await connect(settings)
    objects = Objects.open(settings.objects_at)
    await collector.run(Context(settings, clock, bus, warehouse, objects, metrics, alerts))

asyncio.run(main())
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warehouse(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    embedded = EmbeddedWarehouse(folder)
    yield await embedded.start(), folder
    await embedded.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(warehouse):
    server = NatsServer(warehouse[1], respawn=False)
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def ctx(server, warehouse):
    await warehouse[0].command("TRUNCATE TABLE trajectories")
    bus = await Bus.connect(server.url, token=server.token)
    for info in await bus.js.streams_info():
        await bus.js.delete_stream(str(info.config.name))
    await bus.ensure_streams(migrate=True)
    yield make(bus, warehouse)
    for key in await Objects.open(str(warehouse[1] / "objects")).list():
        await Objects.open(str(warehouse[1] / "objects")).delete(key)
    await bus.close()


def make(bus, warehouse, **capture):
    clock, metrics = SystemClock(), Metrics()
    folder = {"data_dir": str(warehouse[1]), "http": {"gateway_port": 0}, "model": {"base": "tiny"}}
    settings = load(environ={}, overrides={**folder, "capture": capture})
    objects = Objects.open(settings.objects_at)
    return Context(settings, clock, bus, warehouse[0], objects, metrics, Alerts(bus, clock, metrics))


def quarantine(ctx) -> Quarantine:
    return Quarantine(ctx.objects, Keys.of(ctx.settings), ctx.clock)


def break_redaction(monkeypatch) -> None:
    def fault(document, **_):
        raise RuntimeError(f"cannot redact {document}")

    monkeypatch.setattr("onward.capture.redaction.redactor.redact_trajectory", fault)


async def crash(server, folder, point: str) -> None:
    """A collector whose redactor is broken, killed at ``point``; its log goes into the data folder."""
    command = [sys.executable, "-c", CHILD, str(folder), server.url, server.token]
    environment = {**os.environ, "ONWARD_CRASHPOINT": point}
    with open(folder / "collector.log", "ab") as log:
        died = await asyncio.to_thread(
            subprocess.run, command, env=environment, stdout=log, stderr=log, timeout=60
        )
    assert died.returncode == 137, (folder / "collector.log").read_text()


async def onward(ctx, server, *words: str, group: str = "quarantine") -> tuple[int, str]:
    """``onward quarantine …`` on this data folder: exit code and what it wrote."""
    out = io.StringIO()

    def run() -> int:
        environment = {"NATS_URL": server.url, "NATS_TOKEN": server.token, "COLUMNS": "120"}
        patch = mock.patch.dict(os.environ, environment)
        with patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                main([group, *words, "--dir", str(ctx.settings.data_dir)])
            except SystemExit as end:
                return int(end.code or 0)
        return 0

    code = await asyncio.to_thread(run)
    assert SECRET not in out.getvalue()
    return code, out.getvalue()


async def retry_and_die(ctx, server, point: str) -> None:
    environment = {"NATS_URL": server.url, "NATS_TOKEN": server.token, "ONWARD_CRASHPOINT": point}
    command = [sys.executable, "-m", "onward.cli", "quarantine", "retry", "--all"]
    died = await asyncio.to_thread(
        subprocess.run,
        [*command, "--dir", str(ctx.settings.data_dir)],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=60,
    )
    assert died.returncode == 137, died.stderr
    assert SECRET.encode() not in died.stdout + died.stderr


def record(server, folder) -> None:
    """One clean trajectory through a recorder whose outbox is in the data folder."""
    with Recorder(folder / "outbox.db", nats_url=server.url, nats_token=server.token) as recorder:
        with recorder.task(f"use {SECRET}") as task:
            task.turn(observation="hello", action="done", result={"success": True})
        assert recorder.flush()


async def assert_nowhere(server, folder) -> None:
    await server.stop()
    assert on_disk(folder, SECRET.encode()) == []
    await server.start()


async def test_a_fault_a_too_deep_and_a_too_large_body_end_encrypted_and_listed(
    ctx, server, warehouse, monkeypatch
):
    await asyncio.to_thread(record, server, warehouse[1])
    await collect(ctx)
    break_redaction(monkeypatch)
    large = document(3, text=SECRET)
    large["turns"][0]["result"]["output"] = "word " * (MAX_BYTES // 4)
    await publish(ctx, document(1, text=f"use {SECRET}"))
    await publish(ctx, DEEP)
    await publish(ctx, large)
    await publish(ctx, f'{{"password": "{SECRET}", "token_ids": [1, 2'.encode())
    await publish(ctx, SECRET.encode("utf-16"))
    assert on_disk(warehouse[1], SECRET.encode())
    await collect(ctx)
    held = await quarantine(ctx).held()
    assert [(h.reason, h.error) for h in held] == [
        ("redaction", "RuntimeError"),
        ("too_deep", "ContractError"),
        ("too_large", "ContractError"),
        ("not_json", "ContractError"),
        ("not_json", "ContractError"),
    ]
    assert held[0].trajectory_id == document(1)["trajectory_id"]
    assert held[2].size == len(json.dumps(large))
    assert len(await rows(ctx)) == len(await bodies(ctx)) == 1  # what the recorder sent
    assert await dead_letters(ctx.bus) == []
    assert count(ctx, "onward_held_total", reason="too_deep") == 1
    assert count(ctx, "onward_alerts_total", kind="quarantine") >= 1
    code, output = await onward(ctx, server, "list")
    assert code == 0
    assert all(h.held_id in output for h in held)
    key = warehouse[1] / "run" / KEY_FILE
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    await assert_nowhere(server, warehouse[1])


async def test_retry_after_the_fault_is_gone_stores_exactly_one_trajectory(
    ctx, server, warehouse, monkeypatch
):
    break_redaction(monkeypatch)
    await publish(ctx, document(1, text=f"use {SECRET}"))
    await collect(ctx)
    (held,) = await quarantine(ctx).held()
    still = await retry(ctx.bus, quarantine(ctx), held.held_id, ctx.clock, Judge())
    assert (still.fate, still.reason) == (Fate.HOLD, "redaction")
    monkeypatch.setattr("onward.capture.redaction.redactor.redact_trajectory", redact_trajectory)
    code, output = await onward(ctx, server, "retry", held.held_id)
    assert (code, output) == (0, f"{held.held_id}: published clean.\n")
    code, output = await onward(ctx, server, "retry", held.held_id)
    assert code == 2 and "Nothing is held under" in output
    await collect(ctx)
    (row,) = await rows(ctx)
    assert "use <GITHUB_TOKEN:1>" in row["payload"]
    assert count(ctx, "onward_duplicates_total", stream=collector.STREAM) == 0
    assert await quarantine(ctx).held() == []
    await assert_nowhere(server, warehouse[1])


@pytest.mark.parametrize("point", [pytest.param("before_hold", marks=LONG), "held", "erased"])
async def test_a_crash_while_holding_loses_and_doubles_nothing(ctx, server, warehouse, monkeypatch, point):
    monkeypatch.setattr(collector, "ACK_WAIT_SECONDS", 1.0)
    await publish(ctx, document(1, text=f"use {SECRET}"))
    await crash(server, warehouse[1], f"collector.{point}")
    break_redaction(monkeypatch)
    await collect(ctx)
    (held,) = await quarantine(ctx).held()
    assert await bodies(ctx) == []
    _, message = await quarantine(ctx).open(held.held_id)
    assert json.loads(message.data)["turns"][0]["observation"]["content"] == f"use {SECRET}"
    await assert_nowhere(server, warehouse[1])


@pytest.mark.parametrize("point", ["sent", pytest.param("dropped", marks=LONG)])
async def test_a_crash_while_retrying_loses_and_doubles_nothing(ctx, server, warehouse, monkeypatch, point):
    with monkeypatch.context() as patch:
        break_redaction(patch)
        await publish(ctx, document(1, text=f"use {SECRET}"))
        await collect(ctx)
    (held,) = await quarantine(ctx).held()
    await retry_and_die(ctx, server, f"quarantine.{point}")
    await collect(ctx)
    code, output = await onward(ctx, server, "retry", "--all")
    assert code == 0, output
    await collect(ctx)
    (row,) = await rows(ctx)
    assert "<GITHUB_TOKEN:1>" in row["payload"]
    assert len(await bodies(ctx)) == 1
    assert await quarantine(ctx).held() == []
    with pytest.raises(NotFoundError):
        await quarantine(ctx).open(held.held_id)
    await assert_nowhere(server, warehouse[1])


async def test_a_held_body_that_is_clean_but_unusable_becomes_a_dead_letter(ctx, monkeypatch):
    wrong = document(1, text=f"use {SECRET}")
    del wrong["metadata"]
    with monkeypatch.context() as patch:
        break_redaction(patch)
        await publish(ctx, wrong)
        await collect(ctx)
    (held,) = await quarantine(ctx).held()
    result = await retry(ctx.bus, quarantine(ctx), held.held_id, ctx.clock, Judge())
    assert (result.fate, result.reason) == (Fate.BURY, "schema")
    (letter,) = await dead_letters(ctx.bus)
    assert b"use <GITHUB_TOKEN:1>" in letter.body
    assert await quarantine(ctx).held() == []


async def test_a_retry_honours_an_opt_out_that_came_later(ctx, monkeypatch):
    with monkeypatch.context() as patch:
        break_redaction(patch)
        await publish(ctx, document(1, text=f"use {SECRET}"))
        await collect(ctx)
    (held,) = await quarantine(ctx).held()
    result = await retry(
        ctx.bus, quarantine(ctx), held.held_id, ctx.clock, Judge(opt_out=OptOut.parse("session:s1"))
    )
    assert result.fate is Fate.DROP
    await collect(ctx)
    assert await rows(ctx) == []
    assert await quarantine(ctx).held() == []


async def test_dropping_asks_first_and_is_audited(ctx, server, monkeypatch):
    break_redaction(monkeypatch)
    await publish(ctx, document(1, text=f"use {SECRET}"))
    await collect(ctx)
    (held,) = await quarantine(ctx).held()
    code, output = await onward(ctx, server, "drop", held.held_id)
    assert code == 2 and "--yes" in output
    code, output = await onward(ctx, server, "drop")
    assert code == 2 and "--all" in output
    assert len(await quarantine(ctx).held()) == 1
    code, output = await onward(ctx, server, "show", held.held_id)
    assert code == 0 and json.loads(output)["reason"] == "redaction"
    code, output = await onward(ctx, server, "drop", held.held_id, "--yes")
    assert (code, output) == (0, f"{held.held_id}: dropped for good.\n")
    assert await quarantine(ctx).held() == []
    entry = json.loads((await ctx.bus.js.get_msg("RL_AUDIT", seq=1)).data or b"")
    assert (entry["event"], entry["held_id"], entry["size"]) == (
        "quarantine.drop", held.held_id, held.size,
    )  # fmt: skip
    code, output = await onward(ctx, server, "list")
    assert (code, output) == (0, "Nothing is held.\n")


async def test_a_poisonous_row_is_held_and_not_left_raw(ctx, server, warehouse, monkeypatch):
    """A defect behind redaction used to end as a dead letter without a body, the raw message unread."""

    def broken(*_, **__):
        raise KeyError("row")

    monkeypatch.setattr("onward.capture.collector.POISON_AFTER", 1)
    with monkeypatch.context() as patch:
        patch.setattr("onward.capture.enrich.row", broken)
        await publish(ctx, document(1, text=f"use {SECRET}"))
        await collect(ctx)
    (held,) = await quarantine(ctx).held()
    assert (held.reason, held.error) == ("handler_error", "KeyError")
    assert await dead_letters(ctx.bus) == []
    await retry(ctx.bus, quarantine(ctx), held.held_id, ctx.clock, Judge())
    await collect(ctx)
    assert len(await rows(ctx)) == 1
    await assert_nowhere(server, warehouse[1])


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        ("session:s1", "s2"),
        ("agent:tes*", "s2"),
        ("user:u-1", "s2"),
        ("nobody, s1", "s2"),
    ],
)
async def test_opt_out_by_session_agent_and_user_drops_before_storage(ctx, warehouse, patterns, kept):
    ctx = make(ctx.bus, warehouse, opt_out=patterns)
    first = document(1, text=f"use {SECRET}", agent_id="tester")
    first["metadata"]["user_hash"] = "u-1"
    wrong = {**first, "turns": []}
    await publish(ctx, first)
    await publish(ctx, wrong, msg_id="wrong")
    await publish(ctx, document(2))
    await collect(ctx)
    assert [row["session_id"] for row in await rows(ctx)] == [kept]
    assert len(await bodies(ctx)) == 1
    assert await dead_letters(ctx.bus) == []
    assert await quarantine(ctx).held() == []
    assert count(ctx, "onward_opted_out_total") == 2
    entry = await ctx.bus.bucket("rl_capture").get("opted_out")
    assert json.loads(entry.value)["count"] == 2


async def test_an_opted_out_message_that_comes_again_counts_once(ctx):
    assert await collector.count_opted_out(ctx.bus, [4, 5]) == 2
    assert await collector.count_opted_out(ctx.bus, [5, 6]) == 1
    entry = await ctx.bus.bucket("rl_capture").get("opted_out")
    assert json.loads(entry.value) == {"count": 3, "recent": [4, 5, 6]}


async def test_status_shows_what_is_held_and_what_was_dropped(ctx, server, warehouse, monkeypatch):
    ctx = make(ctx.bus, warehouse, opt_out="s2")
    break_redaction(monkeypatch)
    await publish(ctx, document(1, text=f"use {SECRET}"))
    await publish(ctx, document(2))
    await collect(ctx)
    code, output = await onward(ctx, server, group="status")
    assert code == 0
    assert "Quarantine: 1 held" in output
    assert "Opted out: 1 dropped before storage." in output


async def test_a_large_body_is_held_whole_and_once_even_when_its_message_comes_again(
    ctx, server, warehouse, monkeypatch
):
    """The body is taken out of the object store before the message is erased; in between all may stop."""
    body = document(1, text=f"use {SECRET}")
    body["turns"] = [body["turns"][0] | {"turn_id": i + 1} for i in range(30)]
    for turn in body["turns"]:
        turn["result"] = {"success": True, "output": "word " * 10_000}
    data = canonical_json(body)
    claim = await claims.publish(
        ctx.bus, ctx.objects, ctx.clock.now(), data, subject=subjects.TRAJECTORY, msg_id="large", headers={}
    )
    assert claim is not None
    break_redaction(monkeypatch)
    monkeypatch.setattr(collector, "CLAIM_TRIES", 1)
    erase, calls = collector.erase, []

    async def away_once(bus, sequence):
        calls.append(sequence)
        if len(calls) == 1:
            raise BusError("away")
        await erase(bus, sequence)

    monkeypatch.setattr(collector, "erase", away_once)
    await collect(ctx)
    assert len(calls) == 2
    (held,) = await quarantine(ctx).held()
    assert held.size == len(data)
    assert await dead_letters(ctx.bus) == []
    assert await bodies(ctx) == []
    monkeypatch.setattr("onward.capture.redaction.redactor.redact_trajectory", redact_trajectory)
    assert (await retry(ctx.bus, quarantine(ctx), held.held_id, ctx.clock, Judge())).fate is Fate.STORE
    await collect(ctx)
    (row,) = await rows(ctx)
    assert row["n_turns"] == 30 and "use <GITHUB_TOKEN:1>" in row["payload"]
    await assert_nowhere(server, warehouse[1])


async def test_a_store_that_is_away_keeps_the_message_where_it_is(ctx, warehouse, monkeypatch):
    break_redaction(monkeypatch)
    await publish(ctx, document(1, text=f"use {SECRET}"))
    key = warehouse[1] / "run" / KEY_FILE
    good = key.read_text() if key.exists() else None
    key.write_text("not a key")
    task = asyncio.create_task(collector.run(ctx))
    await asyncio.sleep(1.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(await bodies(ctx)) == 1
    assert await dead_letters(ctx.bus) == []
    key.unlink() if good is None else key.write_text(good)
    await collect(ctx)
    assert len(await quarantine(ctx).held()) == 1
    assert await bodies(ctx) == []


@contextlib.asynccontextmanager
async def gateway(ctx):
    """A gateway on this data folder, and a client that holds its key."""
    running = Gateway(ctx, ScriptedEngine())
    await running.start()
    headers = {"Authorization": f"Bearer {(ctx.settings.run_dir / 'api.key').read_text()}"}
    async with httpx.AsyncClient(base_url=running.server.url, headers=headers, timeout=30) as client:
        try:
            yield running, client
        finally:
            await running.stop()


async def ask_and_close(client, text: str, session: str = "s1") -> str:
    """One answered question, recorded; its trajectory id."""
    body = {"model": "onward", "messages": [{"role": "user", "content": text}]}
    answer = await client.post("/v1/chat/completions", json=body, headers={"Onward-Session": session})
    assert answer.status_code == 200, answer.text
    closed = await client.post(f"/v1/sessions/{session}/close", json={"status": "failed"})
    assert closed.status_code == 200, closed.text
    return answer.json()["onward"]["trajectory_id"]


async def test_what_the_gateway_cannot_redact_is_held_encrypted_and_a_retry_stores_it_once(
    ctx, server, warehouse, monkeypatch
):
    with monkeypatch.context() as patch:
        break_redaction(patch)
        async with gateway(ctx) as (_, client):
            name = await ask_and_close(client, f"use {SECRET}")
    (held,) = await quarantine(ctx).held()
    assert (held.source, held.reason, held.error) == ("gateway", "redaction", "RuntimeError")
    assert held.trajectory_id == name and held.size > 500
    assert count(ctx, "onward_held_total", reason="redaction") == 1
    assert count(ctx, "onward_alerts_total", kind="quarantine") == 1
    assert await bodies(ctx) == []
    await assert_nowhere(server, warehouse[1])
    code, output = await onward(ctx, server, "list")
    assert code == 0 and held.held_id in output
    with monkeypatch.context() as patch:
        break_redaction(patch)
        still = await retry(ctx.bus, quarantine(ctx), held.held_id, ctx.clock, Judge())
        assert (still.fate, still.reason) == (Fate.HOLD, "redaction")
    await retry_and_die(ctx, server, "quarantine.sent")
    code, output = await onward(ctx, server, "retry", held.held_id)
    assert (code, output) == (0, f"{held.held_id}: published clean.\n")
    await collect(ctx)
    (row,) = await rows(ctx)
    assert row["trajectory_id"] == name and "use <GITHUB_TOKEN:1>" in row["payload"]
    (body,) = await bodies(ctx)
    assert json.loads(body)["turns"][0]["action"]["sampling"]["tokens_void"]
    assert await quarantine(ctx).held() == []
    await assert_nowhere(server, warehouse[1])


async def test_a_fault_of_the_gateways_redactor_that_passes_holds_nothing(ctx, monkeypatch):
    calls = []

    def once(document, **how):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("busy")
        return redact_trajectory(document, **how)

    async with gateway(ctx) as (running, client):
        # No journal: the first call is the record's.
        monkeypatch.setattr(running.capture.behind, "_changed", list)
        monkeypatch.setattr("onward.capture.redaction.redactor.redact_trajectory", once)
        await ask_and_close(client, f"use {SECRET}")
    assert await quarantine(ctx).held() == [] and len(calls) >= 2


async def test_a_store_that_is_away_keeps_what_the_gateway_could_not_redact(ctx, monkeypatch):
    async def away(*_, **__):
        raise ObjectError("away")

    break_redaction(monkeypatch)
    async with gateway(ctx) as (_, client):
        with monkeypatch.context() as patch:
            patch.setattr(Quarantine, "hold_captured", away)
            body = {"model": "onward", "messages": [{"role": "user", "content": f"use {SECRET}"}]}
            await client.post("/v1/chat/completions", json=body, headers={"Onward-Session": "s1"})
            refused = await client.post("/v1/sessions/s1/close", json={"status": "failed"})
            assert refused.status_code == 503
    assert [held.source for held in await quarantine(ctx).held()] == ["gateway"]


async def test_a_retry_of_the_gateways_honours_an_opt_out_that_came_later(ctx, monkeypatch):
    with monkeypatch.context() as patch:
        break_redaction(patch)
        async with gateway(ctx) as (_, client):
            await ask_and_close(client, f"use {SECRET}")
    (held,) = await quarantine(ctx).held()
    judge = Judge(opt_out=OptOut.parse("session:s1"))
    for _ in range(2):
        with contextlib.suppress(NotFoundError):
            assert (await retry(ctx.bus, quarantine(ctx), held.held_id, ctx.clock, judge)).fate is Fate.DROP
    assert await quarantine(ctx).held() == [] and await bodies(ctx) == []
    entry = await ctx.bus.bucket("rl_capture").get("opted_out")
    assert json.loads(entry.value)["recent"][-1] == held.held_id


async def test_optional_kinds_and_secrets_of_a_file_reach_collector_and_gateway(
    ctx, server, warehouse, tmp_path
):
    (tmp_path / "mine.txt").write_text("Blue Whale 42\n")
    ctx = make(
        ctx.bus, warehouse, optional_kinds=["DATE_OF_BIRTH"], known_secrets_file=str(tmp_path / "mine.txt")
    )
    text = "Blue Whale 42, born on 12 August" + " 1980"
    async with gateway(ctx) as (_, client):
        await ask_and_close(client, text)
    await publish(ctx, document(1, text=text))
    await collect(ctx)
    found = await rows(ctx)
    assert len(found) == 2
    for row in found:
        assert "<KNOWN:1>, born on <DATE_OF_BIRTH:1>" in row["payload"]
        assert len(row["payload_sha256"].partition(":")[0]) == 20
