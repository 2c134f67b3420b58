"""An override of the ramp: a caller gives the candidate another share than the plan's present step. Pure.

Invariants: the steps stay in order. A share of the plan enters that step; another one becomes a step of its
own, with the duration and the sessions of the present step. The evidence goes on as it is, because each
session counts with the share at its own assignment.
"""

from __future__ import annotations

from dataclasses import replace

from onward.contracts.buckets import ReleaseCommand
from onward.release import moves
from onward.release.moves import MoveInputs
from onward.release.plan import Plan, State
from onward.release.record import ReleaseRecord

SAME_SHARE = 1e-9


def is_open_to(record: ReleaseRecord) -> bool:
    """Returns whether the ramp of ``record`` can be overridden: both arms take traffic before the bake."""
    return record.serving and moves.phase(record) is State.RAMPING


def with_share(plan: Plan, present: int, share: float) -> tuple[Plan, int]:
    """Returns the plan with a step of ``share``, and the index of that step."""
    for index, step in enumerate(plan.steps):
        if abs(step.share - share) <= SAME_SHARE:
            return plan, index
    before = [step for step in plan.steps if step.share < share]
    after = [step for step in plan.steps if step.share > share]
    own = replace(plan.steps[present], share=share)
    return replace(plan, steps=(*before, own, *after)), len(before)


def set_share(record: ReleaseRecord, asked: ReleaseCommand, inputs: MoveInputs) -> ReleaseRecord:
    """Returns the record in the step of the share that ``asked`` names. A share at or above that of the bake
    enters the bake."""
    schedule = record.schedule
    if asked.share is None or not 0.0 < asked.share < 1.0:
        return record
    share = min(asked.share, schedule.steps[schedule.bake].share)
    changed, step = with_share(schedule, record.step, share)
    why = f"override by {asked.by or 'an operator'}"
    return moves.enter_step(record.model_copy(update={"plan": changed.state()}), step, why, inputs)
