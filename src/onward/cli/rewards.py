"""``onward rewards explain|list|score|simulate``: explains rewards, scores files, simulates other weights."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer
from rich.console import Console

from onward.cli import ConfigFile, DataDir, app, load_settings, reward_tables, run_async
from onward.cli.help import Commands
from onward.cli.output import say
from onward.config import Settings
from onward.contracts import MAX_BYTES, Reward, decode
from onward.errors import ConfigError, NotFoundError
from onward.http.client import Address
from onward.ids import check_id
from onward.reward.scoring import explain as explanation
from onward.reward.scoring import simulate as simulation
from onward.warehouse import queries
from onward.warehouse.embedded import reading

if TYPE_CHECKING:
    from onward.reward.scoring.files import Analyse, ByRubric

KEY_VARIABLE = "ONWARD_API_KEY"
rewards_app = Commands(
    help="""Rewards: how one came about, scores of a file, what other weights would do.

    onward rewards explain 3f0c3ce4-0000-4000-8000-000000000001
    onward rewards score trajectories.jsonl
    """
)
app.add_typer(rewards_app, name="rewards")
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]


@rewards_app.command()
def explain(
    trajectory_id: Annotated[str, typer.Argument(help="Whose reward; a unique prefix is enough.")],
    url: Annotated[
        str | None,
        typer.Option(help="Address of an api role, where neither data folder nor warehouse is at hand."),
    ] = None,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the whole computation of a reward, so that you can redo it with a calculator.

    Signals, raw scores, windows, normalised scores, weights, totals, confidence, superseded rewards. The JSON
    has every number exactly. With --url the key is read from the variable ONWARD_API_KEY.

    onward rewards explain 3f0c3ce4-0000-4000-8000-000000000001
    """
    check_id(trajectory_id, "Trajectory id")
    settings = load_settings(file, data_dir)
    found = run_async(_look_up(settings, trajectory_id) if url is None else _ask(url, trajectory_id))
    if as_json:
        say(json.dumps(found, indent=1))
    else:
        reward_tables.show_explanation(found, Console())


