"""Figures of episodes on a set of tasks, and intervals of their means over families of tasks."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from onward.errors import ConfigError
from onward.rubrics.check import Check
from onward.rubrics.policy.episodes import Attempt
from onward.rubrics.reward import RubricReward

RESAMPLES = 2000
WORST = -1.0
"""Skill of a rubric that has none, since it is invalid or gated. No skill counts less."""


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Figures:
    """Means over episodes. Shares are from 0 to 1."""

    episodes: int
    skill: float
    reward: float
    f1: float
    right: float
    """Share of criteria whose check is in the truth."""
    invalid: float
    degenerate: float
    """Share of rubrics that are valid text, but that the gate refuses or that repeat a check."""
    ordered: float
    """Share of rubrics whose text is in canonical order."""
    criteria: float
    questions: float
    distinct: float
    """Distinct rubrics per 100 tasks, each task counted once."""
    entropy: float
    """Entropy of the names of the chosen checks, in bits."""


def skill_of(reward: RubricReward) -> float:
    """Returns the skill of a rubric, at least ``WORST``; that also for one without a skill."""
    return max(WORST, reward.measures.get("skill", WORST))


def figures(attempts: Sequence[Attempt], rewards: Sequence[RubricReward]) -> Figures:
    """Returns the figures of episodes; those that failed through the environment do not count."""
    pairs = [(one, found) for one, found in zip(attempts, rewards, strict=True) if found.total is not None]
    rubrics = [(one, one.rubric) for one, _ in pairs if one.rubric is not None]
    names = Counter(check.name for _, rubric in rubrics for check in rubric.checks)
    first = {(one.task.family, one.task.seed): rubric for one, rubric in reversed(rubrics)}
    right = [_is_right(one, check) for one, rubric in rubrics for check in rubric.checks]
    gated = sum(bool(found.gate) and one.rubric is not None for one, found in pairs)
    repeated = sum(bool(rubric.duplicates) for _, rubric in rubrics)
    return Figures(
        episodes=len(pairs),
        skill=_mean([skill_of(found) for _, found in pairs]),
        reward=_mean([float(found.total or 0.0) for _, found in pairs]),
        f1=_mean([found.measures.get("f1", 0.0) for _, found in pairs]),
        right=_mean(right),
        invalid=_mean([one.rubric is None for one, _ in pairs]),
        degenerate=(gated + repeated) / max(1, len(pairs)),
        ordered=_mean([_is_ordered(one.text, [str(c) for c in rubric.checks]) for one, rubric in rubrics]),
        criteria=_mean([len(rubric.criteria) for _, rubric in rubrics]),
        questions=_mean([len(one.questions) for one, _ in pairs]),
        distinct=100 * len(set(first.values())) / max(1, len(first)),
        entropy=_entropy(names),
    )


def _is_right(one: Attempt, check: Check) -> bool:
    return any(
        check == active and weight > 0
        for active, weight in zip(one.task.active, one.task.weights, strict=True)
    )


def _is_ordered(text: str, names: Sequence[str]) -> bool:
    written = [str(Check(item["check"], item["arg"])) for item in json.loads(text)["criteria"]]
    return written == list(names)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _entropy(counts: Counter[str]) -> float:
    shares = np.array(list(counts.values()), dtype=float) / max(1, sum(counts.values()))
    return float(-(shares * np.log2(shares)).sum()) if len(shares) else 0.0


def interval_within(values: Sequence[float], strata: Sequence[Hashable]) -> Interval:
    """Returns the mean of ``values`` and its 95 % interval by Student's t, with the ``strata`` (families of
    tasks) as they are: other tasks of the same families might have been drawn.

    It is for few families. Of four, the bootstrap over families covers the truth in 80 of 100 cases, and an
    honest interval over them is too wide to show anything.
    """
    from scipy.stats import t

    groups: defaultdict[Hashable, list[float]] = defaultdict(list)
    for value, stratum in zip(values, strata, strict=True):
        groups[stratum].append(value)
    if not groups or min(map(len, groups.values())) < 2:
        raise ConfigError("A family with fewer than 2 tasks gives no interval: compare on more tasks.")
    total = len(values)
    variance = math.fsum(float(np.var(group, ddof=1)) * len(group) for group in groups.values()) / total**2
    half = float(t.ppf(0.975, total - len(groups))) * math.sqrt(variance)
    mean = math.fsum(values) / total
    return Interval(mean, mean - half, mean + half)


def interval(
    values: Sequence[float], clusters: Sequence[Hashable], *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Returns the mean of ``values`` and its 95 % interval by the cluster bootstrap: whole ``clusters``
    (families of tasks) are drawn with replacement, since tasks of one family are alike."""
    groups: defaultdict[Hashable, list[float]] = defaultdict(list)
    for value, cluster in zip(values, clusters, strict=True):
        groups[cluster].append(value)
    sums = np.array([math.fsum(group) for group in groups.values()])
    counts = np.array([len(group) for group in groups.values()])
    drawn = np.random.default_rng(seed).integers(len(sums), size=(resamples, len(sums)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(sums.sum() / counts.sum()), float(low), float(high))
