"""Scored trajectories with signed sampling records, and datasets frozen from them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from onward.capture import provenance
from onward.training.data import dataset
from onward.training.data.admission import AdmissionRules
from onward.training.data.selection import Limits, Selection
from onward.training.spec.algorithms import ALGORITHMS

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
    """What a job freezes of ``scored``; ``changes`` are its rules and limits."""
    algorithm = changes.get("algorithm", "reinforce")
    text = ALGORITHMS[algorithm].text_is_enough
    staleness = {changes.get("policy_digest", "d1"): 0}
    if changes.get("older_digest"):
        staleness[changes["older_digest"]] = 1
    rules = AdmissionRules(
        None if text else staleness, KEY, changes.get("filters", {}), text, changes.get("dense", False)
    )
    limits = Limits(
        changes.get("sample_size", 100),
        changes.get("max_unscored_share", 0.5),
        changes.get("max_masked_share", 0.5),
    )
    selection = Selection(rules, algorithm, limits, changes.get("mix"))
    selection.add(scored)
    return selection.finish(tmp_path, changes.get("left_out"))
