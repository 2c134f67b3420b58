"""Scores one trajectory: pure, except that it updates the windows and baselines of the given state.

The order of trajectories matters, because each is compared with those before it; no other input does.

Two totals are never mixed: ``raw_total`` = Σ wᵢ·rawᵢ is absolute; ``total_reward`` = Σ wᵢ·normᵢ only ranks
inside one window. The weights of components that do not apply are shared among the others in proportion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from onward.config import RewardSettings
from onward.contracts import (
    Feedback,
    Normalization,
    Reward,
    RewardComponent,
    RewardMetadata,
    RewardOutcome,
    Trajectory,
)
from onward.ids import derived_id
from onward.reward.components import (
    Component,
    NotApplicable,
    RubricResult,
    Scored,
    ScoringContext,
    Unscored,
    components_of,
)
from onward.reward.measures.baselines import repeats, task_type
from onward.reward.measures.judgement import Judgement, earned_score, judge
from onward.reward.measures.normalise import Method, Normalised, Window
from onward.reward.scoring.state import TOTAL, State

if TYPE_CHECKING:
    from onward.reward.code.report import CodeReport

EVALUATOR = "onward-rewarder"
LEAST_STD = {"task_completion": 0.25}
"""Lower bound of the standard deviation in a component's z-score. Where nearly all work succeeds, the window
of completion has hardly any spread. An honest partial completion (0.5 and more) would then be cut to 0 like a
failure, and gains by cheating in other components would decide. With 0.25 a partial completion lies at most
two deviations below any mean: it is never cut."""
GATED = frozenset({"code_quality"})
"""Components whose normalised score is multiplied by earned completion. Otherwise tidy code of failed work
would outrank an honest partial completion where the window of completion is narrow."""
OUTCOME_SHARE = 0.5
"""Share of a dense reward that goes to the last turn, where the outcome is known."""
_EMPTY = Window(1)


@dataclass(frozen=True)
class Provenance:
    """Facts of the warehouse row about a trajectory's origin; empty text where unknown."""

    model_digest: str = ""
    release_id: str = ""
    task_type: str | None = None
    """None: the trajectory's own task type is used."""


def reward_id(trajectory_id: str, cause: str = "") -> str:
    """Derives the id of a reward. The same trajectory and cause always give the same id, so a redelivery
    changes nothing.

    ``cause``: empty for the first reward, else the feedback or the run of ``onward rescore`` that led to a
    further one.
    """
    return derived_id("reward", trajectory_id, cause)


def score(
    trajectory: Trajectory,
    state: State,
    *,
    settings: RewardSettings,
    timestamp: datetime,
    feedback: Sequence[Feedback] = (),
    provenance: Provenance | None = None,
    components: Sequence[Component] | None = None,
    code: CodeReport | Unscored | None = None,
    rubric: RubricResult | Unscored | None = None,
    cause: str = "",
    supersedes: str | None = None,
) -> Reward | Unscored:
    """Returns the reward of ``trajectory`` against ``state``, and adds the new scores to ``state``.

    An ``Unscored`` answer leaves ``state`` unchanged, and so does a reward with a ``cause``: it supersedes an
    earlier one (``supersedes``), and each trajectory counts once. ``timestamp`` is stored in the reward as it
    is, so a repeat must pass the same one. ``components``: those that ``components_of(settings)`` made at the
    start; without it they are made here.
    """
    provenance = provenance or Provenance()
    judgement = judge(trajectory)
    context = ScoringContext(judgement, state.baselines, tuple(feedback), code, rubric)
    weights = settings.weights()
    used = components if components is not None else components_of(settings)
    answers = {component.name: component.score(trajectory, context) for component in used}
    scores = {name: answer for name, answer in answers.items() if isinstance(answer, Scored)}
    left_out = {name: answer.reason for name, answer in answers.items() if isinstance(answer, NotApplicable)}
    for name, answer in answers.items():
        if not isinstance(answer, Unscored):
            continue
        if weights.get(name) != 0.0:
            return Unscored(answer.reason, f"{name}: {answer.detail}")
        left_out[name] = f"unscored: {answer.reason}"  # its weight is 0
    ranked = {
        name: _ranked(name, scored, state, settings.normalization, judgement)
        for name, scored in scores.items()
    }
    total = combine(scores, {name: one.value for name, one in ranked.items()}, weights)
    if total is None:
        return Unscored("no_weight", "no scored component has a weight")
    window = state.windows.get(TOTAL, _EMPTY).normalise(total.raw_total, settings.normalization)
    reward = Reward(
        reward_id=reward_id(trajectory.trajectory_id, cause),
        trajectory_id=trajectory.trajectory_id,
        session_id=trajectory.session_id,
        timestamp=timestamp,
        reward_components={
            name: _component(scored, ranked[name], total.weights[name]) for name, scored in scores.items()
        },
        total_reward=total.total_reward,
        reward_type="dense" if settings.dense else "sparse",
        normalization=_normalization(window),
        metadata=_metadata(trajectory, scores, total, judgement, provenance, left_out, supersedes, settings),
    )
    if not cause:
        _update_state(trajectory, state, scores, total, judgement)
    return reward


@dataclass(frozen=True)
class Total:
    raw_total: float
    total_reward: float
    weights: dict[str, float]
    """Rescaled weights of the scored components; they sum to 1."""
    confidence: float
    """Share of the weight that was scored from direct evidence."""


