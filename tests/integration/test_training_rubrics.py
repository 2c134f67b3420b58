"""Rubrics jobs by ``agent.rl.training.rubrics.v1``: from the message to the writer in the object store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from rubric_writer import toy_settings
from training_service import TrainingService, training_service

from onward.bus import Bus
from onward.contracts import subjects
from onward.rubrics.policy.writer import load_writer
from onward.rubrics.tasks import make_task
from onward.training.role import trainer as role
from onward.training.role.job_table import JobRecord
from onward.training.writers import WriterFiles, Writers


def message(job_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "rubrics",
        "training_job_id": job_id,
        "timestamp": "2026-01-05T13:00:00Z",
        "requester": "tests",
        "algorithm": "grpo",
        "steps": 2,
        "settings": toy_settings(families=["expense_audit"]),
        **changes,
    }


async def ended(served: TrainingService, *messages: dict[str, Any]) -> dict[str, JobRecord]:
    """Sends requests, runs the trainer until every job has ended, and returns the jobs."""
    running = asyncio.create_task(role.run(served.ctx))
    names = {one["training_job_id"] for one in messages}
    try:
        for one in messages:
            data = json.dumps(one).encode()
            await served.ctx.bus.publish(subjects.TRAINING_RUBRICS, data, msg_id=one["training_job_id"])
        async with asyncio.timeout(200):
            while True:
                found = {record.job_id: record for record, _ in await served.trainer.table.all()}
                states = {found[name].state for name in names & set(found)}
                if names <= set(found) and states <= {"completed", "failed"}:
                    return found
                await asyncio.sleep(0.2)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_rubrics_job_ends_with_a_writer_that_writes(bus: Bus, tmp_path: Path) -> None:
    async with training_service(bus, tmp_path, takes=False) as served:
        found = await ended(served, message("good"), message("bad", settings={"group_size": 1}))
        error = found["bad"].error
        assert error is not None and error.code == "DATA" and "group_size = 1" in error.message
        assert found["good"].state == "completed", found["good"].error
        assert found["good"].commit is None
        (version,) = await Writers(bus, served.ctx.clock).all()
        assert (version.version, version.job_id) == ("rubric-writer-v1", "good")
        metrics = found["good"].progress["metrics"]
        assert (metrics["version"], metrics["why"]) == (version.version, version.why)
        status = (await served.client.get("/training/good/status")).json()
        assert (status["status"], status["metrics"]["current"]["why"]) == ("completed", version.why)
        assert status["artifacts"] == {"final_checkpoint": version.object_prefix}
        assert version.evidence["tasks"] == 128 and version.evidence["skill"] == metrics["skill"]
        released = await Writers(bus, served.ctx.clock).released()
        assert (released is not None) == metrics["released_now"] == version.passed
        folder = await WriterFiles(served.ctx.objects, served.ctx.settings).fetch(version)
        assert load_writer(folder).write(make_task("expense_audit", 1)).criteria


@pytest.mark.long
async def test_the_second_job_is_compared_with_the_released_writer_and_replaces_it(
    bus: Bus, tmp_path: Path
) -> None:
    loose = {"min_skill": -1, "max_invalid": 1, "max_degenerate": 1, "margin": 0.99}
    async with training_service(bus, tmp_path, takes=False, rubrics=loose) as served:
        writers = Writers(bus, served.ctx.clock)
        await ended(served, message("first"))
        (first,) = await writers.all()
        if not first.passed:  # two steps need not be better than the warm start
            await writers.release(first, kind="promoted", expected=None, by="tests", why="to begin with")
        found = await ended(served, message("second", seed=1))
        metrics = found["second"].progress["metrics"]
        gain = metrics["versus_released"]
        assert metrics["released"] == first.version and gain["low"] <= gain["mean"] <= gain["high"]
        assert metrics["skill"] - first.evidence["skill"] == pytest.approx(gain["mean"])
        pointer = await writers.released()
        assert pointer is not None and metrics["released_now"]
        assert (pointer.version, pointer.back) == ("rubric-writer-v2", [first.version])
        same = await ended(served, message("third", seed=1))  # equal files: equal digest, no difference
        assert same["third"].progress["metrics"]["versus_released"] == {"mean": 0, "low": 0, "high": 0}
        digests = [one.digest for one in await writers.all()]
        assert digests[0] != digests[1] == digests[2]
