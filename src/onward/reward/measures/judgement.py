"""What happened in a trajectory, absolute: success, completion, and whether that was told or derived.

Every other number of the reward leans on this one, so it never guesses upwards: what nobody told is
derived from results and counts for a quarter at most, a told outcome that its own results contradict counts
as if it had not been told, and a told part counts as far as its own tests and subtasks go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onward.capture.collecting.enrich import is_unjudged
from onward.contracts import Trajectory
from onward.contracts.trajectory import Outcome
from onward.reward.measures import facts

Status = Literal["completed_successfully", "partial_completion", "failed", "abandoned"]
Teller = Literal["environment", "gateway", "agent", "nobody"]

DERIVED_SHARE = 0.25
"""Most that a derived completion can be. Told parts score 0.5 and more (``completion_score``), so an agent
that tells nothing, or what its results contradict, always has less than one that tells an honest part."""
AFTER_CORRECTION = 0.5
"""Factor on a derived completion when the user asked to redo or correct the work."""


@dataclass(frozen=True)
class Judgement:
    status: Status
    success: bool
    completion: float
    """Completed part of the task, 0 to 1."""
    derived: bool
    """True when nobody gave a status, or when the one that was given is contradicted."""
    unparsable: bool
    why: str
    unknown: bool = False
    """Nobody who could know said how it ended: no score, which is not a score of zero."""
    told: Status | None = None
    """The status that was given, whether it counts or not."""
    told_by: Teller = "nobody"
    contradictions: tuple[str, ...] = ()
    """What the results say against ``told``, in fixed words."""
    corrected_at: int | None = None
    """The turn in which the user asked to redo or correct."""


def completion_score(judgement: Judgement) -> float:
    """The raw score of completion, 0 to 1: 1 for success, 0.5 + 0.5·completion for a part
    that was told, 0 otherwise; a derived part scores its completion, which is ``DERIVED_SHARE`` at most."""
    if judgement.success:
        return 1.0
    if judgement.status != "partial_completion":
        return 0.0
    return judgement.completion if judgement.derived else 0.5 + 0.5 * judgement.completion


def earned_score(judgement: Judgement) -> float:
    """Completion that others may build on (efficiency is multiplied by it): what was told and holds; a
    derived outcome shows no work that could have been done well."""
    return 0.0 if judgement.derived else completion_score(judgement)


def evidence(judgement: Judgement) -> float:
    """How far the outcome can be relied on: 1 told, 0.5 derived, 0.25 told and contradicted."""
    if judgement.contradictions:
        return 0.25
    return 0.5 if judgement.derived else 1.0


def judge(trajectory: Trajectory) -> Judgement:
    """The outcome by ``metadata.outcome`` where the results do not contradict it, else by the results."""
    unparsable = any(facts.is_unparsable(turn) for turn in trajectory.turns)
    corrected = facts.correction_requested(trajectory)
    outcome = trajectory.metadata.outcome
    if outcome is None:
        status, completion, why = _derive(trajectory, corrected)
        unknown = is_unjudged(trajectory.metadata.model_extra or {})
        why = f"no status was given; {why}"
        return Judgement(status, False, completion, True, unparsable, why, unknown, corrected_at=corrected)
    teller = _teller(trajectory)
    against = _contradictions(trajectory, outcome, teller)
    if against:
        status, completion, why = _derive(trajectory, corrected)
        why = f"{outcome.status} was reported, but {_WORDS[against[0]]}; {why}"
        return Judgement(
            status, False, completion, True, unparsable, why,
            told=outcome.status, told_by=teller, contradictions=against, corrected_at=corrected,
        )  # fmt: skip
    success = outcome.status == "completed_successfully"
    completion, doubts, why = 1.0, (), f"the {teller} reported {outcome.status}"
    if not success:
        completion, doubts, why = _told_part(trajectory, outcome, teller)
    return Judgement(
        outcome.status, success, completion, False, unparsable, why,
        told=outcome.status, told_by=teller, contradictions=doubts, corrected_at=corrected,
    )  # fmt: skip


def _told_part(
    trajectory: Trajectory, outcome: Outcome, teller: Teller
) -> tuple[float, tuple[str, ...], str]:
    """Completion, contradictions and why, of work that is not done: what was told counts as far as its own
    results go, so that nobody gains by telling more. A failure that tells too much is not doubted for it."""
    claimed = float(outcome.completion_percentage or 0.0)
    tests, subtasks = facts.tests_passed(trajectory), facts.subtasks_told(trajectory)
    shown = {
        "nothing_recorded": 0.0 if facts.nothing_recorded(trajectory) else 1.0,
        "nothing_succeeded": 1.0 if facts.anything_succeeded(trajectory) else 0.0,
        "tests_failed": 1.0 if tests is None else tests,
        "subtasks_open": 1.0 if subtasks is None else subtasks,
    }
    doubts = tuple(name for name, share in shown.items() if share < claimed)
    if not doubts:
        return claimed, (), f"the {teller} reported {outcome.status}"
    why = f"{outcome.status} of {claimed:g} was reported, but {_WORDS[doubts[0]]}"
    partial = outcome.status == "partial_completion"
    return min(claimed, *shown.values()), doubts if partial else (), why


def _derive(trajectory: Trajectory, corrected: int | None) -> tuple[Status, float, str]:
    """Status, completion and why, from the first line that fits:

    ======================================  ===================  ==========================================
    what the turns show                     status               completion
    ======================================  ===================  ==========================================
    nothing is recorded of any turn         failed               0
    the last result is a failure            failed               0
    no final response                       abandoned            0
    tests ran and none passed at the end    failed               0
    a final response that succeeded         partial_completion   0.25 · share of subtasks done · share of
                                                                 tests passed · (1 − error rate) · 0.5 if
                                                                 the user asked to redo or correct
    ======================================  ===================  ==========================================

    A share that nothing is known of is 1.
    """
    last = facts.last_turn(trajectory)
    if facts.nothing_recorded(trajectory):
        return "failed", 0.0, "nothing is recorded of the work"
    if not last.result.success:
        return "failed", 0.0, "the last result is a failure"
    if not facts.is_final_response(last):
        return "abandoned", 0.0, "the work ended without a final response"
    subtasks, tests = facts.subtasks_done(trajectory), facts.tests_passed(trajectory)
    if tests == 0.0:
        return "failed", 0.0, "no test passed"
    errors = facts.error_rate(trajectory)
    completion = DERIVED_SHARE * (1.0 - errors) * (1.0 if tests is None else tests)
    completion *= (1.0 if subtasks is None else subtasks) * (1.0 if corrected is None else AFTER_CORRECTION)
    said = ["a final response was delivered"]
    said += [] if subtasks is None else [f"{subtasks:.0%} of the subtasks are done"]
    said += [] if tests is None else [f"{tests:.0%} of the tests passed"]
    said += [f"{errors:.0%} of the results failed"] if errors else []
    said += [f"the user asked for a correction in turn {corrected}"] if corrected is not None else []
    if completion == 0.0:
        return "failed", 0.0, ", ".join(said)
    return "partial_completion", completion, ", ".join(said)


_WORDS = {
    "nothing_recorded": "nothing is recorded of the work",
    "nothing_succeeded": "no action succeeded",
    "unparsable_at_the_end": "the last answer could not be read as an action",
    "last_result_failed": "the last result is a failure",
    "tests_failed": "its tests failed",
    "subtasks_open": "not all subtasks are done",
    "no_final_response": "no final response was delivered",
    "empty_response": "the final response is empty",
}
"""Contradiction → in words, the heaviest first."""


def _contradictions(trajectory: Trajectory, outcome: Outcome, teller: Teller) -> tuple[str, ...]:
    """What the results say against ``outcome``, so that it does not count at all. A failure is never
    contradicted; a part only by results in which nothing worked; a success, and a part that claims to be
    whole, by anything that is not done. That the work ends without a final response says nothing where an
    environment judged it or its tests passed."""
    if outcome.status in ("failed", "abandoned"):
        return ()
    last, tests = facts.last_turn(trajectory), facts.tests_passed(trajectory)
    subtasks = facts.subtasks_told(trajectory)
    found = {
        "nothing_recorded": facts.nothing_recorded(trajectory),
        "nothing_succeeded": not facts.anything_succeeded(trajectory),
        "tests_failed": tests == 0.0,
    }
    if outcome.status == "completed_successfully" or outcome.completion_percentage == 1.0:
        final = facts.is_final_response(last)
        answer = facts.answer_text(last) if final else None
        found |= {
            "unparsable_at_the_end": facts.is_unparsable(last),
            "last_result_failed": not last.result.success,
            "tests_failed": tests is not None and tests < 1.0,
            "subtasks_open": subtasks is not None and subtasks < 1.0,
            "no_final_response": not final and teller != "environment" and tests != 1.0,
            "empty_response": answer is not None and not answer.strip(),
        }
    return tuple(name for name in _WORDS if found.get(name))


def _teller(trajectory: Trajectory) -> Teller:
    """Who says so, as far as the trajectory tells: nobody can prove it there."""
    extra = trajectory.metadata.model_extra or {}
    capture = extra.get("capture")
    if isinstance(extra.get("environment"), str) and extra["environment"]:
        return "environment"
    return "gateway" if isinstance(capture, dict) and capture.get("source") == "gateway" else "agent"
