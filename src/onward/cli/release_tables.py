"""Output of ``onward releases``: sentences and tables, made from the release's record alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from onward.cli.tables import Table, facts, ident, number, plain, say
from onward.release.evidence.rates import ArmRates
from onward.release.plan import SUPPORT, State
from onward.release.record import ReleaseRecord
from onward.release.wording import (
    counted,
    e_number,
    probability,
    safety_counts,
    suite_counts,
    what_happened,
)

JUDGES = {
    "error": "failed sessions",
    "reward": "mean outcome",
    "feedback": "negative feedback",
    "all": "the three together",
}
"""Gate → the quantity that it compares."""
BEFORE_TRAFFIC = (State.PROPOSED, State.VALIDATING, State.REJECTED)
BLANK = Text("")


def list_table(records: list[ReleaseRecord]) -> Table:
    """Builds a table with one row per release."""
    table = Table(ident("candidate"), ident("begun"), "state", "why", empty="no release yet")
    for record in records:
        table.add(record.candidate.model_id, _minute(record.created_at), str(record.state), record.reason)
    return table


def show_release(record: ReleaseRecord) -> None:
    """Prints one release: facts, validation, checks, evidence and history."""
    say(plain(what_happened(record)), "", _facts(record))
    for part in (_validation, _checks, _answers, _evidence, _history):
        found = list(part(record))
        if found:
            say("", *found)


def _facts(record: ReleaseRecord) -> Table:
    values = {
        "id": record.release_id,
        "state": str(record.state),
        "candidate": record.candidate.model_id,
        "its adapter": record.candidate.adapter_digest,
        "current": record.current.model_id,
        "its job": f"{record.job_id}, epoch {record.epoch}",
        "begun": record.created_at,
        "first traffic": record.started_at,
        "ended": record.closed_at,
        "zero verified": record.verified_zero_at,
    }
    return facts({name: value for name, value in values.items() if value is not None}, title="Release")


def _summary(record: ReleaseRecord) -> dict[str, Any]:
    return (record.validation or {}).get("summary") or {}


def _validation(record: ReleaseRecord) -> Iterator[Any]:
    summary = _summary(record)
    if "skipped" in summary:
        yield f"Validation was skipped: {plain(summary['skipped'])}."
    if "by_kind" not in summary:
        return
    title = f"Validation: {summary['suite']}, success by kind"
    table = Table("kind", number("candidate"), number("current"), title=title)
    for kind, rates in summary["by_kind"].items():
        table.add(kind, f"{rates['candidate']:.2f}", f"{rates['current']:.2f}")
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
            table.add(kind, check, *passed, BLANK, BLANK)
        verdict = fact.get("verdict") or ("passed" if fact["ok"] else "failed")
        of, p = fact["of"], probability(fact["p"]).removeprefix("p ")
        table.add(kind, "all", f"{fact['passed']} of {of}", f"{fact['current']} of {of}", p, verdict)
    yield table
    safety = safety_counts(record.validation)
    if safety:
        yield f"{safety.capitalize()}."


def _answers(record: ReleaseRecord) -> Iterator[Any]:
    failing = [
        (kind, one)
        for kind, fact in (_summary(record).get("checks") or {}).items()
        for one in fact.get("failing", ())
    ]
    if failing:
        table = Table("kind", "check", "answer", title="Failing answers of the candidate")
        for kind, one in failing:
            table.add(kind, one["check_id"], one["answer"])
        yield table


def _evidence(record: ReleaseRecord) -> Iterator[Any]:
    if not record.rates:
        return
    rates = [record.rates.get(arm, ArmRates()) for arm in ("candidate", "current")]
    seen = {
        "error": [counted(arm.errors, arm.sessions) for arm in rates],
        "reward": [_mean(arm) for arm in rates],
        "feedback": [counted(arm.negative, arm.feedback) for arm in rates],
        "all": [BLANK, BLANK],
    }
    arms = number("candidate"), number("current")
    table = Table("gate", "what it judges", *arms, number("E"), title="Gates")
    for gate, judges in JUDGES.items():
        if gate == "all":
            table.section()
        table.add(gate, judges, *seen[gate], e_number(record.e_values.get(gate, 1.0)))
    yield table
    alpha = ((record.evidence or {}).get("rules") or {}).get("alpha")
    if alpha:
        yield f"A candidate is taken back when E of all gates reaches {1 / alpha:.1f}."
    if "support" in record.e_values:
        support = e_number(record.e_values["support"])
        yield f"E that it is not worse: {support}; shown from {SUPPORT:.0f} on."


def _mean(arm: ArmRates) -> str:
    return "none judged yet" if arm.mean_outcome is None else f"{arm.mean_outcome:.2f} in {arm.outcomes}"


def _history(record: ReleaseRecord) -> Iterator[Any]:
    table = Table(ident("at"), "state", number("step"), "why", title="History")
    for line in record.history:
        step = line["step"] + 1 if line["state"] not in BEFORE_TRAFFIC else BLANK
        table.add(_minute(line["at"]), line["state"], step, line["why"])
    yield table


def _minute(text: str) -> str:
    """Shortens ``2026-01-05T18:00:00.000Z`` to the second, for display."""
    return text[:19].replace("T", " ")
