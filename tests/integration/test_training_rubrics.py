"""A rubrics job by ``agent.rl.training.rubrics.v1``: from the message to the writer in the object store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from rubric_writer import toy_settings
from training_service import training_service

from onward.bus import Bus
from onward.contracts import subjects
from onward.rubrics.policy.writer import load_writer
from onward.rubrics.tasks import make_task
from onward.training.role import trainer as role
from onward.training.writers import WriterFiles, Writers


async def test_a_rubrics_job_ends_with_a_writer_that_writes(bus: Bus, tmp_path: Path) -> None:
    message = {
        "kind": "rubrics",
        "training_job_id": "good",
        "timestamp": "2026-01-05T13:00:00Z",
        "requester": "tests",
        "algorithm": "grpo",
        "steps": 2,
        "settings": toy_settings(families=["expense_audit"]),
    }
    async with training_service(bus, tmp_path, takes=False) as served:
        running = asyncio.create_task(role.run(served.ctx))
        try:
            await bus.publish(subjects.TRAINING_RUBRICS, json.dumps(message).encode(), msg_id="good")
            bad = {**message, "training_job_id": "bad", "settings": {"group_size": 1}}
            await bus.publish(subjects.TRAINING_RUBRICS, json.dumps(bad).encode(), msg_id="bad")
            async with asyncio.timeout(200):
                while True:
                    found = {record.job_id: record for record, _ in await served.trainer.table.all()}
                    if len(found) == 2 and all(
                        one.state in ("completed", "failed") for one in found.values()
                    ):
                        break
                    await asyncio.sleep(0.2)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        error = found["bad"].error
        assert error is not None and error.code == "DATA" and "group_size = 1" in error.message
        assert found["good"].state == "completed", found["good"].error
        assert found["good"].commit is None
        (version,) = await Writers(bus, served.ctx.clock).all()
        assert (version.version, version.job_id) == ("rubric-writer-v1", "good")
        metrics = found["good"].progress["metrics"]
        assert (metrics["version"], metrics["why"]) == (version.version, version.why)
        assert version.evidence["tasks"] == 128 and version.evidence["skill"] == metrics["skill"]
        released = await Writers(bus, served.ctx.clock).released()
        assert (released is not None) == metrics["released_now"] == version.passed
        folder = await WriterFiles(served.ctx.objects, served.ctx.settings).fetch(version)
        assert load_writer(folder).write(make_task("expense_audit", 1)).criteria
