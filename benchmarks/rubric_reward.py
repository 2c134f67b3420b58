"""Ranking of rubrics by the reward of a rubric writer, and how it can be gamed, before any training.

``spearman``: mean over tasks of the rank correlation between the reward and the oracle's skill of random
valid rubrics, with a 95 % interval from a bootstrap over families. ``above constant``: share of these rubrics
whose reward is higher than that of a rubric that gives every output 0.5. ``gamed``: share of tasks in which
some degenerate rubric has a reward at or above that of some honest one: three or more right checks of equal
weight with 60 % of the truth's weight.

Forms: ``robust`` is the default, ``spec`` the plain sum, ``distance`` its squared distance alone on the
twelve designed outputs, ``one output`` the same on one output that satisfies most checks.

Results (32 families, 8 tasks each, 32 rubrics a task; results/rubric_reward.json): robust 0.988 (0.987 to
0.989), above a constant 100 %, gamed 0 %. Spec 0.910, 100 %, 0 %. Distance 1.000, but only 27 % lie above a
constant. One output 0.225 (0.202 to 0.249), gamed in every task.

    python benchmarks/rubric_reward.py [--quick] [--json FILE] [--seeds N] [--rubrics N]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from onward.rubrics.measures import agreement
from onward.rubrics.reward import ROBUST, SPEC, RubricRewardSettings, score
from onward.rubrics.tasks import HELD_OUT_FAMILIES, TRAINING_FAMILIES, RubricTask, designs, make_task

Form = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], float]
"""(columns, weights, columns of the truth, weights of the truth) → reward."""
PASS_RATE = 0.85
BOOTSTRAPS = 2000


@dataclass(frozen=True)
class Row:
    """Figures of one form of the reward."""

    spearman: float
    low: float
    high: float
    above_constant: float
    gamed: float


def by_settings(settings: RubricRewardSettings) -> Form:
    def form(columns: np.ndarray, weights: np.ndarray, truth_columns: np.ndarray, truth: np.ndarray) -> float:
        total = score(columns, weights, truth_columns, truth, settings=settings).total
        assert total is not None
        return total

    return form


def distance(columns: np.ndarray, weights: np.ndarray, truth_columns: np.ndarray, truth: np.ndarray) -> float:
    return -agreement(columns, weights, truth_columns, truth).squared


FORMS: dict[str, Form] = {
    "robust": by_settings(ROBUST),
    "spec": by_settings(SPEC),
    "distance": distance,
    "one output": distance,
}


def outputs_of(form: str, task: RubricTask) -> np.ndarray:
    """Returns the outputs that a form scores, as results of the active checks."""
    if form != "one output":
        return np.asarray(task.probes(), dtype=np.float64)
    draw = np.random.default_rng([task.seed, len(task.family)])
    return (draw.random((1, len(task.active))) < PASS_RATE).astype(np.float64)


def random_rubrics(count: int, draw: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns (checks, weights) of random valid rubrics: 3 to 7 different checks, weights 1 to 5."""
    sizes = draw.integers(3, 8, count)
    return [(draw.choice(11, size, replace=False), draw.integers(1, 6, size).astype(float)) for size in sizes]


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    ranks = [_ranks(values) for values in (first, second)]
    if min(one.std() for one in ranks) == 0:
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Returns ranks; equal values have their mean rank."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    return ((ends - count + ends - 1) / 2)[place]


def ranked(
    form: str, task: RubricTask, rubrics: Sequence[tuple[np.ndarray, np.ndarray]]
) -> tuple[float, float]:
    """Returns (rank correlation of the reward and the oracle's skill, share of rewards above a constant)."""
    outputs = outputs_of(form, task)
    rewards, skills = [], []
    for checks, weights in rubrics:
        rewards.append(FORMS[form](outputs[:, checks], weights, outputs, task.weights))
        full = np.zeros(11)
        full[checks] = weights / weights.sum()
        skills.append(designs.skill(full, task.weights))
    ones = np.ones((len(outputs), 1))
    constant = FORMS[form](np.hstack([ones, 0 * ones]), np.ones(2), outputs, task.weights)
    above = float(np.mean(np.array(rewards) > constant))
    return rank_correlation(np.array(rewards).round(12), np.array(skills).round(12)), above


def is_gamed(form: str, task: RubricTask) -> bool:
    outputs, truth = outputs_of(form, task), task.weights
    right = np.flatnonzero(truth)
    reward = FORMS[form]
    honest = min(
        reward(outputs[:, chosen], np.ones(len(chosen)), outputs, truth)
        for size in range(3, len(right) + 1)
        for chosen in map(list, combinations(right, size))
        if truth[chosen].sum() >= 0.6
    )
    return any(reward(*rubric, outputs, truth) >= honest for rubric in degenerate(outputs, truth))


def degenerate(outputs: np.ndarray, truth: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns (results, weights): constants, a check with its negation, wrong checks, repeats, one alone."""
    ones = np.ones((len(outputs), 1))
    right, wrong, best = np.flatnonzero(truth), np.flatnonzero(truth == 0)[:5], int(truth.argmax())
    one = outputs[:, [best]]
    return [
        (np.hstack([ones, 0 * ones]), np.ones(2)),
        (ones, np.ones(1)),
        (0 * ones, np.ones(1)),
        (np.hstack([one, 1 - one]), np.ones(2)),
        (outputs[:, wrong], np.ones(len(wrong))),
        (1 - outputs[:, right], truth[right]),
        (np.hstack([one] * 5), np.ones(5)),
        (one, np.ones(1)),
        (np.hstack([outputs[:, right], *[ones] * 5]), np.concatenate([truth[right], np.full(5, 0.2)])),
    ]


def measure(seeds: int, rubrics: int, families: Sequence[str]) -> dict[str, Row]:
    """Returns the figures of every form."""
    tasks = {family: [make_task(family, seed) for seed in range(seeds)] for family in families}
    rows = {}
    for form in FORMS:
        draw = np.random.default_rng(0)
        by_family, above = np.array(
            [
                np.mean([ranked(form, task, random_rubrics(rubrics, draw)) for task in tasks[family]], axis=0)
                for family in families
            ]
        ).T
        means = by_family[draw.integers(0, len(families), (BOOTSTRAPS, len(families)))].mean(axis=1)
        gamed = np.mean([is_gamed(form, task) for family in families for task in tasks[family]])
        low, high = np.quantile(means, [0.025, 0.975])
        rows[form] = Row(float(by_family.mean()), float(low), float(high), float(above.mean()), float(gamed))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Ranking of rubrics by the reward, before any training.")
    parser.add_argument("--quick", action="store_true", help="a small case")
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--seeds", type=int, default=8, help="tasks of each family")
    parser.add_argument("--rubrics", type=int, default=32, help="random rubrics of each task")
    given = parser.parse_args()
    families = (*TRAINING_FAMILIES, *HELD_OUT_FAMILIES)
    if given.quick:
        given.seeds, given.rubrics, families = 1, 8, families[:4]
    rows = measure(given.seeds, given.rubrics, families)
    print(f"{'form':12} {'spearman':>8} {'95 % interval':>16} {'above constant':>14} {'gamed':>6}")
    for name, row in rows.items():
        interval = f"{row.low:.3f} to {row.high:.3f}"
        print(f"{name:12} {row.spearman:8.3f} {interval:>16} {row.above_constant:14.0%} {row.gamed:6.0%}")
    if given.json:
        result = {"seeds": given.seeds, "rubrics": given.rubrics, "families": len(families)}
        given.json.write_text(json.dumps(result | {k: asdict(v) for k, v in rows.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
