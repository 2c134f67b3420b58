"""The moves of a release. Each takes a record and returns the next one, with its announcements in the outbox.

Pure. The releaser chooses the move and writes it by compare-and-set; nothing else changes a release.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from onward.clock import utc_text
from onward.config import Settings
from onward.release import events, plan, wording
from onward.release.evidence.evidence import Evidence, GateRules
from onward.release.evidence.rates import step_counts
from onward.release.plan import State
from onward.release.power import words as power_words
from onward.release.record import NOT_HELD, Model, ReleaseRecord, alert, report

HOLD_WORDS = {
    "silence": "no known outcome of either arm has come in: holding, neither back nor on",
    "lost": "on both arms more sessions were lost than have a known outcome: holding, neither back nor on",
    "sample_ratio": "the split between the arms differs from the weights it was drawn with: holding",
    "hold": "the step ended without proof either way: holding",
    "ask": "the step ended without proof either way: promote or abort it",
    "deadline": "too few candidate sessions with a known outcome before the deadline: holding",
    "operator": "an operator asked for it",
}
SELF_ENDING = ("silence", "lost", "sample_ratio")
"""Holds that end by themselves when their cause is gone."""
EVIDENCE_HOLDS = ("silence", "lost", "deadline")
"""Holds for lack of evidence: their reason names the numbers of known and lost sessions."""


@dataclass(frozen=True)
class MoveInputs:
    """Inputs of a move besides the record."""

    settings: Settings
    endpoint: str
    at: datetime

    @property
    def text(self) -> str:
        return utc_text(self.at)


def phase(record: ReleaseRecord) -> State:
    """Returns ramping or baking, also during a hold."""
    return State.BAKING if record.step == record.schedule.bake else State.RAMPING


def silence(record: ReleaseRecord, assigned: int, known: bool, passed: float) -> dict[str, Any]:
    """Returns the record's new facts about the silence. Without a new session nothing has to be known, so a
    time without traffic is no silence. ``known``: an outcome became known; ``passed``: seconds since the last
    look."""
    if known:
        return {"silent_seconds": 0.0, "silent_from": None}
    begun = assigned if record.silent_from is None else record.silent_from
    seconds = record.silent_seconds + (passed if assigned != begun else 0.0)
    return {"silent_seconds": seconds, "silent_from": begun}


def begin_validation(record: ReleaseRecord, current: Model, inputs: MoveInputs) -> ReleaseRecord:
    why = f"{current.model_id} serves" if record.asked_by else "its start still serves"
    return record.moved(State.VALIDATING, inputs.text, why, current=current)


def start_traffic(
    record: ReleaseRecord,
    choice: plan.Choice,
    cursor: int,
    inputs: MoveInputs,
    made: plan.Plan | None = None,
    power: dict[str, Any] | None = None,
) -> ReleaseRecord:
    """Starts the release: schedule, empty evidence after ``cursor``, first traffic and its event. ``made`` is
    the schedule if it was made already, ``power`` what its gates find at the measured traffic."""
    made = made or plan.make(choice, inputs.settings.release)
    results = (record.validation or {}).get("results", {})
    candidate = record.candidate.model_copy(update={"validation": results})
    models = (record.current.model_id, candidate.model_id)
    safety = wording.safety_counts(record.validation)
    odds = f"; {power_words(power)}" if power else ""
    evidence = Evidence(record.release_id, GateRules.from_settings(inputs.settings.release), cursor, models)
    started = record.moved(
        State.BAKING if made.bake == 0 else State.RAMPING,
        inputs.text,
        f"{made.steps[0].share:.0%}: {choice.reason}{safety and '; ' + safety}{odds}",
        step=0,
        candidate=candidate,
        plan=made.state(),
        power=power,
        evidence=evidence.state(),
        started_at=inputs.text,
    )
    document = events.candidate_serves(started, inputs.settings, inputs.endpoint, inputs.at)
    told = report(wording.deployed(started), release_id=started.release_id)
    return started.with_outbox(events.outbox_item(document), told)


def enter_step(record: ReleaseRecord, step: int, why: str, inputs: MoveInputs) -> ReleaseRecord:
    """Enters ``step``. Its time, its sessions and silence are counted from here."""
    share = record.schedule.steps[step].share
    entered = record.moved(
        State.BAKING if step == record.schedule.bake else State.RAMPING,
        inputs.text,
        f"{share:.0%}: {why}",
        step=step,
        step_served=0.0,
        step_total=0.0,
        step_rates=record.rates,
        silent_seconds=0.0,
        silent_from=None,
        **NOT_HELD,
    )
    document = events.step_entered(entered, inputs.settings, inputs.endpoint, inputs.at)
    return entered.with_outbox(events.outbox_item(document))


def hold(record: ReleaseRecord, why: str, inputs: MoveInputs) -> ReleaseRecord:
    """Holds: the weights stay and the time is not counted. ``why`` is a key of HOLD_WORDS."""
    words = HOLD_WORDS[why]
    if why in EVIDENCE_HOLDS:
        words += f" ({wording.known_counts(step_counts(record.rates, record.step_rates))})"
    held = record.moved(
        State.HELD, inputs.text, words, held_from=phase(record), held_why=why, held_since=inputs.text
    )
    name = record.candidate.model_id
    return held.with_outbox(alert("release_held", f"Release of {name}: {words}.", why=why, step=record.step))


def resume(record: ReleaseRecord, words: str, inputs: MoveInputs) -> ReleaseRecord:
    """Ends a hold. Silence is counted anew, from the next session that is assigned: an operator's word lasts
    one whole window, and a time without traffic does not use it up."""
    return record.moved(
        phase(record),
        inputs.text,
        words,
        held_from=None,
        held_why=None,
        held_since=None,
        silent_seconds=0.0,
        silent_from=None,
    )


def promote(record: ReleaseRecord, why: str, inputs: MoveInputs) -> ReleaseRecord:
    """Promotes the candidate: it becomes current and gets all traffic."""
    reason = wording.why_promoted(record)
    if why == HOLD_WORDS["operator"]:
        reason = f"{why}; {reason}"
    done = record.close(State.PROMOTED, inputs.text, why, reason=reason)
    document = events.promoted(done, inputs.settings, inputs.endpoint, inputs.at)
    message = f"Model {record.candidate.model_id} serves everybody now: {reason}."
    told = alert("promoted", message, why=why, release_id=record.release_id)
    return done.with_outbox(events.outbox_item(document), told)


def reject(record: ReleaseRecord, code: str, words: str, inputs: MoveInputs) -> ReleaseRecord:
    """Rejects the candidate. The alert lists the checks and the failing answers."""
    closed = record.close(State.REJECTED, inputs.text, words, code=code)
    message = f"{wording.what_happened(closed)[:-1]} (job {record.job_id})."
    summary = (record.validation or {}).get("summary") or {}
    told = alert(
        "release_rejected",
        message,
        reason=code,
        why=words,
        release_id=record.release_id,
        model_id=record.candidate.model_id,
        checks=summary.get("checks", {}),
    )
    return closed.with_outbox(told)


def abort(record: ReleaseRecord, words: str, inputs: MoveInputs) -> ReleaseRecord:
    """Stops the release: on a command, for a pin, or because no gateway can load the model.

    A candidate that had traffic was announced, so the current model is announced again.
    """
    closed = record.close(State.ABORTED, inputs.text, words)
    owed: list[dict[str, Any]] = []
    if record.started_at is not None and record.kind == "candidate":
        document = events.restored(
            closed, inputs.settings, inputs.endpoint, inputs.at, event="aborted", reason=words
        )
        owed.append(events.outbox_item(document))
    return closed.with_outbox(
        *owed,
        alert("release_aborted", wording.what_happened(closed), why=words, release_id=record.release_id),
    )
