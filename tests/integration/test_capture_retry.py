"""Held messages are tried again and dropped: exactly one trajectory, or none and an audit entry."""

import json

import pytest
from collector_world import bodies, collect, count, document, publish, rows
from quarantine_world import (  # noqa: F401
    SECRET,
    assert_nowhere,
    break_redaction,
    ctx_fixture,
    old_document,
    onward,
    quarantine,
    retry_and_die,
    server_fixture,
    warehouse_fixture,
)

from onward.bus import Message
from onward.bus.deadletter import dead_letters
from onward.capture.collecting import collector
from onward.capture.collecting.inspection import Fate, Inspector
from onward.capture.collecting.quarantine_retry import retry
from onward.capture.opt_out import OptOut
from onward.contracts import subjects
from onward.errors import NotFoundError
from onward.redaction import redact_trajectory

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_retry_after_the_fault_is_gone_stores_exactly_one_trajectory(
    ctx, server, warehouse, monkeypatch
):
    break_redaction(monkeypatch)
    await publish(ctx, document(1, text=f"use {SECRET}"))
    await collect(ctx)
    (held,) = await quarantine(ctx).list_held()
    still = await retry(ctx.bus, quarantine(ctx), held.held_id, ctx.clock, Inspector())
    assert (still.fate, still.reason) == (Fate.HOLD, "redaction")
    monkeypatch.setattr("onward.redaction.redactor.redact_trajectory", redact_trajectory)
    code, output = await onward(ctx, server, "retry", held.held_id)
    assert (code, output) == (0, f"{held.held_id}: published clean.\n")
    code, output = await onward(ctx, server, "retry", held.held_id)
    assert code == 2 and "Nothing is held under" in output
    await collect(ctx)
    (row,) = await rows(ctx)
    assert "use <GITHUB_TOKEN:1>" in row["payload"]
    assert count(ctx, "onward_duplicates_total", stream=collector.STREAM) == 0
    assert await quarantine(ctx).list_held() == []
    await assert_nowhere(server, warehouse[1])


@pytest.mark.parametrize("point", ["sent", pytest.param("dropped", marks=pytest.mark.long)])
async def test_a_crash_while_retrying_loses_and_doubles_nothing(ctx, server, warehouse, monkeypatch, point):
    with monkeypatch.context() as patch:
        break_redaction(patch)
        await publish(ctx, document(1, text=f"use {SECRET}"))
        await collect(ctx)
    (held,) = await quarantine(ctx).list_held()
    await retry_and_die(ctx, server, f"quarantine.{point}")
    await collect(ctx)
    code, output = await onward(ctx, server, "retry", "--all")
    assert code == 0, output
    await collect(ctx)
    (row,) = await rows(ctx)
    assert "<GITHUB_TOKEN:1>" in row["payload"]
    assert len(await bodies(ctx)) == 1
    assert await quarantine(ctx).list_held() == []
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
    (held,) = await quarantine(ctx).list_held()
    result = await retry(ctx.bus, quarantine(ctx), held.held_id, ctx.clock, Inspector())
    assert (result.fate, result.reason) == (Fate.DEAD_LETTER, "schema")
    (letter,) = await dead_letters(ctx.bus)
    assert b"use <GITHUB_TOKEN:1>" in letter.body
    assert await quarantine(ctx).list_held() == []


async def test_what_was_held_for_longer_than_a_trajectory_may_be_old_is_still_stored(ctx):
    """Held for a defect of the redactor, repaired weeks later: its age is that of its arrival."""
    body, came = old_document(ctx.clock.now())
    message = Message(json.dumps(body).encode(), {}, subjects.TRAJECTORY, 7, 1, came)
    held = await quarantine(ctx).hold(collector.STREAM, message, "redaction")
    result = await retry(ctx.bus, quarantine(ctx), held.held_id, ctx.clock, Inspector())
    assert (result.fate, result.reason) == (Fate.STORE, "")
    await collect(ctx)
    (row,) = await rows(ctx)
    assert "use <GITHUB_TOKEN:1>" in row["payload"]
    assert await dead_letters(ctx.bus) == []


async def test_a_retry_honours_an_opt_out_that_came_later(ctx, monkeypatch):
    with monkeypatch.context() as patch:
        break_redaction(patch)
        await publish(ctx, document(1, text=f"use {SECRET}"))
        await collect(ctx)
    (held,) = await quarantine(ctx).list_held()
    result = await retry(
        ctx.bus, quarantine(ctx), held.held_id, ctx.clock, Inspector(opt_out=OptOut.parse("session:s1"))
    )
    assert result.fate is Fate.DROP
    await collect(ctx)
    assert await rows(ctx) == []
    assert await quarantine(ctx).list_held() == []


async def test_dropping_asks_first_and_is_audited(ctx, server, monkeypatch):
    break_redaction(monkeypatch)
    await publish(ctx, document(1, text=f"use {SECRET}"))
    await collect(ctx)
    (held,) = await quarantine(ctx).list_held()
    code, output = await onward(ctx, server, "drop", held.held_id)
    assert code == 2 and "--yes" in output
    code, output = await onward(ctx, server, "drop")
    assert code == 2 and "--all" in output
    assert len(await quarantine(ctx).list_held()) == 1
    code, output = await onward(ctx, server, "show", held.held_id, "--json")
    assert code == 0 and json.loads(output)["reason"] == "redaction"
    code, output = await onward(ctx, server, "show", held.held_id)
    assert code == 0 and f"held_id        {held.held_id}" in output
    code, output = await onward(ctx, server, "drop", held.held_id, "--yes")
    assert (code, output) == (0, f"{held.held_id}: dropped for good.\n")
    assert await quarantine(ctx).list_held() == []
    entry = json.loads((await ctx.bus.js.get_msg("RL_AUDIT", seq=1)).data or b"")
    assert (entry["event"], entry["held_id"], entry["size"]) == (
        "quarantine.drop", held.held_id, held.size,
    )  # fmt: skip
    code, output = await onward(ctx, server, "list")
    assert (code, output) == (0, "Nothing is held.\n")
