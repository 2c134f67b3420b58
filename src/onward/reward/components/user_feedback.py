"""User feedback: explicit beats implicit, the last explicit signal wins, silence is 0.5.

Thumbs are 1 and 0, a rating is its ``value`` (n stars of five are n/5), a correction or a retry 0.2, an
abandoned task 0; ``VALUES`` has the rest. A withdrawn vote counts as never given. Silence is marked
``default`` and is no evidence. It lowers the reward's confidence, so it cannot be mistaken for praise.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from onward.contracts import Feedback, Trajectory
from onward.reward.components.base import NotApplicable, Scored, ScoringContext
from onward.reward.measures.judgement import Judgement

NEUTRAL = 0.5
CORRECTION = 0.2
VALUES = {
    "thumbs_up": 1.0,
    "thumbs_down": 0.0,
    "correction": CORRECTION,
    "retry": CORRECTION,
    "abandoned": 0.0,
    "branched": 0.3,
    "nudged": 0.3,
    "interrupted": 0.35,
    "reset": 0.35,
    "copied": 0.6,
    "thanks": 0.7,
}
"""Worth of each signal that has a fixed one. The lower six are actions: they say less than words."""
WITHDRAWN = "withdrawn"
"""Explicit signal: the user took back the earlier votes on the same trajectory and turn."""


class UserFeedback:
    name = "user_feedback"

    def __init__(self, *, exclude_default: bool = False) -> None:
        """``exclude_default``: without feedback the component does not apply, instead of scoring 0.5."""
        self._exclude_default = exclude_default

    def score(self, trajectory: Trajectory, context: ScoringContext) -> Scored | NotApplicable:
        for kind in ("explicit", "implicit"):
            found = _last(item for item in _standing(context.feedback) if item.kind == kind)
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
        implied = _implied(context.judgement)
        if implied is not None:
            return implied
        if self._exclude_default:
            return NotApplicable("nobody gave feedback")
        return Scored(
            score=NEUTRAL,
            source="automated",
            reasoning="No feedback was given, so the neutral 0.5 stands in.",
            raw_data={"kind": "none", "default": True},
            evidence=0.0,
        )


def _implied(judgement: Judgement) -> Scored | None:
    """Returns the user's implicit signal inside the trajectory, for use where no feedback was sent."""
    if judgement.status == "abandoned" and not judgement.derived:
        signal, value, why = "abandoned", 0.0, "The task was abandoned"
    elif judgement.corrected_at is not None:
        signal, value = "correction", CORRECTION
        why = f"The user asked to redo or correct the work in turn {judgement.corrected_at}"
    else:
        return None
    return Scored(
        score=value,
        source="human",
        reasoning=f"{why}, which is an implicit signal worth {value:g}.",
        raw_data={"kind": "implicit", "signal": signal, "default": False},
        evidence=0.5,
    )


def signal_value(feedback: Feedback) -> float | None:
    """Returns the signal as a number from 0 to 1; None for a signal without a meaning for quality. Thumbs and
    similar signals have fixed values; any other signal has its ``value``."""
    if feedback.signal in VALUES:
        return VALUES[feedback.signal]
    return None if feedback.value is None else float(feedback.value)


def _standing(items: Iterable[Feedback]) -> list[Feedback]:
    """Returns the feedback without the votes that were withdrawn after they were given."""
    given = list(items)
    ends: dict[tuple[str | None, int | None], tuple[datetime, str]] = {}
    for item in given:
        if item.kind == "explicit" and item.signal == WITHDRAWN:
            subject = item.trajectory_id, item.turn_id
            ends[subject] = max(ends.get(subject, _order(item)), _order(item))
    return [
        item
        for item in given
        if item.kind != "explicit"
        or (end := ends.get((item.trajectory_id, item.turn_id))) is None
        or _order(item) > end
    ]


def _order(item: Feedback) -> tuple[datetime, str]:
    return item.timestamp, item.feedback_id


def _last(items: Iterable[Feedback]) -> tuple[Feedback, float] | None:
    """Returns the latest item that has a value. At equal times the highest id wins, in any arrival order."""
    rated = [(item, value) for item in items if (value := signal_value(item)) is not None]
    return max(rated, key=lambda pair: _order(pair[0]), default=None)
