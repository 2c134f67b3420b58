"""``onward trajectories list|show|export``: stored trajectories, for people and for other libraries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args

import typer
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from onward.capture.conversations.messages import NO_RESULT
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.command_options import with_options
from onward.cli.exporting import Force, Out, check_format, run_export
from onward.cli.help import Commands
from onward.cli.output import AsJson, Table, cell, ident, number, plain, print_json, print_text
from onward.cli.trajectory_options import Filters, Limit, filter_options, plural
from onward.config import Settings
from onward.errors import ConfigError, NotFoundError
from onward.export import records
from onward.export.pairs import ReturnFrom, Rules
from onward.export.run import FORMATS, Export, Format, Report, check_extra
from onward.ids import check_id
from onward.warehouse import queries, reward_queries, trajectory_queries
from onward.warehouse.client import Warehouse
from onward.warehouse.embedded import reading
from onward.warehouse.trajectory_queries import TrajectorySelection

WIDE = 120
"""Terminal columns from which a list also shows agent, model and domain."""
_NAMED = 5
"""Number of ids named in the message about an ambiguous prefix."""
_PAIRS = "Pairs"

trajectories_app = Commands(
    help="""What agents did, turn by turn: look, or take it to another library.

    Works beside a running service and while nothing serves.

    onward trajectories list --since 24h --outcome failure
    onward trajectories show 3f0c3ce4
    onward trajectories export --format parquet --out work.parquet
    """
)
app.add_typer(trajectories_app, name="trajectories")


@trajectories_app.command("list")
@with_options("filters", filter_options(), build=Filters)
def list_(
    *,
    filters: Filters,
    limit: Annotated[int, typer.Option(help="At most this many, the newest.", min=1, max=10_000)] = 20,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List stored trajectories, the newest first. 'show' takes their ids, or a unique prefix.

    onward trajectories list --since 7d --agent my-agent --min-reward 0.8
    """
    which = filters.selection()
    rows, matching, stored = run_async(_rows(load_settings(file, data_dir), which, limit))
    if as_json:
        print_json(rows)
    elif not stored:
        print_text("No trajectory is stored yet.")
    elif not rows:
        print_text(f"None of the {stored:,} stored trajectories matches.")
    else:
        print_text(_table(rows), f"{len(rows):,} of {matching:,} that match, {stored:,} are stored.")


