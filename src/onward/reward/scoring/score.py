"""Scores one trajectory: pure, except that it updates the windows and baselines of the given state.

The order of trajectories matters, because each is compared with those before it; no other input does.
"""

from __future__ import annotations

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
from onward.reward.components import Component, NotApplicable, Scored, ScoringContext, Unscored, components_of
from onward.reward.measures.baselines import task_type
from onward.reward.measures.judgement import Judgement, earned_score, judge
from onward.reward.measures.normalise import Method, Normalised, Window
from onward.reward.role.state import TOTAL, State
from onward.reward.scoring.dense import per_turn
from onward.reward.scoring.total import Total, combine

if TYPE_CHECKING:
    from onward.reward.code.report import CodeReport

EVALUATOR = "onward-rewarder"
LEAST_STD = {"task_completion": 0.25}
"""Least deviation that a component's z is divided by. Where nearly all work succeeds, the window of
completion has hardly any spread. An honest partial completion (0.5 and more) would then be cut to 0 like a
failure, and gains by cheating in other components would decide. With 0.25 a partial completion lies at most
two deviations below any mean: it is never cut."""
GATED = frozenset({"code_quality"})
"""Components whose normalised score is multiplied by earned completion. Otherwise tidy code of failed work
would outrank an honest partial completion where the window of completion is narrow."""
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
    context = ScoringContext(judgement, state.baselines, tuple(feedback), code)
    weights = settings.weights()
    asked = components if components is not None else components_of(settings)
    answers = {component.name: component.score(trajectory, context) for component in asked}
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
        _remember(trajectory, state, scores, total, judgement)
    return reward


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
    earned completion. Both apply only where a window is applied, so that unnormalised scores stay raw."""
    least = LEAST_STD.get(name, 0.0)
    window = state.windows.get(name, _EMPTY).normalise(scored.score, method, least_std=least)
    applied = window.method != "none"
    gate = earned_score(judgement) if applied and name in GATED else 1.0
    spread = window.std if window.method == "z-score" else (window.max - window.min) / 2.0
    used = least if applied and spread < least else 0.0
    return _Ranked(window, window.value * gate, gate, used)


def _remember(
    trajectory: Trajectory, state: State, scores: Mapping[str, Scored], total: Total, judgement: Judgement
) -> None:
    for name, scored in scores.items():
        state.of(name).add(scored.score)
    state.of(TOTAL).add(total.raw_total)
    if earned_score(judgement) > 0.0:
        state.baselines.add(trajectory)


def _component(scored: Scored, ranked: _Ranked, weight: float) -> RewardComponent:
    window = {
        "n": ranked.window.n,
        "mean": ranked.window.mean,
        "std": ranked.window.std,
        "min": ranked.window.min,
        "max": ranked.window.max,
        "method": ranked.window.method,
    }
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
