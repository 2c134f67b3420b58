"""``onward releases``: shows releases, and sends commands to the one that is under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from onward import host
from onward.cli import ConfigFile, DataDir, app, load_settings, renamed, run_async
from onward.cli.help import Commands
from onward.cli.output import AsJson, Table, facts, ident, number, plain, print_json, print_text
from onward.cli.suite_tables import item_lines, lost_items, suite_table
from onward.clock import SystemClock
from onward.contracts.buckets import COMMANDS
from onward.errors import NotFoundError
from onward.release.commands import ANSWERS, send_command
from onward.release.evidence.rates import ArmRates
from onward.release.incidents.report import sentence
from onward.release.plan import SUPPORT, State
from onward.release.power import words as power_words
from onward.release.record import ReleaseRecord, Releases
from onward.release.wording import (
    e_number,
    evidence_words,
    probability,
    rate_text,
    safety_counts,
    suite_counts,
    what_happened,
)

releases_app = Commands(
    help="""What was released and why not; what the release that is under way shall do.

    onward releases list
    onward releases show agent-zero-rl-v2
    onward releases hold
    """
)
app.add_typer(releases_app, name="releases")
Named = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="Of the release or of its candidate. Default: the newest one."),
]
UnderWay = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="Of the release or of its candidate. Default: the one under way."),
]
LEFT_OUT = frozenset({"evidence", "outbox"})
"""Fields of a record that only the releaser uses."""


async def _records(file: Path | None, data_dir: Path | None) -> list[ReleaseRecord]:
    async with host.records(load_settings(file, data_dir)) as bus:
        return await Releases(bus.bucket("rl_releases"), bus.bucket("rl_models"), SystemClock()).all()


def load_records(file: Path | None, data_dir: Path | None) -> list[ReleaseRecord]:
    """Returns every release that can be read, oldest first."""
    return run_async(_records(file, data_dir))


def _document(record: ReleaseRecord) -> dict[str, Any]:
    return {"sentence": what_happened(record), **record.model_dump(mode="json", exclude=set(LEFT_OUT))}


@releases_app.command(name="list")
def list_releases(
    limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 20,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show releases, newest first, each with the reason for its end. Works without a running loop.

    onward releases list
    onward releases list --limit 5 --json
    """
    records = run_async(_records(file, data_dir))[::-1][:limit]
    if as_json:
        print_json([_document(record) for record in records])
    else:
        print_text(list_table(records))


