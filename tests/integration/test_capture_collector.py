"""The collector between a real NATS server and the real warehouse, killed at each of its steps."""

import asyncio
import copy
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from collector_world import bodies, collect, count, document, on_disk, publish, rows

from onward.bus import Bus, NatsServer
from onward.bus.deadletter import dead_letters
from onward.capture.collecting import collector
from onward.capture.collecting.quarantine import Quarantine, QuarantineKeys
from onward.clock import SystemClock, utc_text
from onward.config import load
from onward.context import Context
from onward.contracts import MAX_BYTES, Trajectory, decode
from onward.telemetry import Alerts, Metrics
from onward.warehouse import EmbeddedWarehouse, Objects, queries

pytestmark = pytest.mark.asyncio(loop_scope="module")
SECRET = "ghp_" + "aB3dE5fG7hJ9" * 3
CRASH_POINTS = ("before_store", "stored", "republished", "erased")

CHILD = """
import asyncio, sys
from pathlib import Path
from onward.bus import Bus
from onward.capture.collecting import collector
from onward.clock import SystemClock
from onward.config import load
from onward.context import Context
from onward.telemetry import Alerts, Metrics, logs
from onward.warehouse import Objects, connect

async def main():
    collector.ACK_WAIT_SECONDS = 1.0
    logs.setup("info")
    settings = load(environ={}, overrides={"data_dir": sys.argv[1]})
    clock, metrics = SystemClock(), Metrics()
    bus = await Bus.connect(sys.argv[2], token=sys.argv[3])
    objects = Objects.open(str(Path(sys.argv[1]) / "objects"))
    alerts, warehouse = Alerts(bus, clock, metrics), await connect(settings)
    await collector.run(Context(settings, clock, bus, warehouse, objects, metrics, alerts))

asyncio.run(main())
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warehouse(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wh")
    embedded = EmbeddedWarehouse(folder)
    yield await embedded.start(), folder
    await embedded.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def server(tmp_path):
    server = NatsServer(tmp_path / "nats-data")
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def ctx(server, warehouse, tmp_path):
    await warehouse[0].command("TRUNCATE TABLE trajectories")
    clock, metrics = SystemClock(), Metrics()
    bus = await Bus.connect(server.url, token=server.token)
    await bus.ensure_streams(migrate=True)
    yield Context(
        load(environ={}, overrides={"data_dir": str(tmp_path)}),
        clock,
        bus,
        warehouse[0],
        Objects.open(str(tmp_path / "objects")),
        metrics,
        Alerts(bus, clock, metrics),
    )
    await bus.close()


async def test_trajectories_are_stored_once_and_enriched(ctx):
    for number in range(1, 31):
        body = document(number)
        await publish(ctx, body)
        if number % 10 == 0:
            await publish(ctx, body, msg_id=f"again-{number}")
    await collect(ctx)
    stored = await rows(ctx)
    assert [row["session_id"] for row in stored] == [f"s{number}" for number in range(1, 31)]
    payload = decode(stored[0]["payload"].encode(), Trajectory)
    assert payload.task_context.task_type == "general"
    assert payload.turns[0].action.sampling is not None
    assert payload.turns[0].action.sampling.token_ids == [3]
    assert stored[0]["model_digest"] == "d"
    assert count(ctx, "agent_rl_trajectories_collected_total", agent_type="main", task_domain="general") == 30
    assert count(ctx, "onward_duplicates_total", stream=collector.STREAM) == 3
    assert await dead_letters(ctx.bus) == []


async def test_a_secret_is_stored_redacted_republished_and_erased(ctx, server, tmp_path):
    await publish(ctx, document(1, text=f"use {SECRET}"))
    await publish(ctx, document(2))
    assert on_disk(tmp_path / "nats-data", SECRET.encode())
    await collect(ctx)
    stored = await rows(ctx)
    assert len(stored) == 2
    payload = json.loads(stored[0]["payload"])
    assert payload["turns"][0]["observation"]["content"] == "use <GITHUB_TOKEN:1>"
    assert payload["turns"][0]["action"]["sampling"]["token_ids"] == []
    assert payload["turns"][0]["action"]["sampling"]["tokens_void"] is True
    left = await bodies(ctx)
    assert len(left) == 2
    assert sum(b"<GITHUB_TOKEN:1>" in body for body in left) == 1
    assert count(ctx, "onward_redactions_total", kind="GITHUB_TOKEN") == 1
    assert count(ctx, "onward_duplicates_total", stream=collector.STREAM) == 0
    await server.stop()
    assert on_disk(tmp_path / "nats-data", SECRET.encode()) == []
    await server.start()


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_a_crash_at_each_step_leaves_one_row_and_no_raw_bytes(
    ctx, server, warehouse, tmp_path, monkeypatch, point
):
    monkeypatch.setattr(collector, "ACK_WAIT_SECONDS", 1.0)
    await publish(ctx, document(1, text=f"use {SECRET}"))
    command = [sys.executable, "-c", CHILD, str(warehouse[1]), server.url, server.token]
    environment = {**os.environ, "ONWARD_CRASHPOINT": f"collector.{point}"}
    died = await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, timeout=60
    )
    assert died.returncode == 137, died.stderr
    assert SECRET not in died.stdout + died.stderr
    await collect(ctx)
    (row,) = await ctx.warehouse.query("SELECT * FROM trajectories_v")
    assert "<GITHUB_TOKEN:1>" in row["payload"]
    (body,) = await bodies(ctx)
    assert b"<GITHUB_TOKEN:1>" in body
    assert await dead_letters(ctx.bus) == []
    await server.stop()
    assert on_disk(tmp_path / "nats-data", SECRET.encode()) == []
    await server.start()


async def test_the_same_id_with_another_body_is_a_conflict(ctx):
    await publish(ctx, document(1, text="first"))
    await collect(ctx)
    await publish(ctx, document(1, text=f"second {SECRET}"), msg_id="other")
    await publish(ctx, document(2))
    await collect(ctx)
    assert [json.loads(r["payload"])["turns"][0]["observation"]["content"] for r in await rows(ctx)] == [
        "first",
        "hello",
    ]
    (letter,) = await dead_letters(ctx.bus)
    assert letter.reason == "conflict"
    assert b"second <GITHUB_TOKEN:1>" in letter.body
    assert not any(SECRET.encode() in body for body in await bodies(ctx))


def of_gateway(turns: int, outcome: dict | None = None) -> dict:
    """A task as a gateway records it: while it is open, and when it has ended."""
    made = document(1, start_timestamp=BEGUN)
    made["turns"] = [{**copy.deepcopy(made["turns"][0]), "turn_id": n + 1} for n in range(turns)]
    for turn in made["turns"]:
        turn["timestamp"] = BEGUN
    made["metadata"]["capture"] = {"source": "gateway", "closed": "close" if outcome else "restart"}
    return made if outcome is None else made | {"metadata": made["metadata"] | {"outcome": outcome}}


BEGUN = utc_text(datetime.now(UTC) - timedelta(minutes=1))
FAILED = {"status": "failed"}


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("backwards", [True, False])
async def test_of_two_recordings_of_one_task_the_fuller_one_is_stored(ctx, at_once, backwards):
    recorded = [of_gateway(1), of_gateway(2), of_gateway(2, FAILED)]
    for number, body in enumerate(reversed(recorded) if backwards else recorded):
        await publish(ctx, body, msg_id=f"recording-{number}")
        if not at_once:
            await collect(ctx)
    await collect(ctx)
    (row,) = await rows(ctx)
    assert (row["n_turns"], json.loads(row["payload"])["metadata"].get("outcome")) == (2, FAILED)
    assert await dead_letters(ctx.bus) == []


@pytest.mark.parametrize(
    "change",
    [
        {"session_id": "another"},
        {"metadata": of_gateway(1)["metadata"] | {"outcome": {"status": "completed_successfully"}}},
        {"metadata": {"model": "m", "outcome": FAILED}},
        {"turns": document(1, text="other words")["turns"]},
    ],
    ids=["session", "outcome", "publisher", "text"],
)
async def test_a_recording_that_contradicts_the_stored_one_is_a_conflict(ctx, change):
    stored = of_gateway(1, FAILED) if "metadata" in change and len(change["metadata"]) > 2 else of_gateway(1)
    await publish(ctx, stored)
    await collect(ctx)
    await publish(ctx, of_gateway(1, FAILED) | change, msg_id="other")
    await collect(ctx)
    (row,) = await rows(ctx)
    assert json.loads(row["payload"])["turns"] == stored["turns"] and row["stream_seq"] == 1
    assert [letter.reason for letter in await dead_letters(ctx.bus)] == ["conflict"]


async def test_poison_goes_to_the_dead_letters_and_the_collector_goes_on(ctx):
    schema = document(3, text=SECRET)
    del schema["metadata"]
    future = document(4, end_timestamp=utc_text(datetime.now(UTC) + timedelta(days=2)))
    old = document(5, start_timestamp=utc_text(datetime.now(UTC) - timedelta(days=31)))
    long = document(6, text="x" * (64 * 1024 + 1))
    many = document(7)
    many["turns"] = [copy.deepcopy(many["turns"][0]) | {"turn_id": i + 1} for i in range(2001)]
    for turn in many["turns"]:
        del turn["action"]["sampling"]
    twice = b'{"a": 1, "a": 2}'
    for body in (b"not json", schema, future, old, long, many, twice):
        await publish(ctx, body, msg_id=f"m{len(body)}-{id(body)}", headers={"X-Note": f"key {SECRET}"})
    await publish(ctx, document(9))
    await collect(ctx)
    letters = await dead_letters(ctx.bus)
    assert [letter.reason for letter in letters] == [
        "not_json", "schema", "future", "expired", "string_too_long", "too_many_turns", "not_json",
    ]  # fmt: skip
    for letter in letters:
        assert SECRET.encode() not in letter.body
        assert SECRET not in str(letter.headers)
    assert letters[0].body == b"not json"
    assert json.loads(letters[1].body)["turns"][0]["observation"]["content"] == "<GITHUB_TOKEN:1>"
    assert json.loads(letters[1].body)["turns"][0]["action"]["sampling"]["token_ids"] == []
    assert letters[6].body == twice
    assert [row["session_id"] for row in await rows(ctx)] == ["s9"]
    assert len(await bodies(ctx)) == 1  # the headers held a secret, so the raw messages are gone
    assert count(ctx, "onward_dead_letters_total", stream=collector.STREAM, reason="schema") == 1


async def test_odd_characters_numbers_and_headers_stop_no_one(ctx):
    def body(number: int, **changes) -> bytes:
        return json.dumps(document(number, **changes)).encode()

    half = body(1, text="HERE").replace(b"HERE", rb"\ud800")
    key = body(2, metadata={"model": "m", "HERE": 1}).replace(b"HERE", rb"\udfff")
    nan = body(3, metadata={"model": "m", "x": float("nan")})
    huge = body(4, metadata={"model": "m", "x": 12345}).replace(b"12345", b"1e999")
    raw_half = body(5, text="HERE").replace(b"HERE", b"\xed\xa0\x80")
    for number, data in enumerate((half, key, nan, huge, raw_half)):
        await publish(ctx, data, msg_id=f"odd{number}")
    await publish(ctx, body(6), msg_id="claim", headers={"Rl-Claim": "\u00e9[/no]\x1b[31m"})
    await publish(ctx, body(7, text="nul \x00, esc \x1b[31m, [/no]"), msg_id="nul", headers={"X": "\u00e9"})
    await collect(ctx)
    assert [letter.reason for letter in await dead_letters(ctx.bus)] == ["claim"]
    quarantine = Quarantine(ctx.objects, QuarantineKeys.from_settings(ctx.settings), ctx.clock)
    held = sorted(await quarantine.list_held(), key=lambda one: int(one.held_id.split("-")[0]))
    assert [one.reason for one in held] == ["not_json", "not_json", "not_finite", "not_finite", "not_json"]
    (stored,) = await rows(ctx)
    text = json.loads(stored["payload"])["turns"][0]["observation"]["content"]
    assert text == "nul \x00, esc \x1b[31m, [/no]"


async def test_a_secret_in_the_headers_of_a_clean_body_is_erased_too(ctx, server, tmp_path):
    await publish(ctx, document(1), headers={"X-Note": f"key {SECRET}"})
    await collect(ctx)
    assert [row["session_id"] for row in await rows(ctx)] == ["s1"]
    assert len(await bodies(ctx)) == 1
    await server.stop()
    assert on_disk(tmp_path / "nats-data", SECRET.encode()) == []
    await server.start()


async def test_a_message_near_the_limit_is_collected(ctx):
    body = document(1)
    body["turns"] = [copy.deepcopy(body["turns"][0]) | {"turn_id": i + 1} for i in range(16)]
    for turn in body["turns"]:
        turn["observation"]["content"] = "word " * 12_000
    assert 0.9 * MAX_BYTES < len(json.dumps(body)) < MAX_BYTES
    await publish(ctx, body)
    await collect(ctx)
    assert (await queries.stored_identities(ctx.warehouse, [body["trajectory_id"]])).keys() == {
        body["trajectory_id"]
    }
