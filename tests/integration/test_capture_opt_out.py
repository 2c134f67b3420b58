"""What opted out is dropped before storage, and counted once."""

import json

import pytest
from collector_world import bodies, collect, count, document, publish, rows
from quarantine_world import (  # noqa: F401
    SECRET,
    ctx_fixture,
    make,
    quarantine,
    server_fixture,
    warehouse_fixture,
)

from onward.bus.deadletter import dead_letters
from onward.capture.collecting import collector

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        ("session:s1", "s2"),
        ("agent:tes*", "s2"),
        ("user:a1", "s2"),
        ("nobody, s1", "s2"),
    ],
)
async def test_opt_out_by_session_agent_and_user_drops_before_storage(ctx, warehouse, patterns, kept):
    ctx = make(ctx.bus, warehouse, opt_out=patterns)
    first = document(1, text=f"use {SECRET}", agent_id="tester")
    first["metadata"]["user_hash"] = "a1"
    wrong = {**first, "turns": []}
    await publish(ctx, first)
    await publish(ctx, wrong, msg_id="wrong")
    await publish(ctx, document(2))
    await collect(ctx)
    assert [row["session_id"] for row in await rows(ctx)] == [kept]
    assert len(await bodies(ctx)) == 1
    assert await dead_letters(ctx.bus) == []
    assert await quarantine(ctx).list_held() == []
    assert count(ctx, "onward_opted_out_total") == 2
    entry = await ctx.bus.bucket("rl_capture").get("opted_out")
    assert json.loads(entry.value)["count"] == 2


async def test_an_opted_out_message_that_comes_again_counts_once(ctx):
    assert await collector.count_opted_out(ctx.bus, [4, 5]) == 2
    assert await collector.count_opted_out(ctx.bus, [5, 6]) == 1
    entry = await ctx.bus.bucket("rl_capture").get("opted_out")
    assert json.loads(entry.value) == {"count": 3, "recent": [4, 5, 6]}
