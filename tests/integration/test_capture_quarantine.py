"""What cannot be redacted is held encrypted and listed; the raw bytes are nowhere."""

import asyncio
import errno
import json
import stat
from pathlib import Path

import pytest
from collector_world import bodies, collect, count, document, on_disk, publish, rows
from quarantine_world import (  # noqa: F401
    SECRET,
    assert_nowhere,
    break_redaction,
    crash,
    ctx_fixture,
    make,
    onward,
    quarantine,
    server_fixture,
    warehouse_fixture,
)

from onward.bus.deadletter import dead_letters
from onward.capture import claim_check
from onward.capture.collecting import collector, late_bodies
from onward.capture.collecting.inspection import Fate, Inspector
from onward.capture.collecting.quarantine import KEY_FILE, Quarantine
from onward.capture.collecting.quarantine_retry import retry
from onward.capture.recorder import Recorder
from onward.contracts import MAX_BYTES, canonical_json, subjects
from onward.errors import BusError, ObjectError
from onward.redaction import redact_trajectory

pytestmark = pytest.mark.asyncio(loop_scope="module")
DEEP = (
    b'{"trajectory_id": "00000000-0000-4000-8000-000000000077", "a":'
    + b"[" * 60
    + (b'"' + SECRET.encode() + b'"' + b"]" * 60 + b"}")
)


def first_failure_is_final(monkeypatch) -> None:
    monkeypatch.setattr("onward.capture.collecting.collector.POISON_AFTER", 1)
    monkeypatch.setattr("onward.bus.consumer.POISON_AFTER", 1)


def record(server, folder) -> None:
    """One clean trajectory through a recorder whose outbox is in the data folder."""
    with Recorder(folder / "outbox.db", nats_url=server.url, nats_token=server.token) as recorder:
        with recorder.task(f"use {SECRET}") as task:
            task.turn(observation="hello", action="done", result={"success": True})
        assert recorder.flush()


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
    held = await quarantine(ctx).list_held()
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


@pytest.mark.parametrize("point", [pytest.param("before_hold", marks=pytest.mark.long), "held", "erased"])
async def test_a_crash_while_holding_loses_and_doubles_nothing(ctx, server, warehouse, monkeypatch, point):
    monkeypatch.setattr(collector, "ACK_WAIT_SECONDS", 1.0)
    await publish(ctx, document(1, text=f"use {SECRET}"))
    await crash(server, warehouse[1], f"collector.{point}")
    break_redaction(monkeypatch)
    await collect(ctx)
    (held,) = await quarantine(ctx).list_held()
    assert await bodies(ctx) == []
    _, message = await quarantine(ctx).open(held.held_id)
    assert json.loads(message.data)["turns"][0]["observation"]["content"] == f"use {SECRET}"
    await assert_nowhere(server, warehouse[1])


