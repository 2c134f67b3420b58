"""Scores one trajectory: pure, apart from moving the windows and baselines that it is given on.

The order of trajectories matters, because each is compared with those before it; nothing else does.
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
"""Least deviation that a component's z is divided by. Where nearly all work succeeds the window of
completion has hardly any spread, and an honest part (0.5 and more) would be cut to 0 like a failure: what a
cheat gets elsewhere would decide. With 0.25 a part lies at most two deviations below any mean: never cut."""
GATED = frozenset({"code_quality"})
"""Components whose normalised score counts as far as completion was earned: tidy code of work that failed
would outrank an honest part otherwise, where the window of completion is narrow."""
_EMPTY = Window(1)


@dataclass(frozen=True)
class Provenance:
    """What the warehouse row says about a trajectory's origin; empty text where nothing is known."""

    model_digest: str = ""
    release_id: str = ""
    task_type: str | None = None
    """None: as the trajectory says."""


def reward_id(trajectory_id: str, cause: str = "") -> str:
    """The same trajectory and cause always give the same id, so a redelivery changes nothing.

    ``cause``: empty for the first reward, else the feedback or the run of ``onward rescore`` that led to
    one more.
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
    """The reward of ``trajectory`` against ``state``, which takes the new scores in.

    An ``Unscored`` answer leaves ``state`` as it was, and so does a reward with a ``cause``: it
    supersedes an earlier one (``supersedes``), and each trajectory counts once. ``timestamp`` goes into
    the reward as it is: give one that a repeat gives again. ``components``: those that
    ``components_of(settings)`` made at the start; without it they are made here.
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
        left_out[name] = f"unscored: {answer.reason}"  # it would count for nothing
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
    """What is summed: the normalised score, times ``gate``."""
    gate: float
    least_std: float
    """0 where the window's own spread was used."""


def _ranked(name: str, scored: Scored, state: State, method: Method, judgement: Judgement) -> _Ranked:
    """The deviation is ``LEAST_STD`` at least, and what is ``GATED`` counts as far as completion was earned;
    both only where a window is applied, so that raw scores that stand are raw scores."""
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
