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
from onward.reward.baselines import task_type
from onward.reward.components import Component, NotApplicable, Scored, ScoringContext, Unscored, components_of
from onward.reward.components.task_completion import completion_score
from onward.reward.judgement import Judgement, judge
from onward.reward.normalise import Normalised
from onward.reward.state import TOTAL, State
from onward.reward.total import Total, combine

if TYPE_CHECKING:
    from onward.reward.code.report import CodeReport

EVALUATOR = "onward-rewarder"


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
    scores: dict[str, Scored] = {}
    left_out: dict[str, str] = {}
    for component in components if components is not None else components_of(settings):
        answer = component.score(trajectory, context)
        if isinstance(answer, Unscored):
            return Unscored(answer.reason, f"{component.name}: {answer.detail}")
        if isinstance(answer, NotApplicable):
            left_out[component.name] = answer.reason
        else:
            scores[component.name] = answer
    normalised = {
        name: state.of(name).normalise(scored.score, settings.normalization)
        for name, scored in scores.items()
    }
    total = combine(scores, normalised, settings.weights())
    if total is None:
        return Unscored("no_weight", "no scored component has a weight")
    window = state.of(TOTAL).normalise(total.raw_total, settings.normalization)
    if not cause:
        _remember(trajectory, state, scores, total, judgement)
    return Reward(
        reward_id=reward_id(trajectory.trajectory_id, cause),
        trajectory_id=trajectory.trajectory_id,
        session_id=trajectory.session_id,
        timestamp=timestamp,
        reward_components={
            name: _component(scored, normalised[name], total.weights[name]) for name, scored in scores.items()
        },
        total_reward=total.total_reward,
        reward_type="sparse",
        normalization=_normalization(window),
        metadata=_metadata(trajectory, scores, total, judgement, provenance, left_out, supersedes, settings),
    )


def _remember(
    trajectory: Trajectory, state: State, scores: Mapping[str, Scored], total: Total, judgement: Judgement
) -> None:
    for name, scored in scores.items():
        state.of(name).add(scored.score)
    state.of(TOTAL).add(total.raw_total)
    if completion_score(judgement) > 0.0:
        state.baselines.add(trajectory)


def _component(scored: Scored, normalised: Normalised, weight: float) -> RewardComponent:
    window = {
        "n": normalised.n,
        "mean": normalised.mean,
        "std": normalised.std,
        "min": normalised.min,
        "max": normalised.max,
        "method": normalised.method,
    }
    raw_data: dict[str, Any] = {
        **scored.raw_data,
        "normalized": normalised.value,
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
        }
    )
