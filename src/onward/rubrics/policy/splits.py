"""The tasks of each split, cached. Those that judge a writer are made on demand, never in training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from onward.rubrics.tasks import BLOCK, SEED_SPLITS, RubricTask, make_task
from onward.rubrics.tasks.splits import splits

HELD_OUT = "held_out_families"
SPLITS = (HELD_OUT, *SEED_SPLITS[1:])
"""Names of the splits that judge a writer: unseen families first, then unseen seeds, preferences and
parameters of the training families."""
_REMEMBERED = 20_000

task_of = lru_cache(maxsize=_REMEMBERED)(make_task)


def training_tasks(families: Sequence[str], seeds: int) -> list[RubricTask]:
    """Returns ``seeds`` tasks of each of ``families``; of all training families if there are none."""
    return [task_of(family, seed) for seed in range(seeds) for family in families or splits().train]


@lru_cache(maxsize=8)
def validation_tasks(count: int) -> tuple[RubricTask, ...]:
    """Returns ``count`` tasks of the families that no run trains on."""
    families = splits().validation
    return tuple(task_of(families[n % len(families)], n // len(families)) for n in range(count))


def judging_tasks(split: str, seeds: int) -> list[RubricTask]:
    """Returns ``seeds`` tasks of each family of one of ``SPLITS``."""
    found, families, first = splits(), splits().train, 0
    if split == HELD_OUT:
        families = found.held_out
    else:
        first = SEED_SPLITS.index(split) * BLOCK
    return [task_of(family, first + seed) for family in families for seed in range(seeds)]
