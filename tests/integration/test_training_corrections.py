"""From what a person wrote, as a message on the bus, to an adapter that was trained on it by dpo."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from reward_world import (
    publish,
    reward_ctx,  # noqa: F401 - the fixture ctx
    reward_warehouse,  # noqa: F401 - the fixture embedded
    rewarded,
    running,
    said,
    say,
    trajectory,
    until,
)

from onward.capture import provenance
from onward.capture.collecting import collector
from onward.clock import utc_text
from onward.contracts import TrainingRequest, Trajectory, encode, subjects
from onward.coordinator.coordinator import Coordinator
from onward.reward.role import rewarder
from onward.training.data import dataset
from onward.training.role import trainer
from onward.training.role.job_table import JobRecord
from onward.warehouse import reward_queries

pytestmark = pytest.mark.asyncio(loop_scope="module")


def sampled(number: int, digest: str, key: bytes) -> Trajectory:
    """One question and one answer, with the tokens of a policy behind it."""
    record: dict[str, Any] = {
        "generation_id": f"g{number}", "continues": None, "prompt_ids": [5, 6, 7],
        "token_ids": [8 + number, 9], "logprobs": [-5.0, -5.0], "temperature": 1.0, "top_p": 1.0,
        "top_k": None, "finish_reason": "stop", "model_digest": digest,
    }  # fmt: skip
    turn = {
        "turn_id": 1,
        "timestamp": "2026-01-01T00:00:00Z",
        "observation": {"type": "user_message", "content": "Which way?"},
        "action": {
            "type": "response",
            "raw_response": "left",
            "sampling": {**record, "signature": provenance.sign(record, key)},
        },
        "result": {"success": True, "output": "ok", "error": None},
    }
    return trajectory(number, turns=[turn])


async def test_a_correction_on_the_bus_becomes_a_pair_of_a_dpo_job(
    ctx: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from onward.lm.policy import Policy
    from onward.lm.tiny import build_tiny

    base = build_tiny(tmp_path_factory.mktemp("base"), ["left", "right", "Which way?"], vocab=300, hidden=32,
                      layers=2, heads=2, kv_heads=1, intermediate=64)  # fmt: skip
    digest = Policy.load(base).base_digest
    ctx = dataclasses.replace(ctx, base_model=base)
    ctx.settings.run_dir.mkdir(parents=True, exist_ok=True)
    key = provenance.load_key(ctx.settings.run_dir, create=True)
    arms = [{"arm": "current", "model_id": "m", "adapter_digest": None, "model_digest": digest, "weight": 1}]
    await ctx.bus.bucket("rl_releases").put("desired", json.dumps({"arms": arms}).encode())
    async with running(collector.run(ctx), rewarder.run(ctx)):
        await publish(ctx.bus, *(sampled(number, digest, key) for number in (1, 2, 3)))
        await say(
            ctx.bus,
            said("f1", trajectory_id="t1", signal="correction", comment="right"),
            said("f2", session_id="s2", signal="correction", comment="right"),
            said("f3", trajectory_id="t3", signal="correction", comment="ask jane.doe@acme.com"),
        )
        await until(rewarded(ctx, 3))

        async def heard() -> bool:
            return len(await reward_queries.feedback_by_id(ctx.warehouse, ["f1", "f2", "f3"])) == 3

        await until(heard)
    assert await Coordinator(ctx)._corrected(digest, 0) == 2, "the e-mail address was redacted"

    asked = TrainingRequest.model_validate(
        {
            "training_job_id": "job-1",
            "timestamp": utc_text(ctx.clock.now()),
            "requester": "tests",
            "trigger_reason": "manual",
            "training_config": {
                "algorithm": "dpo",
                "base_model": ctx.settings.model.base,
                "dataset": {"source": "clickhouse", "sample_size": 10},
                "hyperparameters": {"epochs": 1},
            },
        }
    )
    jobs = ctx.bus.bucket("rl_jobs")

    async def ended() -> JobRecord | None:
        entry = await jobs.get("job.job-1")
        record = None if entry is None else JobRecord.model_validate_json(entry.value)
        return record if record is not None and record.state in ("completed", "failed") else None

    async with running(trainer.run(ctx)), asyncio.timeout(120):
        await ctx.bus.publish(subjects.TRAINING_REQUEST, encode(asked), msg_id="job-1")
        while (job := await ended()) is None:
            await asyncio.sleep(0.05)
    assert job.state == "completed", job.error
    folder = ctx.settings.data_dir / "jobs" / "job-1"
    lines = {line["trajectory_id"]: line for line in dataset.read(folder / dataset.FILE)}
    assert {name: line.get("correction") for name, line in lines.items()} == {
        "t1": {"answer": "right", "generation_id": "g1"},
        "t2": {"answer": "right", "generation_id": "g2"},
        "t3": None,
    }
    assert json.loads((folder / "frozen.json").read_bytes())["excluded"] == {"correction_redacted": 1}
    assert job.progress["metrics"]["correction_pairs"] == 2
    assert job.commit is not None
