"""Scored trajectories with signed sampling records, and datasets frozen from them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from onward.capture import provenance
from onward.training.data import dataset

KEY = b"k" * 32


_numbers = itertools.count()


def sampling(digest: str = "d1", **changes: Any) -> dict[str, Any]:
    record = {
        "generation_id": f"g{next(_numbers)}",
        "continues": None,
        "prompt_ids": [1, 2],
        "token_ids": [3, 4],
        "logprobs": [-0.5, -0.25],
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": None,
        "finish_reason": "stop",
        "model_digest": digest,
        **changes,
    }
    return {**record, "signature": provenance.sign(record, KEY)}


def task(
    name: str,
    *samplings: dict[str, Any] | None,
    success: bool = True,
    unparsable: bool = False,
    rewarded: bool = True,
    context: Any = None,
) -> Any:
    turns = [{"action": {"type": "response", **({"sampling": s} if s else {})}} for s in samplings]
    trajectory = {
        "trajectory_id": name,
        "session_id": "s",
        "turns": turns,
        "start_timestamp": "2026-03-01T12:00:00Z",
        "task_context": {"task_type": "lookup", "domain": "general", **(context or {})},
    }
    outcome = {"success": success, "completion": 1.0 if success else 0.25, "unparsable": unparsable}
    raw_total = 0.7 if success else 0.2
    reward = {"metadata": {"raw_total": raw_total, "outcome": outcome}} if rewarded else None
    return dataset.ScoredTrajectory(trajectory, reward)


def freeze(tmp_path: Path, scored: list[Any], **changes: Any) -> dataset.Dataset:
    options: dict[str, Any] = {
        "policy_digest": "d1",
        "signing_key": KEY,
        "sample_size": 100,
        "max_unscored_share": 0.5,
        **changes,
    }
    return dataset.assemble(scored, tmp_path, **options)
