"""Rolls a release back: the decision, its reason and all announcements in one record.

Pure. The decision changes the record once. Routes, model states and the event are derived from the record, so
a crash anywhere after that write still ends with the current model at 100 %.
"""

from __future__ import annotations

from datetime import UTC, datetime

from onward.clock import read_time, utc_text
from onward.config import Settings
from onward.release import events, wording
from onward.release.evidence.evidence import Evidence
from onward.release.evidence.rates import figures
from onward.release.incidents import report
from onward.release.plan import State
from onward.release.record import ReleaseRecord, alert

REASONS = {
    "error": "high_error_rate",
    "reward": "performance_degradation",
    "feedback": "user_dissatisfaction",
}
BUDGET_SECONDS = 60.0
"""Promised seconds from the crossing to verified zero candidate traffic."""


def reason_for(leading: str) -> str:
    """Returns the published word for the gate that contributed most."""
    return REASONS[leading]


def roll_back(
    record: ReleaseRecord, evidence: Evidence, settings: Settings, endpoint: str, now: datetime
) -> ReleaseRecord:
    """Returns the record after the gates crossed: rolled back, with its event and alert in the outbox."""
    crossing = evidence.crossing
    if crossing is None:
        raise ValueError(f"Release {record.release_id} has no crossing, so there is nothing to take back.")
    code = reason_for(crossing["leading"])
    at = utc_text(now)
    counted = {**figures(evidence), "e_values": dict(crossing["e_values"])}
    rule = evidence.rules
    if rule.threshold_ms:
        words = wording.over_limit(
            counted["rates"], crossing["leading"], rule.consecutive, rule.threshold_ms / 60_000
        )
    else:
        words = wording.crossed(counted["rates"], counted["e_values"], crossing["leading"], rule.alpha)
    found = report.report(code, evidence.failures, at)
    closed = record.close(
        State.ROLLED_BACK,
        at,
        f"{code} at event {crossing['sequence']}: {words}",
        reason=words,
        code=code,
        incident=found,
        crossed_at=utc_text(datetime.fromtimestamp(crossing["at"] / 1000, UTC)),
        **counted,
    )
    event = events.restored(closed, settings, endpoint, now, event="rollback", reason=code)
    told = alert(
        "rolled_back",
        f"URGENT: model {record.candidate.model_id} was taken back to {record.current.model_id} "
        f"due to {code.replace('_', ' ')}{wording.rate_in_brackets(counted['rates'], code)}. "
        f"{words[0].upper()}{words[1:]}. {report.sentence(found)}",
        "critical",
        release_id=record.release_id,
        reason=code,
        arms=evidence.summary()["arms"],
        e_values=counted["e_values"],
        cause=found["cause"],
        recommendation=found["recommendation"],
    )
    return closed.with_outbox(events.outbox_item(event), told)


def over_budget(record: ReleaseRecord, now: datetime) -> bool:
    """True if a rolled-back candidate is not verified at zero within the promised time."""
    if record.state is not State.ROLLED_BACK or record.crossed_at is None or record.verified_zero_at:
        return False
    crossed = read_time(record.crossed_at)
    return (now - crossed).total_seconds() > BUDGET_SECONDS
