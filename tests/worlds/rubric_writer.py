"""A rubric writer of seconds: two families, four tasks, a network of some 40,000 weights."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from onward.rubrics.policy.episodes import Player
from onward.rubrics.policy.plan import Plan, WarmStart
from onward.rubrics.policy.splits import training_tasks
from onward.rubrics.policy.vocabulary import Size
from onward.rubrics.policy.warm_start import untrained
from onward.rubrics.policy.writer import save_writer


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


def two_writers(folder: Path) -> list[Path]:
    """Two networks of the same form, whose rubrics for a task differ."""
    policy, adapter = untrained(toy_plan(), training_tasks((), 4), folder / "raw")
    first, second = folder / "first", folder / "second"
    save_writer(Player(policy, adapter), first)
    shutil.copytree(first, second)
    weights = load_file(first / "model.safetensors")
    draw = np.random.default_rng(5)
    noisy = {name: one + draw.normal(0, 0.5, one.shape).astype(one.dtype) for name, one in weights.items()}
    save_file(noisy, second / "model.safetensors", metadata={"format": "pt"})
    return [first, second]