def combine(
    scores: Mapping[str, Scored], normalised: Mapping[str, float], weights: Mapping[str, float]
) -> Total | None:
    """Returns the totals, all in [0, 1]. Returns None when no scored component has a weight: there is no
    reward then. Sums are correctly rounded (fsum), so the order of components is irrelevant."""
    given = {name: weights.get(name, 0.0) for name in scores}
    whole = math.fsum(given.values())
    if whole <= 0.0:
        return None
    shared = {name: weight / whole for name, weight in given.items()}
    return Total(
        raw_total=_unit(math.fsum(shared[name] * scores[name].score for name in scores)),
        total_reward=_unit(math.fsum(shared[name] * normalised[name] for name in scores)),
        weights=shared,
        confidence=_unit(math.fsum(shared[name] * scores[name].evidence for name in scores)),
    )


def _unit(value: float) -> float:
    """Clips to [0, 1]: rounding may leave a sum of weights slightly above 1."""
    return min(1.0, max(0.0, value))


@dataclass(frozen=True)
class _Ranked:
    """A score against its window."""

    window: Normalised
    value: float
    """Summand of the total: the normalised score, times ``gate``."""
    gate: float
    least_std: float
    """0 where the window's own spread was used."""


def _ranked(name: str, scored: Scored, state: State, method: Method, judgement: Judgement) -> _Ranked:
    """Normalises a score. The deviation is at least ``LEAST_STD``, and a ``GATED`` score is multiplied by
    earned completion. Without normalisation by a window neither applies, so that raw scores stay raw."""
    least = LEAST_STD.get(name, 0.0)
    window = state.windows.get(name, _EMPTY).normalise(scored.score, method, least_std=least)
    applied = window.method != "none"
    gate = earned_score(judgement) if applied and name in GATED else 1.0
    spread = window.std if window.method == "z-score" else (window.max - window.min) / 2.0
    used = least if applied and spread < least else 0.0
    return _Ranked(window, window.value * gate, gate, used)


def _update_state(
    trajectory: Trajectory, state: State, scores: Mapping[str, Scored], total: Total, judgement: Judgement
) -> None:
    for name, scored in scores.items():
        state.window_of(name).append(scored.score)
    state.window_of(TOTAL).append(total.raw_total)
    if earned_score(judgement) > 0.0:
        state.baselines.update(trajectory)


def _component(scored: Scored, ranked: _Ranked, weight: float) -> RewardComponent:
    names = ("n", "mean", "std", "min", "max", "method")
    window = {name: getattr(ranked.window, name) for name in names}
    if ranked.least_std:
        window["least_std"] = ranked.least_std
    if ranked.gate != 1.0:
        window["gate"] = ranked.gate
    raw_data: dict[str, Any] = {
        **scored.raw_data,
        "normalized": ranked.value,
        "window": window,
        "evidence": scored.evidence,
    }
    return RewardComponent(
        score=scored.score, weight=weight, source=scored.source, reasoning=scored.reasoning, raw_data=raw_data
    )


def _normalization(window: Normalised) -> Normalization:
    if window.n == 0:
        return Normalization(method="none")
    return Normalization(
        method=window.method, mean=window.mean, std=window.std, min=window.min, max=window.max
    )


def _metadata(
    trajectory: Trajectory,
    scores: Mapping[str, Scored],
    total: Total,
    judgement: Judgement,
    provenance: Provenance,
    left_out: Mapping[str, str],
    supersedes: str | None,
    settings: RewardSettings,
) -> RewardMetadata:
    human = any(scored.source == "human" for scored in scores.values())
    kind = provenance.task_type if provenance.task_type is not None else task_type(trajectory)
    return RewardMetadata.model_validate(
        {
            "evaluator": EVALUATOR,
            "evaluation_method": "hybrid" if human else "automated",
            "confidence": total.confidence,
            "raw_total": total.raw_total,
            "outcome": RewardOutcome(
                success=judgement.success, completion=judgement.completion, unparsable=judgement.unparsable
            ),
            "model_digest": provenance.model_digest,
            "release_id": provenance.release_id,
            "task_type": kind,
            "not_applicable": dict(left_out),
            "weights": {name: weight for name, weight in settings.weights().items() if weight > 0.0},
            **({"supersedes": supersedes} if supersedes else {}),
            **({"contradictions": list(judgement.contradictions)} if judgement.contradictions else {}),
            **({"dense": per_turn(trajectory, total.raw_total)} if settings.dense else {}),
        }
    )


def per_turn(trajectory: Trajectory, raw_total: float) -> list[dict[str, Any]]:
    """Returns ``[{"turn_id", "reward"}]`` in the order of turns: each 0 or more, summing to ``raw_total``.

    Half goes to the last turn, where the outcome is known. Half goes in equal parts to the turns whose action
    succeeded and brought something new; where there are none, all goes to the last. These are differences of
    a potential that ends at the raw total (Ng, Harada and Russell, ICML 1999), so they sum to it. Turns that
    fail or repeat earn nothing, whatever their number.
    """
    repeated = repeats(trajectory)
    useful = [
        turn.result.success and not again for turn, again in zip(trajectory.turns, repeated, strict=True)
    ]
    count = sum(useful)
    part = (1.0 - OUTCOME_SHARE) * raw_total / count if count else 0.0
    rewards = [part if one else 0.0 for one in useful]
    rewards[-1] += OUTCOME_SHARE * raw_total if count else raw_total
    return [
        {"turn_id": turn.turn_id, "reward": reward}
        for turn, reward in zip(trajectory.turns, rewards, strict=True)
    ]
