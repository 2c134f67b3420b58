"""Absolute outcome of a trajectory: success, completion, and whether it was reported or derived.

Every other number of the reward depends on this one, so it never guesses upwards. An unreported outcome is
derived from results and counts a quarter at most. A reported outcome that its own results contradict counts
as unreported. A reported part counts as far as its own tests and subtasks show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onward.capture.collecting.trajectory_row import is_unjudged
from onward.contracts import Trajectory
from onward.contracts.trajectory import Outcome
from onward.reward.measures import facts

Status = Literal["completed_successfully", "partial_completion", "failed", "abandoned"]
Reporter = Literal["environment", "gateway", "agent", "nobody"]

DERIVED_SHARE = 0.25
"""Maximum of a derived completion. Reported parts score 0.5 and more (``completion_score``). So an agent that
reports nothing, or reports what its results contradict, always gets less than one that reports an honest
part."""
AFTER_CORRECTION = 0.5
"""Factor on a derived completion when the user asked to redo or correct the work."""


@dataclass(frozen=True)
class Judgement:
    status: Status
    success: bool
    completion: float
    """Completed part of the task, 0 to 1."""
    derived: bool
    """True when no status was reported, or when the reported one is contradicted."""
    unparsable: bool
    why: str
    unknown: bool = False
    """No party that could know reported the outcome: there is no score, which is not a score of zero."""
    reported: Status | None = None
    """The reported status, whether it counts or not."""
    reported_by: Reporter = "nobody"
    contradictions: tuple[str, ...] = ()
    """Contradictions between the results and ``reported``, in fixed words."""
    corrected_at: int | None = None
    """The turn in which the user asked to redo or correct."""


def completion_score(judgement: Judgement) -> float:
    """Returns the raw completion score, 0 to 1: 1 for success, 0.5 + 0.5·completion for a reported part, 0
    otherwise. A derived part scores its completion, which is ``DERIVED_SHARE`` at most."""
    if judgement.success:
        return 1.0
    if judgement.status != "partial_completion":
        return 0.0
    return judgement.completion if judgement.derived else 0.5 + 0.5 * judgement.completion


def earned_score(judgement: Judgement) -> float:
    """Returns the completion that other components may build on (efficiency is multiplied by it): only a
    reported and uncontradicted one. A derived outcome shows no work that could have been done well."""
    return 0.0 if judgement.derived else completion_score(judgement)


def evidence(judgement: Judgement) -> float:
    """Returns the reliability of the outcome: 1 reported, 0.5 derived, 0.25 reported and contradicted."""
    if judgement.contradictions:
        return 0.25
    return 0.5 if judgement.derived else 1.0


def judge(trajectory: Trajectory) -> Judgement:
    """Judges by ``metadata.outcome`` where the results do not contradict it, else by the results."""
    unparsable = any(facts.is_unparsable(turn) for turn in trajectory.turns)
    corrected = facts.correction_requested(trajectory)
    outcome = trajectory.metadata.outcome
    if outcome is None:
        status, completion, why = _derive(trajectory, corrected)
        unknown = is_unjudged(trajectory.metadata.model_extra or {})
        why = f"no status was given; {why}"
        return Judgement(status, False, completion, True, unparsable, why, unknown, corrected_at=corrected)
    reporter = _reporter(trajectory)
    against = _contradictions(trajectory, outcome, reporter)
    if against:
        status, completion, why = _derive(trajectory, corrected)
        why = f"{outcome.status} was reported, but {_WORDS[against[0]]}; {why}"
        return Judgement(
            status, False, completion, True, unparsable, why,
            reported=outcome.status, reported_by=reporter, contradictions=against, corrected_at=corrected,
        )  # fmt: skip
    success = outcome.status == "completed_successfully"
    completion, doubts, why = 1.0, (), f"the {reporter} reported {outcome.status}"
    if not success:
        completion, doubts, why = _reported_part(trajectory, outcome, reporter)
    return Judgement(
        outcome.status, success, completion, False, unparsable, why,
        reported=outcome.status, reported_by=reporter, contradictions=doubts, corrected_at=corrected,
    )  # fmt: skip


def _reported_part(
    trajectory: Trajectory, outcome: Outcome, reporter: Reporter
) -> tuple[float, tuple[str, ...], str]:
    """Returns completion, contradictions and the reason for work that is not finished. A report counts as far
    as its own results show, so that reporting more gains nothing. A failure that reports too much completion
    is not marked as contradicted for it."""
    claimed = float(outcome.completion_percentage or 0.0)
    tests, subtasks = facts.tests_passed(trajectory), facts.subtasks_reported(trajectory)
    shown = {
        "nothing_recorded": 0.0 if facts.nothing_recorded(trajectory) else 1.0,
        "nothing_succeeded": 1.0 if facts.anything_succeeded(trajectory) else 0.0,
        "tests_failed": 1.0 if tests is None else tests,
        "subtasks_open": 1.0 if subtasks is None else subtasks,
    }
    doubts = tuple(name for name, share in shown.items() if share < claimed)
    if not doubts:
        return claimed, (), f"the {reporter} reported {outcome.status}"
    why = f"{outcome.status} of {claimed:g} was reported, but {_WORDS[doubts[0]]}"
    partial = outcome.status == "partial_completion"
    return min(claimed, *shown.values()), doubts if partial else (), why


def _derive(trajectory: Trajectory, corrected: int | None) -> tuple[Status, float, str]:
    """Returns status, completion and the reason, from the first line that fits:

    ======================================  ===================  ==========================================
    facts of the turns                      status               completion
    ======================================  ===================  ==========================================
    nothing is recorded of any turn         failed               0
    the last result is a failure            failed               0
    the final answer was refused, filtered  failed               0
    no final response                       abandoned            0
    tests ran and none passed at the end    failed               0
    a final response that succeeded         partial_completion   0.25 · share of subtasks done · share of
                                                                 tests passed · (1 − error rate) · 0.5 if
                                                                 the user asked to redo or correct
    ======================================  ===================  ==========================================

    An unknown share is 1.
    """
    last = facts.last_turn(trajectory)
    if facts.nothing_recorded(trajectory):
        return "failed", 0.0, "nothing is recorded of the work"
    if not last.result.success:
        return "failed", 0.0, "the last result is a failure"
    if facts.is_withheld(last):
        return "failed", 0.0, "the model refused its final answer, or a filter withheld it"
    if not facts.is_final_response(last):
        return "abandoned", 0.0, "the work ended without a final response"
    subtasks, tests = facts.subtasks_done(trajectory), facts.tests_passed(trajectory)
    if tests == 0.0:
        return "failed", 0.0, "no test passed"
    errors = facts.error_rate(trajectory)
    completion = DERIVED_SHARE * (1.0 - errors) * (1.0 if tests is None else tests)
    completion *= (1.0 if subtasks is None else subtasks) * (1.0 if corrected is None else AFTER_CORRECTION)
    reasons = ["a final response was delivered"]
    reasons += [] if subtasks is None else [f"{subtasks:.0%} of the subtasks are done"]
    reasons += [] if tests is None else [f"{tests:.0%} of the tests passed"]
    reasons += [f"{errors:.0%} of the results failed"] if errors else []
    reasons += [f"the user asked for a correction in turn {corrected}"] if corrected is not None else []
    if completion == 0.0:
        return "failed", 0.0, ", ".join(reasons)
    return "partial_completion", completion, ", ".join(reasons)


_WORDS = {
    "nothing_recorded": "nothing is recorded of the work",
    "nothing_succeeded": "no action succeeded",
    "unparsable_at_the_end": "the last answer could not be read as an action",
    "last_result_failed": "the last result is a failure",
    "tests_failed": "its tests failed",
    "subtasks_open": "not all subtasks are done",
    "no_final_response": "no final response was delivered",
    "empty_response": "the final response is empty",
    "answer_withheld": "the model refused its final answer, or a filter withheld it",
}
"""Contradiction → its text, the most serious first."""


def _contradictions(trajectory: Trajectory, outcome: Outcome, reporter: Reporter) -> tuple[str, ...]:
    """Returns the contradictions between results and ``outcome``; with any of them the outcome does not
    count. A failure is never contradicted. A part is contradicted only where nothing succeeded. A success, or
    a part that claims to be whole, is contradicted by anything unfinished. A missing final response is no
    contradiction where an environment judged the work or its tests passed. An answer that was cut at its
    limit of tokens may still have done the task, so its failed result is no contradiction.
    """
    if outcome.status in ("failed", "abandoned"):
        return ()
    last, tests = facts.last_turn(trajectory), facts.tests_passed(trajectory)
    subtasks, was_cut = facts.subtasks_reported(trajectory), facts.is_truncated(last)
    found = {
        "nothing_recorded": facts.nothing_recorded(trajectory),
        "nothing_succeeded": not facts.anything_succeeded(trajectory) and not was_cut,
        "tests_failed": tests == 0.0,
    }
    if outcome.status == "completed_successfully" or outcome.completion_percentage == 1.0:
        final = facts.is_final_response(last)
        answer = facts.answer_text(last) if final else None
        found |= {
            "unparsable_at_the_end": facts.is_unparsable(last),
            "last_result_failed": not last.result.success and not was_cut,
            "tests_failed": tests is not None and tests < 1.0,
            "subtasks_open": subtasks is not None and subtasks < 1.0,
            "no_final_response": not final and reporter != "environment" and tests != 1.0,
            "empty_response": answer is not None and not answer.strip(),
            "answer_withheld": final and reporter != "environment" and facts.is_withheld(last),
        }
    return tuple(name for name in _WORDS if found.get(name))


def _reporter(trajectory: Trajectory) -> Reporter:
    """Returns the reporter of the outcome, as far as the trajectory shows it; it is not proven there."""
    extra = trajectory.metadata.model_extra or {}
    capture = extra.get("capture")
    if isinstance(extra.get("environment"), str) and extra["environment"]:
        return "environment"
    return "gateway" if isinstance(capture, dict) and capture.get("source") == "gateway" else "agent"
