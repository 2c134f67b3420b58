"""A rubric writer of seconds: two families, four tasks, a network of some 40,000 weights."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from onward.rubrics.policy.plan import Plan, WarmStart
from onward.rubrics.policy.vocabulary import Size


def toy_plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "families": ("expense_audit", "release_notes"),
        "seeds_per_family": 2,
        "size": Size(hidden=32, heads=2, intermediate=64),
        "warm_start": WarmStart(demonstrations=128, steps=40, batch_rows=16, learning_rate=1e-2),
        "steps": 12,
        "tasks_per_step": 4,
        "group_size": 8,
        "learning_rate": 5e-3,
        "questions": 1,
        "eval_every": 1000,
        "eval_tasks": 4,
        "save_every": 3,
        **changes,
    }
    return Plan(**values)


def toy_settings(**changes: Any) -> dict[str, Any]:
    """Returns the settings of the toy plan, as a request of a job has them."""
    given = asdict(toy_plan(**changes))
    for name in ("algorithm", "seed", "steps", "model"):
        del given[name]
    return {**given, "families": list(given["families"])}
