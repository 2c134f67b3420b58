"""Tables and sentences of ``onward releases list|show``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from onward.cli.output import Table, facts, ident, number, plain, print_text
from onward.cli.suite_tables import item_lines, lost_items, suite_table
from onward.release.evidence.rates import ArmRates
from onward.release.incidents.report import sentence
from onward.release.plan import SUPPORT, State
from onward.release.power import words as power_words
from onward.release.record import ReleaseRecord
from onward.release.wording import (
    e_number,
    evidence_against,
    evidence_words,
    needed_evidence,
    probability,
    rate_text,
    safety_counts,
    suite_counts,
    verdict_words,
    what_happened,
)

JUDGES = {
    "error": "failed sessions",
    "reward": "mean outcome",
    "feedback": "negative feedback",
    "all": "the three together",
}
"""Gate → the quantity that it compares."""
BEFORE_TRAFFIC = (State.PROPOSED, State.VALIDATING, State.WAITING, State.REJECTED, State.SHADOWED)
BLANK = Text("")


def list_table(records: list[ReleaseRecord]) -> Table:
    """Builds a table with one row per release."""
    table = Table(ident("candidate"), ident("begun"), "state", "why", empty="no release yet")
    for record in records:
        table.add_row(
            record.candidate.model_id,
            _minute(record.created_at),
            str(record.state),
            _why(record),
        )
    return table


def _why(record: ReleaseRecord) -> str | None:
    """Returns the validation's verdict and the reason. Without a column of its own for the verdict, the table
    fits into 80 columns."""
    verdict = (record.validation or {}).get("verdict")
    words = (f"validation: {verdict}" if verdict else None, record.reason or record.why_held)
    return "; ".join(filter(None, words)) or None


def show_release(record: ReleaseRecord) -> None:
    """Prints one release: facts, validation, checks, evidence and history."""
    print_text(plain(what_happened(record)), "", _facts(record))
    for part in (_validation, _checks, _answers, _start, _evidence, _incident, _history):
        found = list(part(record))
        if found:
            print_text("", *found)
    if record.serving:
        print_text("", "A session is judged when both arms have newer ones too: keep sessions coming.")


def _facts(record: ReleaseRecord) -> Table:
    values = {
        "id": record.release_id,
        "state": str(record.state),
        "candidate": record.candidate.model_id,
        "its adapter": record.candidate.adapter_digest,
        "current": record.current.model_id,
        "its job": f"{record.job_id}, epoch {record.epoch}" if record.candidate.adapter_digest else None,
        "begun": record.created_at,
        "first traffic": record.started_at,
        "held since": record.held_since,
        "ended": record.closed_at,
        "zero verified": record.verified_zero_at,
    }
    return facts({name: value for name, value in values.items() if value is not None}, title="Release")


def _summary(record: ReleaseRecord) -> dict[str, Any]:
    return (record.validation or {}).get("summary") or {}


def _validation(record: ReleaseRecord) -> Iterator[Any]:
    summary = _summary(record)
    verdict = (record.validation or {}).get("verdict")
    if "skipped" in summary:
        yield f"Validation: {verdict or 'skipped'}; {plain(summary['skipped'])}."
    if summary.get("suites"):
        yield suite_table(summary)
        yield from item_lines(summary)
        yield from lost_items(summary)
        yield plain(f"Validation: {verdict_words(record.validation or {})}.")
    if "by_kind" not in summary:
        return
    title = f"Validation: {summary['suite']}, success by kind"
    table = Table("kind of task", number("candidate"), number("current"), title=title)
    every = f"all {summary['tasks']} tasks"  # a kind may have the name "total"
    for kind, rates in (*summary["by_kind"].items(), (every, summary)):
        table.add_row(kind, f"{rates['candidate']:.2f}", f"{rates['current']:.2f}")
    yield table
    yield f"All {summary['tasks']} tasks: {suite_counts(summary)}."
    not_run = (record.validation or {}).get("not_run")
    if not_run:
        yield f"Not run: {', '.join(map(plain, not_run))}."


def _checks(record: ReleaseRecord) -> Iterator[Any]:
    checks = _summary(record).get("checks") or {}
    if not checks:
        return
    table = Table(
        "kind", "check", number("candidate"), number("current"), number("p"), "verdict", title="Checks passed"
    )
    for kind, fact in checks.items():
        table.section()
        for check, counts in fact.get("by_check", {}).items():
            passed = [f"{counts[arm]} of {counts['of']}" for arm in ("candidate", "current")]
            table.add_row(kind, check, *passed, BLANK, BLANK)
        verdict = fact.get("verdict") or ("passed" if fact["ok"] else "failed")
        of, p = fact["of"], probability(fact["p"]).removeprefix("p ")
        table.add_row(kind, "all", f"{fact['passed']} of {of}", f"{fact['current']} of {of}", p, verdict)
    yield table
    safety = safety_counts(record.validation)
    if safety:
        yield f"{safety.capitalize()}."
        yield "Safety is decided before any traffic: a failed kind rejects the candidate."


def _answers(record: ReleaseRecord) -> Iterator[Any]:
    failing = [
        (kind, one)
        for kind, fact in (_summary(record).get("checks") or {}).items()
        for one in fact.get("failing", ())
    ]
    if failing:
        table = Table("kind", "check", "answer", title="Failing answers of the candidate")
        for kind, one in failing:
            table.add_row(kind, one["check_id"], one["answer"])
        yield table


def _start(record: ReleaseRecord) -> Iterator[Any]:
    """Words about the start: who approved it, and what its gates can find at this traffic."""
    if record.approval:
        by = record.approval.get("by")
        yield plain(
            f"Approval: {record.approval['status']}{f' by {by}' if by else ''} "
            f"({record.approval.get('reason') or record.approval.get('why')})."
        )
    if record.power:
        yield f"Power: {power_words(record.power)} (simulated, against 1 % errors and outcome 0.75)."


def _incident(record: ReleaseRecord) -> Iterator[Any]:
    if record.incident:
        yield plain(sentence(record.incident))
        yield "'onward incidents show' says more."


def _evidence(record: ReleaseRecord) -> Iterator[Any]:
    if not record.rates:
        return
    rates = [record.rates.get(arm, ArmRates()) for arm in ("candidate", "current")]
    seen = {
        "error": [rate_text(arm.errors, arm.sessions) for arm in rates],
        "reward": _means(*rates),
        "feedback": [rate_text(arm.negative, arm.feedback) for arm in rates],
        "all": [BLANK, BLANK],
    }
    arms = number("candidate"), number("current")
    table = Table("gate", "what it judges", *arms, number("E"), title="Gates")
    raw = all(arm.mean_raw_total is not None for arm in rates)
    for gate, judges in JUDGES.items():
        if gate == "all":
            table.section()
        if gate == "reward" and raw:
            judges = "mean outcome, raw total"
        table.add_row(gate, judges, *seen[gate], e_number(record.e_values.get(gate, 1.0)))
    yield table
    if any(arm.lost for arm in rates):
        lost = " and ".join(str(arm.lost) for arm in rates)
        yield f"Lost sessions, without any outcome in their time: {lost}. They end no step."
    needed, e_all = needed_evidence(record), record.e_values.get("all", 1.0)
    if needed:
        yield (
            f"Decisive is E of all: {evidence_against(e_all, needed)}, {evidence_words(e_all, 1 / needed)}. "
            f"A candidate is taken back at {needed:.1f}. E is 1 without evidence, and grows if the "
            f"candidate is worse; no other row decides alone."
        )
    elif record.evidence:
        yield from _threshold(record.evidence)
    if record.evidence:
        yield "error: engine or transport failed, answer not readable, session lost. A failed task is none."
        yield "feedback: sessions with a vote, and those with a negative one."
    if "support" in record.e_values:
        support = e_number(record.e_values["support"])
        yield f"E that it is not worse, by its outcomes: {support}; shown from {SUPPORT:.0f} on."


def _threshold(evidence: dict[str, Any]) -> Iterator[str]:
    """Explains the threshold rule, which decides in place of E-values."""
    rules, strikes = evidence["rules"], (evidence.get("threshold") or {}).get("strikes") or {}
    counted = ", ".join(f"{gate} {count}" for gate, count in sorted(strikes.items())) or "none"
    yield (
        f"Decisive are the limits of the threshold rule, not E: {rules['consecutive']} checks in a row above "
        f"one of them, {rules['threshold_ms'] / 60_000:g} minutes apart. Broken so far: {counted}. A window "
        f"with fewer than {rules.get('least_sessions') or 1} sessions of an arm does not count."
    )


def _means(*arms: ArmRates) -> list[str]:
    """Returns the mean outcome of each arm, and its mean raw total if both arms have some."""
    raw = all(arm.mean_raw_total is not None for arm in arms)
    return [
        "none judged yet"
        if arm.mean_outcome is None
        else f"{arm.mean_outcome:.2f}{f', {arm.mean_raw_total:.2f}' if raw else ''} in {arm.outcomes}"
        for arm in arms
    ]


def _history(record: ReleaseRecord) -> Iterator[Any]:
    table = Table(ident("at"), "state", number("step"), "why", title="History")
    for line in record.history:
        stepless = record.kind == "rollback" or line["state"] in BEFORE_TRAFFIC
        step = BLANK if stepless else line["step"] + 1
        table.add_row(_minute(line["at"]), line["state"], step, line["why"])
    yield table


def _minute(text: str) -> str:
    """Shortens ``2026-01-05T18:00:00.000Z`` to the second, for display."""
    return text[:19].replace("T", " ")
