"""The frozen dataset of a job: one content-addressed file, made once, read only by the job child.

A line is one trajectory with the calls that its policy sampled. Rows are admitted by rule, and each
refusal is counted under a name, because silently training on less, or on something else, is how
loops rot: only calls sampled by the policy that is trained, signed by the gateway, with full
sampling support, not voided by redaction. A missing reward is *unscored*, never zero; where there is none
because nobody said how the task ended, that is ``no_outcome`` and says nothing against the rewarder.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from onward.capture import provenance
from onward.capture.enrich import is_unjudged
from onward.errors import TrainingError

FILE = "dataset.jsonl"


@dataclass(frozen=True)
class Scored:
    """A stored trajectory with its latest reward (None: unscored)."""

    trajectory: Mapping[str, Any]
    reward: Mapping[str, Any] | None


@dataclass(frozen=True)
class Dataset:
    """``path`` holds the lines; ``sha256`` names them; ``excluded`` counts refusals by reason."""

    path: Path
    sha256: str
    samples: int
    excluded: Mapping[str, int]
    mean_return: float
    sources: tuple[str, ...] = field(default=(), repr=False)


def freeze(
    scored: Iterable[Scored],
    folder: Path,
    *,
    policy_digest: str,
    signing_key: bytes,
    sample_size: int,
    max_unscored_share: float,
    return_from: str,
    filters: Mapping[str, Any] | None = None,
    groups: bool = False,
) -> Dataset:
    """Write ``dataset.jsonl`` in ``folder``. Raises TrainingError("DATA") when too little is left.

    ``policy_digest`` is the digest of the policy that is trained: rows of any other are excluded.
    ``filters`` is the request's filter. ``groups``: only attempts that share a group are kept, whole
    groups are dropped whose best raw total is below ``min_reward`` (applied to members it would remove
    every failure, and with it the gradient), and groups of one go, because nothing compares with them.
    """
    filters = filters or {}
    kept: list[dict[str, Any]] = []
    excluded: Counter[str] = Counter()
    generations: set[str] = set()
    seen = 0
    for item in scored:
        seen += 1
        line = _line(item, policy_digest, signing_key, filters)
        if not isinstance(line, str) and any(call["generation_id"] in generations for call in line["calls"]):
            line = "replayed"
        if isinstance(line, str):
            excluded[line] += 1
            continue
        generations.update(call["generation_id"] for call in line["calls"])
        kept.append(line)
        if len(kept) >= sample_size:
            break
    if groups:
        kept = _grouped(kept, filters.get("min_reward"), excluded)
    return_name = "raw_total" if return_from == "raw_total" else "outcome"
    lines = [json.dumps(line, separators=(",", ":"), allow_nan=False).encode() for line in kept]
    returns = [line[return_name] for line in kept]
    if seen and excluded["unscored"] / seen > max_unscored_share:
        raise TrainingError(
            "DATA",
            f"{excluded['unscored']} of {seen} trajectories are unscored, more than the "
            f"{max_unscored_share:.0%} that training.max_unscored_share allows: check the rewarder.",
        )
    if len(lines) < 2:
        shown = (
            ", ".join(f"{count} {reason}" for reason, count in sorted(excluded.items())) or "none were found"
        )
        raise TrainingError(
            "DATA", f"{len(lines)} trajectories can be trained on and at least 2 are needed ({shown})."
        )
    body = b"\n".join(lines) + b"\n"
    path = folder / FILE
    path.write_bytes(body)
    return Dataset(
        path=path,
        sha256=hashlib.sha256(body).hexdigest(),
        samples=len(lines),
        excluded=dict(excluded),
        mean_return=sum(returns) / len(returns),
        sources=tuple(line["trajectory_id"] for line in kept),
    )


def _grouped(
    lines: list[dict[str, Any]], min_reward: float | None, excluded: Counter[str]
) -> list[dict[str, Any]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line["group_key"] is None:
            excluded["no_group"] += 1
        else:
            groups.setdefault(line["group_key"], []).append(line)
    kept = []
    for members in groups.values():
        if len(members) < 2:
            excluded["group_of_one"] += 1
        elif min_reward is not None and max(line["raw_total"] for line in members) < min_reward:
            excluded["below_min_reward"] += len(members)
        else:
            kept.extend(members)
    return kept


def _filtered(trajectory: Mapping[str, Any], filters: Mapping[str, Any]) -> str | None:
    """The reason why the request's filter leaves this trajectory out, or None."""
    limit = filters.get("max_trajectory_length")
    if limit is not None and len(trajectory["turns"]) > limit:
        return "too_long"
    domains = filters.get("task_domains")
    if domains and trajectory["task_context"].get("domain") not in domains:
        return "other_domain"
    if trajectory.get("subordinate_profile") in (filters.get("exclude_subordinate_profiles") or ()):
        return "excluded_profile"
    span = filters.get("date_range") or {}
    when = datetime.fromisoformat(trajectory["start_timestamp"].replace("Z", "+00:00"))
    if (span.get("start") and when < span["start"]) or (span.get("end") and when > span["end"]):
        return "outside_dates"
    return None


def _line(
    item: Scored, policy_digest: str, signing_key: bytes, filters: Mapping[str, Any]
) -> dict[str, Any] | str:
    """The dataset line of one trajectory, or the reason why it is excluded."""
    trajectory, reward = item.trajectory, item.reward
    reason = _filtered(trajectory, filters)
    if reason is not None:
        return reason
    if reward is None:
        return "no_outcome" if is_unjudged(trajectory.get("metadata") or {}) else "unscored"
    records = [turn["action"].get("sampling") for turn in trajectory["turns"]]
    present = [record for record in records if record]
    if not present:
        return "no_tokens"
    if any(record.get("model_digest") != policy_digest for record in present):
        mixed = len({record.get("model_digest") for record in present}) > 1
        return "mixed_policies" if mixed else "other_policy"
    calls = [record for record in present if not record.get("tokens_void")]
    if not calls:
        return "tokens_void"
    if any(record.get("top_p", 1.0) != 1.0 or record.get("top_k") is not None for record in calls):
        return "truncated_support"
    if any(not record.get("temperature") for record in calls):
        return "greedy"  # drawn at temperature 0: no distribution, so no gradient
    if not all(provenance.verify(record, signing_key) for record in calls):
        return "bad_signature"
    known: set[str] = set()
    for record in present:
        if record.get("continues") is not None and record["continues"] not in known:
            return "broken_chain"  # it goes on from a call that is not in this trajectory
        known.add(record["generation_id"])
    outcome = reward["metadata"]["outcome"]
    context = trajectory["task_context"]
    return {
        "trajectory_id": trajectory["trajectory_id"],
        "session_id": trajectory["session_id"],
        "task_type": context.get("task_type") or context.get("domain") or "general",
        "group_key": context.get("group_id"),
        "outcome": float(outcome["completion"]),
        "success": bool(outcome["success"]),
        "unparsable": bool(outcome.get("unparsable")),
        "raw_total": float(reward["metadata"]["raw_total"]),
        "calls": [
            {
                name: record.get(name)
                for name in (
                    "generation_id",
                    "continues",
                    "prompt_ids",
                    "token_ids",
                    "logprobs",
                    "temperature",
                )
            }
            for record in present
        ],
    }


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a frozen dataset."""
    with open(path, "rb") as file:
        return [json.loads(line) for line in file]
