"""Figures of episodes on a set of tasks, and intervals of their means over families of tasks."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from onward.errors import ConfigError
from onward.lm.student import t_quantile
from onward.rubrics.check import Check
from onward.rubrics.policy import prompts
from onward.rubrics.policy.episodes import Attempt
from onward.rubrics.reward import RubricReward

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
    notes_right: float | None
    """Share of right notes about dimensions that brief or answers state; None without any note."""


def skill_of(reward: RubricReward) -> float:
    """Returns the skill of a rubric, at least ``WORST``; that also for one without a skill. An episode that
    failed through the environment has none: NaN."""
    return math.nan if reward.total is None else max(WORST, reward.measures.get("skill", WORST))


def figures(attempts: Sequence[Attempt], rewards: Sequence[RubricReward]) -> Figures:
    """Returns the figures of episodes; those that failed through the environment do not count."""
    pairs = [(one, found) for one, found in zip(attempts, rewards, strict=True) if found.total is not None]
    rubrics = [(one, one.rubric) for one, _ in pairs if one.rubric is not None]
    names = Counter(check.name for _, rubric in rubrics for check in rubric.checks)
    first = {(one.task.family, one.task.seed): rubric for one, rubric in reversed(rubrics)}
    right = [_is_right(one, check) for one, rubric in rubrics for check in rubric.checks]
    degenerate = [
        one.rubric is not None and bool(found.gate or one.rubric.duplicates) for one, found in pairs
    ]
    noted = [right for one, _ in pairs for right in _right_notes(one)]
    return Figures(
        episodes=len(pairs),
        skill=_mean([skill_of(found) for _, found in pairs]),
        reward=_mean([float(found.total or 0.0) for _, found in pairs]),
        f1=_mean([found.measures.get("f1", 0.0) for _, found in pairs]),
        right=_mean(right),
        invalid=_mean([one.rubric is None for one, _ in pairs]),
        degenerate=_mean(degenerate),
        ordered=_mean([_is_ordered(one.text, [str(c) for c in rubric.checks]) for one, rubric in rubrics]),
        criteria=_mean([len(rubric.criteria) for _, rubric in rubrics]),
        questions=_mean([len(one.questions) for one, _ in pairs]),
        distinct=100 * len(set(first.values())) / max(1, len(first)),
        entropy=_entropy(names),
        notes_right=_mean(noted) if noted else None,
    )


def _right_notes(one: Attempt) -> list[bool]:
    """Returns for each dimension that is known to the writer whether its note is right."""
    if not one.notes:
        return []
    found, known = prompts.levels_of(one.notes), prompts.known_levels(one.task, one.questions)
    return [found.get(name) == level for name, level in known.items() if level is not None]


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


def interval(values: Sequence[float], clusters: Sequence[Hashable]) -> Interval:
    """Returns the mean of ``values`` and its 95 % interval by Student's t over ``clusters`` (families of
    tasks): other families might have been drawn. Tasks of one family are alike, so their number adds little.

    A cluster counts by its size. The percentile bootstrap over eight families is too narrow: it covers the
    truth in 85 of 100 cases. Values that are NaN are left out. Raises ConfigError for fewer than 2 clusters.
    """
    groups = _grouped(values, clusters)
    if len(groups) < 2:
        raise ConfigError("Tasks of fewer than 2 families give no interval over families: give other tasks.")
    total = sum(map(len, groups.values()))
    mean = math.fsum(math.fsum(group) for group in groups.values()) / total
    gaps = [math.fsum(group) - len(group) * mean for group in groups.values()]
    variance = math.fsum(gap * gap for gap in gaps) * len(gaps) / (len(gaps) - 1) / total**2
    return _by_t(mean, variance, len(gaps) - 1)


def interval_within(values: Sequence[float], strata: Sequence[Hashable]) -> Interval:
    """Returns the mean of ``values`` and its 95 % interval by Student's t, with the ``strata`` (families of
    tasks) as they are: other tasks of the same families might have been drawn.

    It is for few families: an interval over four is too wide to show anything. Values that are NaN are left
    out.
    """
    groups = _grouped(values, strata)
    if not groups or min(map(len, groups.values())) < 2:
        raise ConfigError("A family with fewer than 2 tasks gives no interval: compare on more tasks.")
    total = sum(map(len, groups.values()))
    mean = math.fsum(math.fsum(group) for group in groups.values()) / total
    variance = math.fsum(float(np.var(group, ddof=1)) * len(group) for group in groups.values()) / total**2
    return _by_t(mean, variance, total - len(groups))


def _grouped(values: Sequence[float], names: Sequence[Hashable]) -> dict[Hashable, list[float]]:
    groups: defaultdict[Hashable, list[float]] = defaultdict(list)
    for value, name in zip(values, names, strict=True):
        if not math.isnan(value):
            groups[name].append(value)
    return groups


def _by_t(mean: float, variance: float, degrees: int) -> Interval:
    half = t_quantile(degrees) * math.sqrt(variance)
    return Interval(mean, mean - half, mean + half)
