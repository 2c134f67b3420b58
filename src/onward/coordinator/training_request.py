"""Builds the training request that the coordinator sends, with the reasons in its notes. Pure.

Only hyperparameters that are set in the settings go into the request; the trainer's recipe for the model
fills the rest. If no algorithm is set, the data decides, and the notes say why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from onward.clock import utc_text
from onward.config import Settings, TrainingSettings
from onward.contracts import TrainingRequest
from onward.coordinator.superior import Ask
from onward.coordinator.triggers import Train
from onward.ids import derived_id
from onward.training.spec import preset

REQUESTER = "rl-trainer-subordinate"
_NUMBERS = ("learning_rate", "batch_size", "epochs", "clip_epsilon")


def job_id(digest: str, snapshot: int, previous: str | None = None) -> str:
    """Returns the same id for the same policy, snapshot and job before it, so a restart cannot request a job
    twice. A manual job may come without new data, and then differs by the job before it."""
    return derived_id("training", digest, str(snapshot), previous or "")


def algorithm(
    settings: TrainingSettings, group_ids: Iterable[str | None], corrected: int = 0
) -> tuple[str, str | None]:
    """Returns the algorithm to request, and a note if the settings do not choose one.

    ``corrected`` is the number of trajectories with a user's correction of an answer. ``group_ids`` are those
    of a sample, newest first: several attempts at one task carry the same id. The sample may cut off the
    oldest group, so only that group may have a single member.
    """
    if "algorithm" in settings.model_fields_set:
        return settings.algorithm, None
    if settings.preset == "seed":
        return preset.ALGORITHM, "the preset is seed: the request of the RL trainer profile"
    if corrected >= settings.min_corrections:
        return "dpo", f"no algorithm is set; {corrected} answers were corrected, so dpo learns from the pairs"
    groups = list(group_ids)
    counted = Counter(groups)
    shared = all(n > 1 or name == groups[-1] for name, n in counted.items())
    if None not in counted and shared and len(counted) < len(groups):
        return "rloo", "no algorithm is set; attempts carry group ids, so rloo compares within groups"
    return (
        "reinforce",
        "no algorithm is set; tasks are seen once, so reinforce takes a baseline per task type",
    )


def build(
    settings: Settings,
    trigger: Train,
    *,
    digest: str | None,
    since: int,
    until: int,
    rewarded: int,
    group_ids: Iterable[str | None],
    corrected: int = 0,
    previous_job: str | None,
    ask: Ask | None = None,
    now: datetime,
) -> TrainingRequest:
    """Returns a valid ``agent.rl.training.request.v1``; ``since`` and ``until`` are stream sequences. What a
    message of the superior agent asks for (``ask``) takes precedence over the settings."""
    chosen, note = algorithm(settings.training, group_ids, corrected)
    if ask is not None and ask.algorithm is not None:
        chosen, note = ask.algorithm, None
    given = settings.training.model_fields_set
    metadata: dict[str, Any] = {
        "requested_by": "coordinator",
        "previous_training_job": previous_job,
        "model_digest": digest,
        "since": since,
        "until": until,
        "rewarded": rewarded,
    }
    notes = [note, None if ask is None else f"the superior agent said: {ask.words}"]
    if any(notes):
        metadata["notes"] = "; ".join(filter(None, notes))
    days = ask.days if ask is not None else None
    period = {"date_range": {"start": utc_text(now - timedelta(days=days))}} if days else {}
    config = {
        "algorithm": chosen,
        "base_model": settings.model.base,
        "dataset": {
            "source": "clickhouse",
            "sample_size": (ask and ask.sample_size) or settings.training.sample_size,
            "filter": period,
        },
        "hyperparameters": {name: getattr(settings.training, name) for name in _NUMBERS if name in given},
    }
    seed = settings.training.preset == "seed"
    return TrainingRequest.model_validate(
        {
            "training_job_id": job_id(digest or "", until, previous_job),
            "timestamp": utc_text(now),
            "requester": REQUESTER,
            "trigger_reason": trigger.reason,
            "training_config": preset.seed_config(config, now) if seed else config,
            **({"evaluation": preset.EVALUATION} if seed else {}),
            "priority": trigger.priority,
            "metadata": metadata,
        }
    )
