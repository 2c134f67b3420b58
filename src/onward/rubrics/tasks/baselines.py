"""Reference points for every report: rubrics that need no learning, from blind chance to all information.

Each writes the weights of a rubric for a task, one per active check, 0 for a check that is left out. Two are
oracles: they read the truth, and no policy can be compared with them but as a limit.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from onward.rubrics.tasks.checks import CHECKS, DIMENSIONS
from onward.rubrics.tasks.family import TRAINING_FAMILIES, family_of, truth_table_of
from onward.rubrics.tasks.rounding import HEAVIEST, LEAST, MOST, rounded
from onward.rubrics.tasks.task import RubricTask, make_task

LIBRARY_SEEDS = 20
"""Training tasks a family that the nearest copy may copy from."""


@dataclass(frozen=True)
class Baseline:
    """A reference point: ``write`` gives the weights, ``questions`` how many it asks."""

    name: str
    words: str
    write: Callable[[RubricTask], np.ndarray]
    questions: Callable[[RubricTask], int] = lambda task: 0


def random_rubric(task: RubricTask) -> np.ndarray:
    """Returns a valid rubric by chance, always the same for a task: three to seven checks, weights 1 to 5."""
    draw = random.Random(f"random rubric/{task.family}/{task.seed}")
    weights = np.zeros(len(task.active), dtype=np.int64)
    for place in draw.sample(range(len(weights)), draw.randint(LEAST, MOST)):
        weights[place] = draw.randint(1, HEAVIEST)
    return weights


def posterior_weights(task: RubricTask, asked: int = 0) -> np.ndarray:
    """Returns the mean truth given the brief and the answers about the first ``asked`` hidden dimensions."""
    known = task.public | {name: task.levels[name] for name in task.hidden[:asked]}
    kind = family_of(task.family)
    mean = truth_table_of(task.family).posterior(known)
    places = _places(task, [one.name for one in kind.picks])
    return mean[places]


def _places(task: RubricTask, names: list[str]) -> list[int]:
    """Returns the pick of each active check. Two picks of one name differ in their arguments."""
    kind, found = family_of(task.family), []
    for check in task.active:
        found.append(
            next(
                place
                for place, name in enumerate(names)
                if name == check.name and check.arg in kind.picks[place].args and place not in found
            )
        )
    return found


@cache
def mean_weights() -> dict[str, float]:
    """Returns the mean weight of each kind of check over the training families that have it."""
    sums: dict[str, list[float]] = {name: [] for name in CHECKS}
    for family in TRAINING_FAMILIES:
        table = truth_table_of(family)
        for pick, mean in zip(
            family_of(family).picks, table.weights[table.training_rows].mean(axis=0), strict=True
        ):
            sums[pick.name].append(float(mean))
    return {name: float(np.mean(found)) for name, found in sums.items()}


def constant_uncapped(task: RubricTask) -> np.ndarray:
    """Returns the mean weights of all eleven checks: no valid rubric, but the best that ignores the brief."""
    return np.array([mean_weights()[check.name] for check in task.active])


def constant_seven(task: RubricTask) -> np.ndarray:
    """Returns equal weights for the seven checks that count most on the average."""
    mean = constant_uncapped(task)
    weights = np.zeros(len(mean), dtype=np.int64)
    weights[np.argsort(-mean, kind="stable")[:MOST]] = 1
    return weights


def public_oracle(task: RubricTask) -> np.ndarray:
    """Returns the best rubric by what the brief states and the family's table, without a question."""
    return rounded(posterior_weights(task))


def full_oracle(task: RubricTask) -> np.ndarray:
    """Returns the truth, rounded to a rubric."""
    return rounded(task.weights)


def ask_all(task: RubricTask) -> np.ndarray:
    """Returns the best rubric after a question about every hidden dimension."""
    return rounded(posterior_weights(task, len(task.hidden)))


_KEYWORDS = {
    "accuracy": "figures numbers",
    "completeness": "coverage content items",
    "brevity": "brevity few quick",
    "compliance": "approval privacy form",
    "traceability": "sources evidence origins",
    "actionability": "actions assigned steps",
}
_STRONG, _NONE = ("stands", "first", "above", "insist"), ("without", "not", "skip", "no")


def template(task: RubricTask) -> np.ndarray:
    """Returns a rubric by keywords: 5, 2 or 0 for every check of a dimension that the brief mentions."""
    weight = dict.fromkeys(DIMENSIONS, 2)
    for sentence in task.brief.split(". ")[1:]:
        found = set(re.findall(r"[a-z]+", sentence.lower()))
        for dimension, keywords in _KEYWORDS.items():
            if found & set(keywords.split()):
                weight[dimension] = 5 if found & set(_STRONG) else 0 if found & set(_NONE) else 2
    return rounded(np.array([weight[CHECKS[check.name].dimension] for check in task.active]))


@cache
def _library() -> tuple[tuple[frozenset[str], RubricTask], ...]:
    tasks = [make_task(family, seed) for family in TRAINING_FAMILIES for seed in range(LIBRARY_SEEDS)]
    return tuple((_brief_words(task), task) for task in tasks)


def _brief_words(task: RubricTask) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+", task.brief.lower()))


def nearest_copy(task: RubricTask) -> np.ndarray:
    """Returns the true rubric of the training task with the most similar brief, check by check.

    A check that this task lacks is dropped. If fewer than three stay, the usual ones fill up.
    """
    own = _brief_words(task)
    others = ((words, one) for words, one in _library() if (one.family, one.seed) != (task.family, task.seed))
    _, best = max(others, key=lambda pair: len(own & pair[0]) / len(own | pair[0]))
    copied: dict[str, float] = {}
    for check, weight in zip(best.active, best.weights, strict=True):
        copied[check.name] = max(float(weight), copied.get(check.name, 0.0))
    weights = np.array([copied.get(check.name, 0.0) for check in task.active])
    if np.count_nonzero(weights) < LEAST:
        usual = constant_seven(task)
        return usual if not weights.any() else rounded(weights + 0.1 * usual)
    return rounded(weights)


BASELINES: dict[str, Baseline] = {
    one.name: one
    for one in (
        Baseline("random", "a valid rubric by chance", random_rubric),
        Baseline("constant", "seven equal checks, the brief ignored", constant_seven),
        Baseline(
            "constant_uncapped", "mean weights of all eleven checks; no valid rubric", constant_uncapped
        ),
        Baseline("template", "keywords of the brief", template),
        Baseline("nearest", "the rubric of the most similar training task", nearest_copy),
        Baseline("public_oracle", "all that the brief states, and the family's table", public_oracle),
        Baseline(
            "ask_all", "the same after a question a hidden dimension", ask_all, lambda task: len(task.hidden)
        ),
        Baseline("full_oracle", "the truth, rounded to a rubric", full_oracle),
    )
}
"""Name → reference point, in the order of a report."""
