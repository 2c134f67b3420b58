"""What happened in a trajectory, absolute: success, completion, and whether that was told or derived.

Every other number of the reward leans on this one, so it never guesses upwards: a status that was not
given is derived from the results, says so, and is weak evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onward.capture.enrich import is_unjudged
from onward.contracts import Trajectory

Status = Literal["completed_successfully", "partial_completion", "failed", "abandoned"]
UNPARSABLE = "unparsable"
"""Beginning of ``result.error`` of an answer that could not be read as an action."""


@dataclass(frozen=True)
class Judgement:
    status: Status
    success: bool
    completion: float
    """Completed part of the task, 0 to 1."""
    derived: bool
    """True when the agent gave no status."""
    unparsable: bool
    why: str
    unknown: bool = False
    """Nobody who could know said how it ended: no score, which is not a score of zero."""


def judge(trajectory: Trajectory) -> Judgement:
    """The outcome by ``metadata.outcome``, else by the results of the turns."""
    unparsable = any((turn.result.error or "").startswith(UNPARSABLE) for turn in trajectory.turns)
    outcome = trajectory.metadata.outcome
    if outcome is None:
        status, completion, why = _derive(trajectory)
        unknown = is_unjudged(trajectory.metadata.model_extra or {})
        return Judgement(
            status, status == "completed_successfully", completion, True, unparsable, why, unknown
        )
    success = outcome.status == "completed_successfully"
    completion = 1.0 if success else float(outcome.completion_percentage or 0.0)
    why = f"the agent reported {outcome.status}"
    return Judgement(outcome.status, success, completion, False, unparsable, why)


def _derive(trajectory: Trajectory) -> tuple[Status, float, str]:
    last = trajectory.turns[-1]
    if not last.result.success:
        return "failed", 0.0, "no status was given and the last result is a failure"
    if last.action.type == "response":
        return "completed_successfully", 1.0, "no status was given; a final response was delivered"
    return "abandoned", 0.0, "no status was given; the work ended without a final response"
