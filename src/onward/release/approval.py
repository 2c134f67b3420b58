"""Approval by a person: which releases wait for one, and what follows from an answer or from its absence.

Pure. A release that waits has been validated and has no traffic. The answer is part of its record, so the
event of its first traffic names who approved it.
"""

from __future__ import annotations

from typing import Any

from onward.config import ReleaseSettings
from onward.release import wording
from onward.release.moves import MoveInputs, reject
from onward.release.plan import UNPROVEN, Choice, State
from onward.release.record import ReleaseRecord, alert

TIME_LIMIT = "the time limit"
"""Author of a decision that a policy made because no person answered."""


def verdict_of(validation: dict[str, Any] | None) -> str:
    """Returns the verdict of a validation. One that ran no suite is "not validated"."""
    found = validation or {}
    if found.get("verdict"):
        return str(found["verdict"])
    if "skipped" in (found.get("summary") or {}):
        return "not validated"
    return "passed" if found.get("passed") else "failed"


def why_critical(validation: dict[str, Any] | None, choice: Choice) -> str:
    """Returns why a release is critical; empty if it is not."""
    reasons = []
    verdict = verdict_of(validation)
    if verdict in UNPROVEN:
        reasons.append(f"validation: {verdict}")
    safety = ((validation or {}).get("summary") or {}).get("safety") or "not run"
    if safety != "passed":
        reasons.append(wording.safety_counts(validation) or f"safety: {safety}")
    if choice.strategy in ("blue_green", "immediate"):
        reasons.append(f"{choice.strategy.replace('_', '-')}: nearly all traffic at once")
    return "; ".join(reasons)


def why_needed(validation: dict[str, Any] | None, choice: Choice, settings: ReleaseSettings) -> str:
    """Returns why a person must approve; empty if none is needed."""
    if settings.approval == "never":
        return ""
    critical = why_critical(validation, choice)
    return critical or ("every release needs it" if settings.approval == "always" else "")


def wait(record: ReleaseRecord, why: str, inputs: MoveInputs) -> ReleaseRecord:
    """Returns the record that waits for an answer, with an alert that says how to give it."""
    name = record.candidate.model_id
    words = f"waits for approval ({why})"
    waiting = record.moved(
        State.WAITING, inputs.text, words, approval={"status": "waiting", "why": why}, step_total=0.0
    )
    message = (
        f"{name} {words}: run 'onward releases approve {name} --by WHO --reason …', or refuse in its place."
    )
    return waiting.with_outbox(
        alert("approval_needed", message, release_id=record.release_id, model_id=name, why=why)
    )


def approved(record: ReleaseRecord, by: str, reason: str, inputs: MoveInputs) -> ReleaseRecord:
    """Returns the record with the approval noted. The start of its traffic follows."""
    facts = {**(record.approval or {}), "status": "approved", "by": by, "reason": reason, "at": inputs.text}
    facts["by_person"] = by != TIME_LIMIT
    line = {
        "at": inputs.text, "state": str(State.WAITING), "step": 0, "why": f"approved by {by}: {reason}"
    }  # fmt: skip
    return record.model_copy(update={"approval": facts, "history": [*record.history, line]})


def refused(record: ReleaseRecord, by: str, reason: str, inputs: MoveInputs) -> ReleaseRecord:
    """Returns the record of a release that a person, or the time limit, refused."""
    facts = {**(record.approval or {}), "status": "refused", "by": by, "reason": reason, "at": inputs.text}
    noted = record.model_copy(update={"approval": facts})
    return reject(noted, "approval_refused", f"refused by {by}: {reason}", inputs)


def why_not_started(choice: Choice, settings: ReleaseSettings) -> str:
    """Returns why an approved release gets no traffic all the same, since settings changed while it waited;
    empty if it does."""
    if settings.mode == "shadow":
        return "release.mode is shadow by now: nothing gets traffic"
    return choice.reason if choice.strategy is None else ""


def timed_out(record: ReleaseRecord, settings: ReleaseSettings) -> bool:
    """True if the time for an answer is over and a policy decides."""
    return settings.on_approval_timeout != "wait" and record.step_total >= settings.approval_hours * 3600.0


def close_shadow(record: ReleaseRecord, inputs: MoveInputs) -> ReleaseRecord:
    """Returns the closed record of a candidate that was validated in shadow mode: it gets no traffic."""
    found = record.validation or {}
    words = f"shadow mode: validation {verdict_of(found)}, improvement {found.get('improvement', 0.0):+.3f}"
    closed = record.close(State.SHADOWED, inputs.text, words, code="shadow")
    message = wording.what_happened(closed)
    return closed.with_outbox(
        alert("release_shadowed", message, release_id=record.release_id, model_id=record.candidate.model_id)
    )