@rewards_app.command("list")
def list_(
    last: Annotated[
        int, typer.Option("--limit", "--last", help="At most this many, the newest.", min=1, max=1000)
    ] = 20,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the newest rewards: trajectory, session, when, total. 'explain' takes the trajectory's id.

    onward rewards list --limit 5
    """
    rows = run_async(_newest_rows(load_settings(file, data_dir), last))
    if as_json:
        say(json.dumps(rows, indent=1, default=str))
    elif not rows:
        say("No reward is stored yet.")
    else:
        reward_tables.show_newest(rows, Console())


@rewards_app.command()
def score(
    source: Annotated[str, typer.Argument(metavar="FILE", help="JSON or JSON lines; '-': standard input.")],
    file: ConfigFile = None,
    data_dir: DataDir = None,
) -> None:
    """Score the trajectories of FILE: no service, no history; one JSON object a line.

    One trajectory, a JSON list of them, or JSON lines. Each is redacted first, as in the service, and nothing
    of its content is printed. The total is the weighted sum of the raw scores. An entry without a trajectory
    is reported by its place on standard error; the others are still scored, and the exit code is 2.

    onward rewards score trajectories.jsonl | jq .total_reward
    """
    from onward.capture.make_redactor import redactor_of  # imported here only, since it compiles the rules
    from onward.reward.scoring.files import score_file

    settings = load_settings(file, data_dir)
    name = "standard input" if source == "-" else source
    good = bad = 0
    with _opened(source) as stream, _before_scoring(settings) as (analyse, by_rubric):
        redactor = redactor_of(settings)
        for answer in score_file(stream, name, settings.reward, redactor, analyse, by_rubric):
            if answer.document is None:
                bad += 1
                say(f"{answer.place}: {answer.error}", err=True)
            else:
                good += 1
                say(json.dumps(answer.document))
    if bad:
        raise typer.Exit(2)
    if not good:
        say("No trajectory was given.", err=True)


@rewards_app.command()
def simulate(
    weights: Annotated[
        str, typer.Option(help="NAME=NUMBER with commas between them; what is not named counts 0.")
    ],
    last: Annotated[
        int, typer.Option("--limit", "--last", help="At most this many, the newest.", min=2, max=100_000)
    ] = 1000,
    by: Annotated[
        Literal["raw_total", "total_reward"], typer.Option(help="Which of the totals orders them.")
    ] = "raw_total",
    show: Annotated[int, typer.Option(help="So many examples that moved most.", min=0)] = 5,
    normalize: Annotated[bool, typer.Option("--normalize", help="Divide the weights by their sum.")] = False,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show how other weights would reorder the newest trajectories, before anyone applies them.

    Uses the stored scores: nothing is scored again and nothing is changed.

    onward rewards simulate --weights task_completion=.6,efficiency=.2,user_feedback=.2 --limit 500
    """
    settings = load_settings(file, data_dir)
    present = settings.reward.weights()
    wanted = simulation.parse_weights(weights, known=tuple(present), normalize=normalize)
    rewards = run_async(_newest(settings, last))
    if not rewards:
        raise NotFoundError("No reward is stored yet: there is nothing to reorder.")
    found = simulation.simulate(rewards, wanted, by=by, show=show)
    if as_json:
        say(json.dumps(found, indent=1))
    else:
        reward_tables.show_simulation(found, Console())


async def _look_up(settings: Settings, trajectory_id: str) -> dict[str, Any]:
    async with reading(settings) as view:
        found = await explanation.look_up(view, trajectory_id, settings.reward.weights())
        if found is None:
            raise await explanation.unknown_id(view, trajectory_id)
        return found


async def _newest_rows(settings: Settings, last: int) -> list[dict[str, Any]]:
    async with reading(settings) as view:
        rows = await queries.newest_rewards(view, last)
    names = ("trajectory_id", "session_id", "ts", "total_reward", "raw_total", "task_type")
    return [{name: row[name] for name in names} for row in rows]


async def _newest(settings: Settings, last: int) -> list[Reward]:
    async with reading(settings) as view:
        rows = await queries.newest_rewards(view, last)
    return [decode(row["payload"].encode(), Reward, max_bytes=2 * MAX_BYTES) for row in rows]


async def _ask(url: str, trajectory_id: str) -> dict[str, Any]:
    """Fetches the explanation from an api. Raises an OnwardError with the sentence of the api."""
    service = Address(url.rstrip("/"), os.environ.get(KEY_VARIABLE) or None, "--url", KEY_VARIABLE)
    return await service.call("GET", f"/rewards/{trajectory_id}")


@contextlib.contextmanager
def _before_scoring(settings: Settings) -> Iterator[tuple[Analyse, ByRubric]]:
    """Yields two functions: what is known about the code of a trajectory, and about it by its rubric."""
    from onward.reward.role.analysis import Analysis, code_analyser

    rubrics, writers = None, None
    if settings.reward.rubrics:
        from onward.rubrics.trajectories import needs_released, rubrics_of

        if needs_released(settings.reward):
            from onward.training.writers import StoredWriters
            from onward.warehouse import Objects

            writers = StoredWriters(Objects.open(settings.objects_at), settings)
        logs = settings.data_dir / "logs" if settings.data_dir.is_dir() else None
        rubrics = rubrics_of(settings.reward, writers, logs=logs)
    analysis = Analysis(code_analyser(settings.reward), rubrics)
    with asyncio.Runner() as runner:
        connection = contextlib.AsyncExitStack()
        try:
            if writers is not None:
                from onward import host

                writers.read_from(runner.run(connection.enter_async_context(host.records(settings))))
            runner.run(analysis.start())
            yield (
                lambda item: runner.run(analysis.reports({"": item})).get(""),
                lambda item: runner.run(analysis.rubrics({"": item})).get(""),
            )
        finally:
            runner.run(analysis.stop())
            runner.run(connection.aclose())


@contextlib.contextmanager
def _opened(source: str) -> Iterator[BinaryIO]:
    if source == "-":
        if sys.stdin.isatty():
            say("Reading standard input; Ctrl-D ends it.", err=True)
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(Path(source).open("rb"))
        except OSError as error:
            raise ConfigError(f"{source} cannot be read: {error.strerror}.") from None
        yield file
