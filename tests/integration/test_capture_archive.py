"""Status, deployments and outcomes reach their tables once each: real NATS, real chDB."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

from onward import config
from onward.api import status
from onward.bus import Bus
from onward.capture.collecting import event_archiver
from onward.clock import SystemClock
from onward.context import Context
from onward.contracts import canonical_json, examples, subjects
from onward.telemetry.alerts import Alerts
from onward.telemetry.metrics import Metrics
from onward.warehouse import EmbeddedWarehouse, Objects, Warehouse, queries

DEPLOYED, OUTCOME, STATUS = examples.MODEL_DEPLOYED, examples.OUTCOME, examples.TRAINING_STATUS


def context(bus: Bus, warehouse: Warehouse, folder: Path) -> Context:
    settings = config.load(environ={}, overrides={"data_dir": folder})
    metrics, clock = Metrics(), SystemClock()
    alerts = Alerts(bus, clock, metrics)
    return Context(settings, clock, bus, warehouse, Objects.open(folder / "objects"), metrics, alerts)


async def publish_all(bus: Bus, attempt: str) -> None:
    """Two states of a job, one deployment, three outcomes; the same events whatever ``attempt``."""
    for number, state in enumerate(("running", "completed")):
        minute = f"2026-01-05T14:0{number}:00.000Z"
        progress = {
            "current_epoch": number + 1,
            "current_step": 10 * number,
            "percent_complete": 50.0 * number,
        }
        body = {**STATUS, "timestamp": minute, "status": state, "progress": progress}
        await bus.publish(subjects.TRAINING_STATUS, canonical_json(body), msg_id=f"{attempt}-status-{number}")
    await bus.publish(subjects.MODEL_DEPLOYED, canonical_json(DEPLOYED), msg_id=f"{attempt}-deployed")
    for number in range(3):
        body = {**OUTCOME, "outcome_id": f"o-{number}", "session_id": f"s-{number}", "value": number / 2}
        await bus.publish(subjects.OUTCOME, canonical_json(body), msg_id=f"{attempt}-outcome-{number}")


async def caught_up(bus: Bus, role: asyncio.Task[None]) -> None:
    async with asyncio.timeout(20):
        for copy in event_archiver.COPIES:
            while True:
                assert not role.done(), role
                with contextlib.suppress(Exception):
                    info = await bus.js.consumer_info(copy.stream, copy.durable)
                    if not info.num_pending and not info.num_ack_pending:
                        break
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def archiving(ctx: Context):
    role = asyncio.create_task(event_archiver.run(ctx))
    try:
        yield role
    finally:
        role.cancel()
        await asyncio.gather(role, return_exceptions=True)


async def test_events_are_stored_once_however_often_they_come(bus: Bus, tmp_path: Path) -> None:
    embedded = EmbeddedWarehouse(tmp_path)
    w = await embedded.start()
    ctx = context(bus, w, tmp_path)
    try:
        await publish_all(bus, "first")
        async with archiving(ctx) as role:
            await caught_up(bus, role)
            await publish_all(bus, "again")  # other message ids: the server takes them, the views do not
            await bus.publish(subjects.MODEL_DEPLOYED, b'{"half": ', msg_id="broken")
            far = {**OUTCOME, "outcome_id": "far", "timestamp": "9999-01-05T09:00:07.300Z"}
            await bus.publish(subjects.OUTCOME, canonical_json(far), msg_id="far")
            secret = "ghp_" + "a1B2" * 9
            failed = {
                **STATUS,
                "timestamp": "2026-01-05T14:02:00.000Z",
                "status": "failed",
                "error": {"code": "INFRA", "message": f"login with {secret} failed"},
            }
            await bus.publish(subjects.TRAINING_STATUS, canonical_json(failed), msg_id="failed")
            await caught_up(bus, role)
        for copy in event_archiver.COPIES:  # acks may be lost: everything comes a second time
            await bus.js.delete_consumer(copy.stream, copy.durable)
        async with archiving(ctx) as role:
            await caught_up(bus, role)

        counts = await queries.counts(w)
        assert (counts["status_events"], counts["deployments"], counts["outcomes"]) == (3, 1, 3)
        states = await w.query("SELECT * FROM status_v ORDER BY stream_seq")
        assert [(row["status"], row["current_epoch"], row["current_step"]) for row in states] == [
            ("running", 1, 0), ("completed", 2, 10), ("failed", 1, 0),
        ]  # fmt: skip
        assert json.loads(states[0]["payload"])["metrics"] == STATUS["metrics"]
        assert "INFRA" in states[2]["payload"] and secret not in states[2]["payload"]
        (deployed,) = await w.query("SELECT * FROM deployments_v")
        assert (deployed["model_id"], deployed["event"], deployed["release_id"], deployed["traffic"]) == (
            "agent-zero-rl-v2.4", "candidate", "release-3", 10.0,
        )  # fmt: skip
        assert json.loads(deployed["payload"]) == DEPLOYED
        outcomes = await w.query("SELECT * FROM outcomes_v ORDER BY stream_seq")
        assert [(row["session_id"], row["value"], row["weight"]) for row in outcomes] == [
            ("s-0", 0.0, 0.1), ("s-1", 0.5, 0.1), ("s-2", 1.0, 0.1),
        ]  # fmt: skip
        assert {(row["release_id"], row["arm"]) for row in outcomes} == {("release-3", "candidate")}
        # One dead letter for each, though both came twice.
        assert (await bus.js.stream_info("RL_DLQ")).state.messages == 2
        found = await status.collect(bus, w, ctx.settings, ctx.clock)
        assert found["counts"]["outcomes"] == 3
    finally:
        await embedded.stop()
