"""Work of one policy on the bus, as its gateway signs it, and a request to train on it."""

from __future__ import annotations

import json
from typing import Any

from reward_world import trajectory

from onward.capture import provenance
from onward.clock import utc_text
from onward.context import Context
from onward.contracts import TrainingRequest, Trajectory

DIGEST = "d" * 64


def sampled(number: int, key: bytes, *, answer: str = "left", **context: Any) -> Trajectory:
    """One question and one answer, with the tokens of the policy behind it; every third is a failure."""
    record: dict[str, Any] = {
        "generation_id": f"g{number}", "continues": None, "prompt_ids": [5, 6, 7],
        "token_ids": [8 + number, 9], "logprobs": [-5.0, -5.0], "temperature": 1.0, "top_p": 1.0,
        "top_k": None, "finish_reason": "stop", "model_digest": DIGEST,
    }  # fmt: skip
    turn = {
        "turn_id": 1,
        "timestamp": "2026-01-01T00:00:00Z",
        "observation": {"type": "user_message", "content": "Which way?"},
        "action": {
            "type": "response",
            "raw_response": answer,
            "sampling": {**record, "signature": provenance.sign(record, key)},
        },
        "result": {"success": True, "output": "ok", "error": None},
    }
    task = {
        "task_id": f"k{number}", "instructions": "do it", "domain": "general", "task_type": "sum", **context,
    }  # fmt: skip
    return trajectory(number, turns=[turn], task_context=task)


async def serve(ctx: Context) -> bytes:
    """Makes the policy the one that serves; returns the key with which its gateway signs."""
    arm = {"arm": "current", "model_id": "m", "adapter_digest": None, "model_digest": DIGEST, "weight": 1}
    await ctx.bus.bucket("rl_releases").put("desired", json.dumps({"arms": [arm]}).encode())
    ctx.settings.run_dir.mkdir(parents=True, exist_ok=True)
    return provenance.load_key(ctx.settings.run_dir, create=True)


def asked_for(ctx: Context, **dataset: Any) -> TrainingRequest:
    """A request of ``reinforce``; ``dataset`` adds to its data."""
    return TrainingRequest.model_validate(
        {
            "training_job_id": "job-1",
            "timestamp": utc_text(ctx.clock.now()),
            "requester": "tests",
            "trigger_reason": "manual",
            "training_config": {
                "algorithm": "reinforce",
                "base_model": ctx.settings.model.base,
                "dataset": {"source": "nats_stream", "sample_size": 10, **dataset},
                "hyperparameters": {"epochs": 1},
            },
        }
    )
