"""User feedback: explicit beats implicit, the last explicit signal wins, silence is the seed's 0.5.

Silence is marked ``default`` and is no evidence, so it lowers the reward's confidence and nobody can
mistake it for praise.
"""

from __future__ import annotations

from collections.abc import Iterable

from onward.contracts import Feedback, Trajectory
from onward.reward.components.base import NotApplicable, Scored, ScoringContext

NEUTRAL = 0.5
_VALUES = {"thumbs_up": 1.0, "thumbs_down": 0.0, "correction": 0.2, "abandoned": 0.0}


class UserFeedback:
    name = "user_feedback"

    def __init__(self, *, exclude_default: bool = False) -> None:
        """``exclude_default``: without feedback the component leaves instead of scoring 0.5."""
        self._exclude_default = exclude_default

    def score(self, trajectory: Trajectory, context: ScoringContext) -> Scored | NotApplicable:
        for kind in ("explicit", "implicit"):
            found = _last(item for item in context.feedback if item.kind == kind)
            if found is not None:
                feedback, value = found
                return Scored(
                    score=value,
                    source="human",
                    reasoning=f"The last {kind} signal is {feedback.signal}, worth {value:.2f}.",
                    raw_data={
                        "kind": kind,
                        "signal": feedback.signal,
                        "feedback_id": feedback.feedback_id,
                        "default": False,
                    },
                    evidence=1.0 if kind == "explicit" else 0.5,
                )
        if not context.judgement.derived and context.judgement.status == "abandoned":
            return Scored(
                score=0.0,
                source="human",
                reasoning="The task was abandoned, which is an implicit signal worth 0.",
                raw_data={"kind": "implicit", "signal": "abandoned", "default": False},
                evidence=0.5,
            )
        if self._exclude_default:
            return NotApplicable("nobody gave feedback")
        return Scored(
            score=NEUTRAL,
            source="automated",
            reasoning="Nobody gave feedback, so the neutral 0.5 stands in.",
            raw_data={"kind": "none", "default": True},
            evidence=0.0,
        )


def signal_value(feedback: Feedback) -> float | None:
    """The signal as a number from 0 to 1; None for a signal that says nothing about quality."""
    if feedback.signal in _VALUES:
        return _VALUES[feedback.signal]
    return None if feedback.value is None else float(feedback.value)


def _last(items: Iterable[Feedback]) -> tuple[Feedback, float] | None:
    best: tuple[Feedback, float] | None = None
    for item in items:
        value = signal_value(item)
        if value is not None and (best is None or item.timestamp >= best[0].timestamp):
            best = (item, value)
    return best
