"""Splits: which families and seeds train, choose and judge a policy, and a check that they share nothing.

``splits.json`` was written once; its digest is here, so a family cannot change sides unseen.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from onward.errors import TamperedError
from onward.rubrics.tasks.designs import probe_design
from onward.rubrics.tasks.family import HELD_OUT_FAMILIES, TRAINING_FAMILIES
from onward.rubrics.tasks.task import BLOCK, SEED_SPLITS, RubricTask

FILE = Path(__file__).with_name("splits.json")
DIGEST = "ff2184707c6778ae509d29ba1548dd81f2dcea2999e8f90e1607fe114118f04f"
VALIDATION = 4
"""Training families that choose between policies and train none."""
NGRAM = 13
"""Words in a row that two briefs must not share."""


@dataclass(frozen=True)
class Splits:
    """Families by role, and the first seed of each split within the training families."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    held_out: tuple[str, ...]
    seeds: dict[str, int]


@cache
def splits() -> Splits:
    """Returns the pinned splits. Raises TamperedError if their file is not the one that was written."""
    stored = FILE.read_bytes()
    if hashlib.sha256(stored).hexdigest() != DIGEST:
        raise TamperedError(
            f"{FILE.name} is not the file that was pinned: restore it from the package; results of other "
            "splits cannot be compared."
        )
    found = json.loads(stored)
    return Splits(
        tuple(found["train"]), tuple(found["validation"]), tuple(found["held_out"]), dict(found["seeds"])
    )


def proposed() -> bytes:
    """Returns the bytes of ``splits.json``: the families with the least digest of their name validate."""
    ranked = sorted(TRAINING_FAMILIES, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    content = {
        "train": sorted(ranked[VALIDATION:]),
        "validation": sorted(ranked[:VALIDATION]),
        "held_out": sorted(HELD_OUT_FAMILIES),
        "seeds": {name: place * BLOCK for place, name in enumerate(SEED_SPLITS)},
    }
    return (json.dumps(content, indent=1) + "\n").encode()


def overlaps(one: Iterable[RubricTask], other: Iterable[RubricTask]) -> list[str]:
    """Returns what two sets of tasks share: families, runs of 13 words in briefs, truths, probe artefacts."""
    left, right = list(one), list(other)
    found = [
        f"family {name}" for name in sorted({task.family for task in left} & {task.family for task in right})
    ]
    found += [f"words {' '.join(run)!r}" for run in sorted(_runs(left) & _runs(right))]
    found += [f"truth {truth}" for truth in sorted(_truths(left) & _truths(right))]
    return found + [f"artefact {digest}" for digest in sorted(_artefacts(left) & _artefacts(right))]


def _runs(tasks: list[RubricTask]) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for task in tasks:
        words = re.findall(r"[\w-]+", task.brief.lower())
        found.update(tuple(words[at : at + NGRAM]) for at in range(len(words) - NGRAM + 1))
    return found


def _truths(tasks: list[RubricTask]) -> set[str]:
    return {
        ", ".join(
            f"{check} {weight:.4f}" for check, weight in zip(task.active, task.weights, strict=True) if weight
        )
        for task in tasks
    }


def _artefacts(tasks: list[RubricTask]) -> set[str]:
    found: set[str] = set()
    for task in tasks:
        for bits in np.unique(probe_design(), axis=0):
            content = {name: part for name, part in task.build(bits).items() if name != "metadata"}
            found.add(hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16])
    return found
