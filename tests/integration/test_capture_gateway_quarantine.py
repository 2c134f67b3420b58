"""What the gateway records and cannot redact is held like what the collector cannot."""

import contextlib
import json

import pytest
from collector_world import bodies, collect, count, document, publish, rows
from quarantine_world import (  # noqa: F401
    SECRET,
    ask_and_close,
    assert_nowhere,
    break_redaction,
    ctx_fixture,
    gateway,
    make,
    old_document,
    onward,
    quarantine,
    retry_and_die,
    server_fixture,
    warehouse_fixture,
)

from onward.bus.deadletter import dead_letters
from onward.capture.collecting.inspection import Fate, Inspector
from onward.capture.collecting.quarantine import Quarantine, QuarantineKeys
from onward.capture.collecting.quarantine_retry import retry
from onward.capture.opt_out import OptOut
from onward.clock import ManualClock
from onward.errors import NotFoundError, ObjectError
from onward.redaction import redact_trajectory

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_what_the_gateway_cannot_redact_is_held_encrypted_and_a_retry_stores_it_once(
    ctx, server, warehouse, monkeypatch
):
    with monkeypatch.context() as patch:
        break_redaction(patch)
        async with gateway(ctx) as (_, client):
            name = await ask_and_close(client, f"use {SECRET}")
    (held,) = await quarantine(ctx).list_held()
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
        still = await retry(ctx.bus, quarantine(ctx), held.held_id, ctx.clock, Inspector())
        assert (still.fate, still.reason) == (Fate.HOLD, "redaction")
    await retry_and_die(ctx, server, "quarantine.sent")
    code, output = await onward(ctx, server, "retry", held.held_id)
    assert (code, output) == (0, f"{held.held_id}: published clean.\n")
    await collect(ctx)
    (row,) = await rows(ctx)
    assert row["trajectory_id"] == name and "use <GITHUB_TOKEN:1>" in row["payload"]
    (body,) = await bodies(ctx)
    assert json.loads(body)["turns"][0]["action"]["sampling"]["tokens_void"]
    assert await quarantine(ctx).list_held() == []
    await assert_nowhere(server, warehouse[1])


async def test_what_the_gateway_held_for_longer_than_a_trajectory_may_be_old_is_still_stored(ctx):
    body, came = old_document(ctx.clock.now())
    then = Quarantine(ctx.objects, QuarantineKeys.from_settings(ctx.settings), ManualClock(came))
    held = await then.hold_trajectory(
        body["trajectory_id"], json.dumps(body).encode(), "redaction", "KeyError"
    )
    assert (await retry(ctx.bus, quarantine(ctx), held.held_id, ctx.clock, Inspector())).fate is Fate.STORE
    await collect(ctx)
    assert len(await rows(ctx)) == 1 and await dead_letters(ctx.bus) == []


async def test_a_fault_of_the_gateways_redactor_that_passes_holds_nothing(ctx, monkeypatch):
    calls = []

    def once(document, **how):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("busy")
        return redact_trajectory(document, **how)

    async with gateway(ctx) as (running, client):
        # No journal: the first call is the record's.
        monkeypatch.setattr(running.capture.writer, "_changed", list)
        monkeypatch.setattr("onward.redaction.redactor.redact_trajectory", once)
        await ask_and_close(client, f"use {SECRET}")
    assert await quarantine(ctx).list_held() == [] and len(calls) >= 2


async def test_a_store_that_is_away_keeps_what_the_gateway_could_not_redact(ctx, monkeypatch):
    async def away(*_, **__):
        raise ObjectError("away")

    break_redaction(monkeypatch)
    async with gateway(ctx) as (_, client):
        with monkeypatch.context() as patch:
            patch.setattr(Quarantine, "hold_trajectory", away)
            body = {"model": "onward", "messages": [{"role": "user", "content": f"use {SECRET}"}]}
            await client.post("/v1/chat/completions", json=body, headers={"Onward-Session": "s1"})
            refused = await client.post("/v1/sessions/s1/close", json={"status": "failed"})
            assert refused.status_code == 503
    assert [held.source for held in await quarantine(ctx).list_held()] == ["gateway"]


async def test_a_retry_of_the_gateways_honours_an_opt_out_that_came_later(ctx, monkeypatch):
    with monkeypatch.context() as patch:
        break_redaction(patch)
        async with gateway(ctx) as (_, client):
            await ask_and_close(client, f"use {SECRET}")
    (held,) = await quarantine(ctx).list_held()
    inspector = Inspector(opt_out=OptOut.parse("session:s1"))
    for _ in range(2):
        with contextlib.suppress(NotFoundError):
            assert (
                await retry(ctx.bus, quarantine(ctx), held.held_id, ctx.clock, inspector)
            ).fate is Fate.DROP
    assert await quarantine(ctx).list_held() == [] and await bodies(ctx) == []
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
