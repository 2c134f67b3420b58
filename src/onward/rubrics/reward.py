"""The reward of a rubric writer: agreement of its rubric with the truth on designed outputs.

Two forms: ``ROBUST``, and for comparison ``SPEC``, the plain sum of a negative distance, quality, efficiency
and coverage. Invariants: an invalid or useless rubric lies below every other one. A failure of the
environment is never a number: ``RubricReward.total`` is None and the sample takes no part in training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from onward.envs.failures import EnvironmentFailure
from onward.errors import ConfigError, OnwardError
from onward.rubrics.check import Check
from onward.rubrics.language import InvalidRubric, Rubric
from onward.rubrics.measures import LEAST_SPREAD, LEAST_VARIANCE, agreement, shape_fault
from onward.rubrics.tasks.guided import expected_score
from onward.rubrics.tasks.stakeholder import MOST_QUESTIONS, MOST_TURNS

GATE = -2.0
"""Reward of a rubric that is invalid or does not discriminate."""
_FARTHEST = {"squared": 0.34, "absolute": 0.59}
"""Greatest distance of a rubric on the designs to a truth that gives no check more than 0.4 of the weight."""
LEAST_TRUTH_SCORES = 3
"""Distinct scores of the truth on the designed outputs, below which a task cannot rank rubrics."""


class UnfitTaskError(OnwardError):
    """A task whose truth cannot rank rubrics: its scores are nearly equal on every designed output."""


class KnownTruth(Protocol):
    """The part of a task that the reward needs."""

    @property
    def active(self) -> tuple[Check, ...]: ...

    @property
    def weights(self) -> np.ndarray:
        """Weight of each active check in the truth."""
        ...

    def probes(self) -> np.ndarray:
        """Results of the designed outputs, outputs × active checks."""
        ...


@dataclass(frozen=True)
class RubricRewardSettings:
    """Form and weights of the reward."""

    form: Literal["robust", "spec"] = "robust"
    distance: Literal["squared", "absolute"] = "squared"
    """Distance of the two scores in the form ``spec``."""
    alignment_weight: float = 1.0
    coverage_weight: float = 0.5
    correlation_weight: float = 0.25
    quality_weight: float = 0.25
    question_price: float = 0.05
    free_questions: int = 1
    utility_weight: float = 0.0
    """Weight of the truth's score of an output made under the guidance of the rubric (``guided``)."""
    quality_bonus: float = 0.0
    """Quality of a rubric without a fault of shape."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, str) and not 0 <= value < math.inf:
                raise ConfigError(f"The reward's {name} is {value}: use 0 or a greater finite number.")
        if self.form not in ("robust", "spec") or self.distance not in ("squared", "absolute"):
            raise ConfigError(
                f"The reward has the form {self.form!r} and the distance {self.distance!r}: use robust or "
                f"spec, and squared or absolute."
            )
        farthest = 1.0 if self.form == "robust" else _FARTHEST[self.distance]
        price = self.question_price * max(0, MOST_TURNS * MOST_QUESTIONS - self.free_questions)
        lowest = -farthest * self.alignment_weight - (1 - self.quality_bonus) * self.quality_weight - price
        if lowest <= GATE:
            raise ConfigError(
                f"The reward's weights let a valid rubric fall to {lowest:g}: a valid rubric could have less "
                f"than the {GATE:g} of an invalid one. Lower alignment_weight, quality_weight or "
                f"question_price."
            )


ROBUST = RubricRewardSettings()
SPEC = RubricRewardSettings(
    form="spec",
    coverage_weight=1.0,
    correlation_weight=0.0,
    quality_weight=1.0,
    free_questions=0,
    quality_bonus=0.1,
)


@dataclass(frozen=True)
class RubricReward:
    """The reward of one rubric, with each of its terms."""

    total: float | None
    """None if the environment failed: the sample has no reward, and is left out."""
    terms: dict[str, float] = field(default_factory=dict)
    """Weighted terms that sum to ``total``."""
    measures: dict[str, float] = field(default_factory=dict)
    """Unweighted measures: squared, skill, correlation, f1 and others."""
    gate: str = ""
    """Reason for the lowest reward; empty for a rubric that passed the gate."""
    failure: str = ""
    """Failure of the environment; empty if there was none."""


def reward_of(
    rubric: Rubric | InvalidRubric | None,
    task: KnownTruth,
    questions: int = 0,
    settings: RubricRewardSettings = ROBUST,
) -> RubricReward:
    """Returns the reward of a rubric for a task. ``rubric``: None or the error of ``parse`` if the policy's
    text was no rubric. ``questions``: those that the policy asked."""
    if not isinstance(rubric, Rubric):
        return gated(str(rubric) if rubric is not None else "the text is not a rubric")
    places = {check: place for place, check in enumerate(task.active)}
    unknown = [str(check) for check in rubric.checks if check not in places]
    if unknown:
        return gated(f"the task has no check {', '.join(unknown)}")
    try:
        probes = np.asarray(task.probes(), dtype=np.float64)
        chosen = [places[check] for check in rubric.checks]
        weights = np.array([criterion.weight for criterion in rubric.criteria], dtype=np.float64)
        truth = np.asarray(task.weights, dtype=np.float64)
        utility = _utility(rubric, places, truth) if settings.utility_weight else 0.0
        return score(
            probes[:, chosen], weights, probes, truth, questions=questions, utility=utility, settings=settings
        )
    except (EnvironmentFailure, UnfitTaskError) as failure:
        return RubricReward(total=None, failure=str(failure))


def score(
    columns: np.ndarray,
    weights: np.ndarray,
    truth_columns: np.ndarray,
    truth_weights: np.ndarray,
    *,
    questions: int = 0,
    utility: float = 0.0,
    settings: RubricRewardSettings = ROBUST,
) -> RubricReward:
    """Returns the reward of a rubric from its results on the designed outputs.

    ``columns`` is outputs × criteria of the rubric, ``truth_columns`` outputs × checks of the truth. Raises
    UnfitTaskError if the truth cannot rank rubrics.
    """
    _check_truth(truth_columns, truth_weights)
    if columns.ndim != 2 or columns.shape != (len(truth_columns), len(weights)):
        raise ValueError(
            f"The rubric's results have the shape {columns.shape}: {len(truth_columns)} outputs × "
            f"{len(weights)} criteria were expected."
        )
    if reason := _useless(columns, weights):
        return gated(reason)
    found = agreement(columns, weights, truth_columns, truth_weights)
    if settings.form == "robust" and found.spread < LEAST_SPREAD:
        return gated("the rubric gives every output the same score")
    quality = settings.quality_bonus + shape_fault(columns)
    if settings.form == "robust":
        alignment, coverage = min(1.0, max(-1.0, found.skill)), found.f1
    else:
        alignment = -found.squared if settings.distance == "squared" else -found.absolute
        coverage = found.recall
    terms = {
        "alignment": settings.alignment_weight * alignment,
        "coverage": settings.coverage_weight * coverage,
        "correlation": settings.correlation_weight * max(0.0, found.correlation),
        "quality": settings.quality_weight * quality,
        "questions": -settings.question_price * max(0, questions - settings.free_questions),
        "utility": settings.utility_weight * utility,
    }
    return RubricReward(
        total=math.fsum(terms.values()),
        terms=terms,
        measures={**vars(found), "quality": quality, "utility": utility},
    )


def gated(reason: str) -> RubricReward:
    """Returns the lowest reward, for a fault of the policy."""
    return RubricReward(total=GATE, terms={"gate": GATE}, gate=reason)


def spec_total(
    synthetic: float | None,
    truth: float | None,
    *,
    quality: float = 0.0,
    efficiency: float = 0.0,
    coverage: float = 0.0,
    distance: Literal["squared", "absolute"] = "squared",
) -> float | None:
    """Returns the plain reward from two scores of one output: − distance + quality + efficiency + coverage.

    None if one of the two evaluations has no score.
    """
    if synthetic is None or truth is None:
        return None
    difference = abs(synthetic - truth)
    alignment = -(difference**2) if distance == "squared" else -difference
    return math.fsum((alignment, quality, efficiency, coverage))


def _useless(columns: np.ndarray, weights: np.ndarray) -> str:
    """Returns the reason why a rubric has no score, or an empty text."""
    if not len(weights):
        return "the rubric has no criterion"
    if not np.all(np.isfinite(weights)) or not np.all(np.isfinite(columns)):
        return "the rubric has a weight or a result that is not a finite number"
    if weights.sum() <= 0:
        return "the weights of the rubric do not sum to more than 0"
    if weights.min() < 0:
        return "the rubric has a weight below 0"
    return ""


def _check_truth(columns: np.ndarray, weights: np.ndarray) -> None:
    if columns.ndim != 2 or columns.shape[1] != len(weights):
        raise ValueError(
            f"The truth has results of the shape {columns.shape} for {len(weights)} weights: give one column "
            f"for each."
        )
    scores = columns @ (weights / weights.sum())
    distinct = len(np.unique(scores.round(9)))
    if scores.var() < LEAST_VARIANCE or distinct < LEAST_TRUTH_SCORES:
        raise UnfitTaskError(
            f"The truth has {distinct} distinct scores with a variance of {scores.var():.4f} on the designed "
            f"outputs, and at least {LEAST_TRUTH_SCORES} with {LEAST_VARIANCE} are needed to rank rubrics: "
            f"leave this task out."
        )


def _utility(rubric: Rubric, places: dict[Check, int], truth: np.ndarray) -> float:
    return expected_score(_by_check(rubric, places, len(truth)), truth / truth.sum())


def _by_check(rubric: Rubric, places: dict[Check, int], count: int) -> np.ndarray:
    weights: np.ndarray = np.zeros(count)
    for criterion in rubric.criteria:
        weights[places[criterion.check]] += criterion.weight
    return weights


def counted(rewards: Sequence[RubricReward]) -> np.ndarray:
    """Returns which rewards are numbers; the others take no part in a mean, a deviation or a loss."""
    return np.array([reward.total is not None for reward in rewards], dtype=bool)


def term_deviations(rewards: Sequence[RubricReward]) -> dict[str, float]:
    """Returns the standard deviation of the total and of each term within a group of rewards.

    Terms may cancel: a group whose total does not vary gives no gradient, though its terms vary.
    """
    terms = [{**reward.terms, "total": reward.total} for reward in rewards if reward.total is not None]
    names = sorted({name for one in terms for name in one})
    return {name: float(np.std([one.get(name, 0.0) for one in terms])) for name in names}
