"""The tasks of each split, cached: training, validation, held-out families, and the other held-out splits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from onward.rubrics.tasks import HELD_OUT_FAMILIES, TRAINING_FAMILIES, Task, make_task

VALIDATION_FAMILIES = 4
_HELD_OUT_SEED = 1_000_000
"""Seeds from here on are in no run's training tasks."""

task_of = lru_cache(maxsize=20_000)(make_task)


def training_families() -> tuple[str, ...]:
    return tuple(TRAINING_FAMILIES[:-VALIDATION_FAMILIES])


def training_tasks(families: Sequence[str], seeds: int) -> list[Task]:
    return [task_of(f, s) for s in range(seeds) for f in (families or training_families())]


@lru_cache(maxsize=8)
def validation_tasks(count: int) -> tuple[Task, ...]:
    names = TRAINING_FAMILIES[-VALIDATION_FAMILIES:]
    return tuple(task_of(names[n % len(names)], _HELD_OUT_SEED + n // len(names)) for n in range(count))


def held_out_tasks(seeds: int) -> list[Task]:
    return [task_of(f, _HELD_OUT_SEED + s) for f in HELD_OUT_FAMILIES for s in range(seeds)]