@releases_app.command()
def show(
    name: Named = None, file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show one release: the reason for its end, its validation, checks and evidence in numbers, its history.

    onward releases show
    onward releases show agent-zero-rl-v2 --json
    """
    *others, record = found_by_name(run_async(_records(file, data_dir)), name)
    if as_json:
        print_json(_document(record))
    else:
        show_release(record)
        for other in others if name else ():
            print_text("", f"Before it, release {other.release_id}: {what_happened(other)}")


def found_by_name(records: list[ReleaseRecord], name: str | None) -> list[ReleaseRecord]:
    """Returns the releases of that name, oldest first: a model may be released and later rolled back."""
    called = [record for record in records if name is None or record.has_name(name)]
    if not called:
        if name is None:
            raise NotFoundError("There is no release yet: the first one follows the first training job.")
        raise NotFoundError(
            f"There is no release {name!r}: expected the id of a release or of its candidate, as "
            f"'onward releases list' shows them."
        )
    return called


def _tell(
    what: str,
    release: str | None,
    file: Path | None,
    data_dir: Path | None,
    *,
    by: str | None = None,
    reason: str | None = None,
) -> None:
    async def work() -> None:
        settings = load_settings(file, data_dir)
        async with host.attached(settings) as (bus, _):
            await send_command(bus, what, release, clock=SystemClock(), by=by, reason=reason)

    run_async(work())
    print_text(f"Sent to the releaser: {what}. 'onward releases show' shows what came of it.")


@releases_app.command()
def abort(release: UnderWay = None, file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """End the release and send all traffic to the current model again.

    onward releases abort
    """
    _tell("abort", release, file, data_dir)


@releases_app.command()
def promote(release: UnderWay = None, file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Send nearly all traffic to the candidate now, without waiting for the steps. The bake continues.

    onward releases promote
    """
    _tell("promote", release, file, data_dir)


@releases_app.command()
def hold(release: UnderWay = None, file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Stay at the present share until 'onward releases resume'. The gates stay active.

    onward releases hold
    """
    _tell("hold", release, file, data_dir)


@releases_app.command()
def resume(release: UnderWay = None, file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Resume a held release.

    onward releases resume
    """
    _tell("resume", release, file, data_dir)


By = Annotated[str, typer.Option("--by", help="Who decides.", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", help="Why.", show_default=False)]


@releases_app.command()
def approve(
    by: By, reason: Reason, release: UnderWay = None, file: ConfigFile = None, data_dir: DataDir = None
) -> None:
    """Approve the release that waits: its first step begins. Name and reason are recorded.

    onward releases approve agent-zero-rl-v2 --by ada --reason "read the report"
    """
    _tell("approve", release, file, data_dir, by=by, reason=reason)


@releases_app.command()
def refuse(
    by: By, reason: Reason, release: UnderWay = None, file: ConfigFile = None, data_dir: DataDir = None
) -> None:
    """Refuse the release that waits: the candidate gets no traffic. Name and reason are recorded.

    onward releases refuse agent-zero-rl-v2 --by ada --reason "freeze until Monday"
    """
    _tell("refuse", release, file, data_dir, by=by, reason=reason)


# Old names.

release_app = Commands(
    help="""The old name of 'onward releases', which also lists and shows.

    onward releases list
    """
)
app.add_typer(release_app, name="release", hidden=True)
OldOption = Annotated[
    str | None, typer.Option("--release", help="Its id, or its candidate's. Default: the one under way.")
]


def _with_option(name: str) -> Callable[..., None]:
    """Builds the old form of the command ``name``, which takes the release as an option."""

    def tell(release: OldOption = None, file: ConfigFile = None, data_dir: DataDir = None) -> None:
        _tell(name, release, file, data_dir)

    return tell


release_app.command(name="approve")(approve)
release_app.command(name="refuse")(refuse)
for _name in (name for name in COMMANDS if name not in ANSWERS):
    renamed.keep_old_name(release_app, f"release {_name}", _with_option(_name))


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
        "its job": f"{record.job_id}, epoch {record.epoch}",
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
        yield f"Validation: {verdict}."
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
        "reward": [_mean(arm) for arm in rates],
        "feedback": [rate_text(arm.negative, arm.feedback) for arm in rates],
        "all": [BLANK, BLANK],
    }
    arms = number("candidate"), number("current")
    table = Table("gate", "what it judges", *arms, number("E"), title="Gates")
    for gate, judges in JUDGES.items():
        if gate == "all":
            table.section()
        table.add_row(gate, judges, *seen[gate], e_number(record.e_values.get(gate, 1.0)))
    yield table
    if any(arm.lost for arm in rates):
        lost = " and ".join(str(arm.lost) for arm in rates)
        yield f"Lost sessions, without any outcome in their time: {lost}. They end no step."
    alpha = ((record.evidence or {}).get("rules") or {}).get("alpha")
    if alpha:
        decisive = record.e_values.get("all", 1.0)
        yield (
            f"Decisive is E of all: {e_number(decisive)}, {evidence_words(decisive, alpha)}; a candidate is "
            f"taken back at {1 / alpha:.1f}. E is 1 without evidence, and grows if the candidate is worse."
        )
        yield "error: engine or transport failed, answer not readable, session lost. A failed task is none."
        yield "feedback: sessions with a vote, and those with a negative one."
    if "support" in record.e_values:
        support = e_number(record.e_values["support"])
        yield f"E that it is not worse: {support}; shown from {SUPPORT:.0f} on."


def _mean(arm: ArmRates) -> str:
    return "none judged yet" if arm.mean_outcome is None else f"{arm.mean_outcome:.2f} in {arm.outcomes}"


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