@trajectories_app.command()
def show(
    trajectory_id: Annotated[str, typer.Argument(metavar="ID", help="Its id, or a unique prefix.")],
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a trajectory turn by turn: observation, action, result; then the reward.

    --json prints the stored documents: trajectory, reward, feedback.

    onward trajectories show 3f0c3ce4
    """
    check_id(trajectory_id, "Trajectory id")
    document = run_async(_document(load_settings(file, data_dir), trajectory_id))
    if as_json:
        print_json(document)
    else:
        view(document)


@trajectories_app.command()
@with_options("filters", filter_options(), build=Filters)
def export(
    *,
    out: Out,
    format: Annotated[
        str, typer.Option(help="; ".join(f"{name}: {words}" for name, words in FORMATS.items()) + ".")
    ] = "jsonl",
    filters: Filters,
    limit: Limit = None,
    return_from: Annotated[
        str | None,
        typer.Option(help="What is compared: outcome (default) or raw_total.", rich_help_panel=_PAIRS),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(min=0, help="The difference must be greater. Default: 0.", rich_help_panel=_PAIRS),
    ] = None,
    per_task: Annotated[
        int | None,
        typer.Option(min=1, help="Pairs of one task, the widest first. Default: 8.", rich_help_panel=_PAIRS),
    ] = None,
    force: Force = False,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Export stored trajectories to a file (datasets: a folder) that another library reads.

    The file is written whole or not at all. All text in it was redacted before it was stored. Parquet and
    datasets need the extra 'export'.

    onward trajectories export --format jsonl --since 7d --out week.jsonl
    onward trajectories export --format pairs --out pairs.jsonl
    """
    form = check_format(format, FORMATS)
    rules = _rules(form, return_from, margin, per_task)
    which = filters.selection()
    check_extra(form)

    def work(job: Export) -> Any:
        return job.trajectories(form, rules)

    run_export(
        load_settings(file, data_dir), which, limit, out, work, _written(form),
        force=force, folder=form == "datasets", as_json=as_json,
    )  # fmt: skip


def _rules(form: Format, return_from: str | None, margin: float | None, per_task: int | None) -> Rules:
    if form != "pairs":
        options = {"--return-from": return_from, "--margin": margin, "--per-task": per_task}
        for option, value in options.items():
            if value is not None:
                raise ConfigError(f"{option} is for --format pairs: leave it out, or give that format.")
    default = Rules()
    for name in get_args(ReturnFrom):
        if name == (return_from or default.return_from):
            return Rules(
                name, default.margin if margin is None else margin, per_task=per_task or default.per_task
            )
    raise ConfigError(f"--return-from {str(return_from)[:40]!r} is unknown: give outcome or raw_total.")


def _written(form: Format) -> Any:
    def words(report: Report) -> str:
        if form == "pairs":
            return f"{plural(report.written, 'pair')} of {report.used:,} of {report.stored:,} trajectories"
        return f"{report.written:,} of {report.stored:,} trajectories"

    return words


async def _rows(
    settings: Settings, which: TrajectorySelection, limit: int
) -> tuple[list[dict[str, Any]], int, int]:
    """Returns summaries, the number that match, and the number stored."""
    async with reading(settings) as w:
        counts = await trajectory_queries.reasons(w, which)
        ids = [name for _, name in await trajectory_queries.newest(w, which, limit)]
        found = await trajectory_queries.summaries(w, ids)
    return [found[name] for name in ids if name in found], counts.get("", 0), sum(counts.values())


async def _document(settings: Settings, prefix: str) -> dict[str, Any]:
    async with reading(settings) as w:
        name = await _named(w, prefix)
        record = await records.one(w, name)
        if record is None:
            raise NotFoundError(f"No trajectory {name} is stored.")
        said = await reward_queries.feedback_about(w, [name], [record.trajectory["session_id"]])
        return {
            "trajectory": record.trajectory,
            "reward": record.reward,
            "unscored": None if record.reward else await queries.why_unscored(w, name),
            "feedback": [row for row in said if row["trajectory_id"] in ("", name)],
        }


async def _named(w: Warehouse, prefix: str) -> str:
    """Returns the one id that begins with ``prefix``. Raises NotFoundError when there is none, ConfigError
    when several do and none equals it."""
    found = await trajectory_queries.ids_that_begin(w, prefix, _NAMED + 1)
    if not found:
        raise NotFoundError(
            f"No stored trajectory has an id that begins with {prefix!r}: look in 'onward trajectories list'."
        )
    if len(found) > 1 and found[0] != prefix:
        more = ", …" if len(found) > _NAMED else ""
        raise ConfigError(
            f"{prefix!r} begins several ids: give more of one ({', '.join(found[:_NAMED])}{more})."
        )
    return found[0]


def _table(rows: list[dict[str, Any]]) -> Table:
    from rich.console import Console

    wide = Console().width >= WIDE
    whose = ("agent", "model", "domain") if wide else ()
    table = Table(ident("trajectory"), "began (UTC)", number("turns"), "outcome", number("raw total"), *whose)
    for row in rows:
        began = str(row["start_ts"])[:16].replace("T", " ")
        reward = "-" if row["raw_total"] is None else f"{row['raw_total']:.4f}"
        values = (row["agent_id"], row["model_version"], row["domain"]) if wide else ()
        table.add_row(row["trajectory_id"], began, row["n_turns"], _outcome(row), reward, *values)
    return table


_REPORTED = {"completed_successfully": "success", "partial_completion": "partial", "failed": "failure"}
"""Reported status → the word of the table, the same that a derived outcome has."""


def _outcome(row: dict[str, Any]) -> str:
    """Returns the reported outcome, otherwise the one derived by the reward."""
    if row["status"]:
        return _REPORTED.get(str(row["status"]), str(row["status"]))
    return "-" if row["raw_total"] is None else "success" if row["success"] else "failure"


Document = Mapping[str, Any]
_INDENT = (0, 0, 0, 2)


def view(document: Document) -> None:
    """Prints ``{trajectory, reward, unscored, feedback}`` on standard output."""
    console = Console()
    trajectory = document["trajectory"]
    for part in _head(trajectory):
        console.print(part, highlight=False)
    for turn in trajectory["turns"]:
        for part in _turn(turn):
            console.print(part, highlight=False)
    console.print()
    for part in (*_reward(document), *_feedback(document["feedback"])):
        console.print(part, highlight=False)


def _head(trajectory: Document) -> Iterator[RenderableType]:
    context, metadata = trajectory["task_context"], trajectory["metadata"]
    yield Text(f"Trajectory {plain(trajectory['trajectory_id'])}", style="bold")
    facts = {
        "agent": trajectory["agent_id"],
        "session": trajectory["session_id"],
        "began": trajectory["start_timestamp"],
        "ended": trajectory["end_timestamp"],
        "model": metadata["model"],
        "task": context["task_id"],
        "kind": context.get("task_type"),
        "domain": context.get("domain"),
        "group": context.get("group_id"),
        "outcome": metadata.get("outcome"),
        "release": metadata.get("release"),
        "tokens": metadata.get("total_tokens"),
    }
    for name, value in facts.items():
        if value not in (None, ""):
            yield _line(f"{name:8}", cell(value))
    yield _line("request ", _short(context["instructions"]))


def _turn(turn: Document) -> Iterator[RenderableType]:
    seen, action, result = turn["observation"], turn["action"], turn["result"]
    yield Text()
    took = result.get("execution_time_ms")
    yield Text(f"Turn {turn['turn_id']}{f' ({took:g} ms)' if took is not None else ''}", style="bold")
    yield from _observation(seen)
    for thought in turn.get("thought_process") or ():
        yield from _said("thought", thought, "dim")
    if action["type"] == "response":
        yield from _said("answer", action.get("raw_response") or "(nothing was said)", "green")
    else:
        arguments = json.dumps(action.get("tool_args") or {}, ensure_ascii=False)
        yield from _said(
            action["type"].replace("_", " "), f"{action.get('tool_name') or ''}({arguments})", "cyan"
        )
    if result.get("output") is not None:
        yield from _said("result", result["output"])
    elif action["type"] == "tool_call" and result["success"]:
        yield from _said("result", NO_RESULT, "dim")
    if not result["success"]:
        yield from _said("failed", result.get("error") or "no reason was reported", "red")
    sampled = action.get("sampling")
    if sampled:
        count = len(sampled.get("token_ids") or ())
        yield _line("sampled ", f"{count} tokens by {plain(str(sampled.get('model_digest')))}", "dim")


def _observation(seen: Document) -> Iterator[RenderableType]:
    content, name = seen["content"], seen["type"].replace("_", " ")
    if isinstance(content, Mapping) and isinstance(content.get("messages"), list):
        for message in content["messages"]:
            told = message if isinstance(message, Mapping) else {"content": message}
            calls = told.get("tool_calls")
            yield from _said(str(told.get("role", name)), told.get("content") or calls or "", "blue")
    elif isinstance(content, Mapping) and "same_as_turn" in content:
        yield _line(name, f"as in turn {content['same_as_turn']}", "dim")
    else:
        yield from _said(name, content, "blue")


def _reward(document: Document) -> Iterator[RenderableType]:
    reward, unscored = document["reward"], document["unscored"]
    if reward is None:
        why = "it waits for its reward" if unscored is None else f"{unscored['reason']} {unscored['detail']}"
        yield Text(f"Unscored, which is not a zero: {plain(why).strip()}.")
        return
    metadata = reward["metadata"]
    table = Table("component", number("score"), number("weight"), "why", title="Reward")
    for name, part in reward["reward_components"].items():
        table.add_row(name, f"{part['score']:.4f}", f"{part['weight']:.4f}", part.get("reasoning"))
        raw = part.get("raw_data") or {}
        reasons = raw.get("reasons") or {}
        for criterion, score in (raw.get("criteria") or {}).items() if name == "rubric" else ():
            opinion = "opinion of a model: " if criterion in (raw.get("opinions") or ()) else ""
            weight = (raw.get("weights") or {}).get(criterion)
            table.add_row(
                f"  {criterion}", f"{score:.4f}", cell(weight), opinion + reasons.get(criterion, "")
            )
    yield table
    totals = {"raw_total": metadata.get("raw_total"), "total_reward": reward["total_reward"]}
    yield Text(", ".join(f"{name} {value:.4f}" for name, value in totals.items() if value is not None))
    outcome = metadata.get("outcome") or {}
    if outcome:
        success = "success" if outcome.get("success") else "no success"
        yield Text(f"{success}, completion {cell(outcome.get('completion'))}")


def _feedback(said: list[Document]) -> Iterator[RenderableType]:
    if not said:
        return
    table = Table("when", "kind", "signal", number("value"), "comment", title="Feedback")
    for row in said:
        table.add_row(str(row["ts"])[:19], row["kind"], row["signal"], row["value"], row["comment"])
    yield Text()
    yield table


def _said(name: str, content: Any, style: str = "") -> Iterator[RenderableType]:
    """Yields a name and, indented below it, the content."""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=1)
    yield Text(plain(name), style=style or "none")
    yield Padding(Text("\n".join(map(plain, text.split("\n")))), _INDENT)


def _line(name: str, value: str, style: str = "") -> Text:
    return Text.assemble((name, style or "dim"), " ", (value, style))


def _short(text: str) -> str:
    first = plain(text.split("\n")[0])
    return first if first == text and len(first) <= 200 else f"{first[:200]} …"