async def test_a_poisonous_row_is_held_and_not_left_raw(ctx, server, warehouse, monkeypatch):
    """A defect behind redaction used to end as a dead letter without a body, the raw message unread."""

    def broken(*_, **__):
        raise KeyError("row")

    first_failure_is_final(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr("onward.capture.collecting.trajectory_row.row", broken)
        await publish(ctx, document(1, text=f"use {SECRET}"))
        await collect(ctx)
    (held,) = await quarantine(ctx).list_held()
    assert (held.reason, held.error) == ("handler_error", "KeyError")
    assert await dead_letters(ctx.bus) == []
    await retry(ctx.bus, quarantine(ctx), held.held_id, ctx.clock, Inspector())
    await collect(ctx)
    assert len(await rows(ctx)) == 1
    await assert_nowhere(server, warehouse[1])


def large() -> dict:
    body = document(1, text=f"use {SECRET}")
    body["turns"] = [body["turns"][0] | {"turn_id": i + 1} for i in range(30)]
    for turn in body["turns"]:
        turn["result"] = {"success": True, "output": "word " * 10_000}
    return body


async def publish_large(ctx) -> bytes:
    data = canonical_json(large())
    claim = await claim_check.publish(
        ctx.bus, ctx.objects, ctx.clock.now(), data, subject=subjects.TRAJECTORY, msg_id="large", headers={}
    )
    assert claim is not None
    return data


@pytest.mark.parametrize("size", ["small", "large"])
async def test_a_message_that_cannot_be_published_again_is_held_and_not_left_raw(
    ctx, server, warehouse, monkeypatch, size
):
    """Only a fault before the rows were stored used to be held; one after them left the raw message."""

    def broken(*_, **__):
        raise KeyError("publish")

    first_failure_is_final(monkeypatch)
    if size == "large":
        await publish_large(ctx)
    else:
        await publish(ctx, document(1, text=f"use {SECRET}"))
    with monkeypatch.context() as patch:
        patch.setattr(collector, "republish", broken)
        await collect(ctx)
    (held,) = await quarantine(ctx).list_held()
    assert (held.reason, held.error) == ("handler_error", "KeyError")
    assert held.trajectory_id == document(1)["trajectory_id"]
    assert (await dead_letters(ctx.bus), await bodies(ctx)) == ([], [])
    assert await ctx.objects.list("claims") == []
    await assert_nowhere(server, warehouse[1])


async def test_a_message_that_can_be_neither_stored_nor_held_waits_and_others_pass(ctx, monkeypatch):
    first_failure_is_final(monkeypatch)
    monkeypatch.setattr(collector, "STUCK_SECONDS", 0.1)
    erase, calls = collector.erase, []

    async def broken_at_first(bus, sequence):
        calls.append(sequence)
        if len(calls) <= 3:  # twice for the message, once more when it comes again
            raise KeyError("erase")
        await erase(bus, sequence)

    monkeypatch.setattr(collector, "erase", broken_at_first)
    await publish(ctx, document(1, text=f"use {SECRET}"))
    await publish(ctx, document(2))
    await collect(ctx)
    assert await dead_letters(ctx.bus) == []
    assert len(calls) > 3 and len(await rows(ctx)) == 2
    assert not [body for body in await bodies(ctx) if SECRET.encode() in body]


async def test_a_raw_claimed_body_that_cannot_be_deleted_yet_is_deleted_later(
    ctx, server, warehouse, monkeypatch
):
    """An error of the disk used to be taken for a fault of the message, which was given up, raw."""
    first_failure_is_final(monkeypatch)
    await publish_large(ctx)
    unlink, refused = Path.unlink, []

    def read_only_at_first(path, missing_ok=False):
        if "claims" in path.parts and not path.name.startswith(".draft") and len(refused) < 2:
            refused.append(path)
            raise OSError(errno.EROFS, "Read-only file system")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", read_only_at_first)
    await collect(ctx)
    assert len(refused) == 2
    assert (await dead_letters(ctx.bus), await quarantine(ctx).list_held()) == ([], [])
    (row,) = await rows(ctx)
    assert row["n_turns"] == 30
    await assert_nowhere(server, warehouse[1])


async def test_a_claimed_body_that_cannot_be_read_yet_is_read_later(ctx, monkeypatch):
    first_failure_is_final(monkeypatch)
    await publish_large(ctx)
    open_file, refused = Path.open, []

    def failing_at_first(path, *given, **named):
        if "claims" in path.parts and given == ("rb",) and len(refused) < 2:
            refused.append(path)
            raise OSError(errno.EIO, "Input/output error")
        return open_file(path, *given, **named)

    monkeypatch.setattr(Path, "open", failing_at_first)
    await collect(ctx)
    assert len(refused) == 2
    assert len(await rows(ctx)) == 1 and await dead_letters(ctx.bus) == []


async def test_a_large_body_is_held_whole_and_once_even_when_its_message_comes_again(
    ctx, server, warehouse, monkeypatch
):
    """The body is taken out of the object store before the message is erased; in between all may stop."""
    data = await publish_large(ctx)
    break_redaction(monkeypatch)
    monkeypatch.setattr(late_bodies, "CLAIM_TRIES", 1)
    erase, calls = collector.erase, []

    async def away_once(bus, sequence):
        calls.append(sequence)
        if len(calls) == 1:
            raise BusError("away")
        await erase(bus, sequence)

    monkeypatch.setattr(collector, "erase", away_once)
    await collect(ctx)
    assert len(calls) == 2
    (held,) = await quarantine(ctx).list_held()
    assert held.size == len(data)
    assert await dead_letters(ctx.bus) == []
    assert await bodies(ctx) == []
    monkeypatch.setattr("onward.redaction.redactor.redact_trajectory", redact_trajectory)
    assert (await retry(ctx.bus, quarantine(ctx), held.held_id, ctx.clock, Inspector())).fate is Fate.STORE
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
    hold, refused, twice = Quarantine.hold, [], asyncio.Event()

    async def watched(*given):
        try:
            return await hold(*given)
        except ObjectError:
            refused.append(1)
            if len(refused) == 2:  # it came again after the first refusal
                twice.set()
            raise

    monkeypatch.setattr(Quarantine, "hold", watched)
    task = asyncio.create_task(collector.run(ctx))
    await asyncio.wait_for(twice.wait(), 20)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(await bodies(ctx)) == 1
    assert await dead_letters(ctx.bus) == []
    key.unlink() if good is None else key.write_text(good)
    await collect(ctx)
    assert len(await quarantine(ctx).list_held()) == 1
    assert await bodies(ctx) == []


async def test_status_shows_what_is_held_and_what_was_dropped(ctx, server, warehouse, monkeypatch):
    ctx = make(ctx.bus, warehouse, opt_out="s2")
    break_redaction(monkeypatch)
    await publish(ctx, document(1, text=f"use {SECRET}"))
    await publish(ctx, document(2))
    await collect(ctx)
    code, output = await onward(ctx, server, group="status")
    assert code == 0
    assert "1 held in quarantine" in output
    assert "Opted out: 1 dropped before storage." in output
