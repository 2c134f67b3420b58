"""``onward rubrics``: writes rubrics and trains their writer. Judging is in ``rubrics_judge.py``, what is
released in ``rubrics_releases.py``."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward.cli import ConfigFile, DataDir, app
from onward.cli.help import Commands
from onward.cli.output import AsJson, Table, console, number, print_json, print_text, say
from onward.errors import ConfigError, install_command

if TYPE_CHECKING:
    from onward.rubrics.policy.episodes import Attempt
    from onward.rubrics.policy.plan import Plan
    from onward.rubrics.tasks import RubricTask

rubrics = Commands(
    help="""Rubrics: train a model that writes them, and see how well they score work.

    onward rubrics train --out rubrics-run
    onward rubrics generate travel_itinerary/1 --writer rubrics-run

    A WRITER is a folder of a run, released or a version (see 'releases'), openai:NAME, vllm:NAME@URL,
    sglang:NAME@URL, local:FOLDER (a model that has not learnt it), or baseline:NAME (a reference point; needs
    no model). Keys come from OPENAI_API_KEY, VLLM_API_KEY and SGLANG_API_KEY.
    """
)
app.add_typer(rubrics, name="rubrics")

WriterName = Annotated[
    str, typer.Option("--writer", "--model", metavar="WRITER", help="Who writes: a run, a model, a baseline.")
]
Temperature = Annotated[float, typer.Option(min=0, help="0 takes the likeliest words.")]


def task_named(name: str) -> RubricTask:
    """Returns the task of FAMILY or FAMILY/SEED. Raises ConfigError."""
    from onward.rubrics.tasks import make_task

    family, slash, seed = name.partition("/")
    if slash and not (seed.isascii() and seed.isdigit()):
        raise ConfigError(
            f"The task {name!r} has no number as its seed: give FAMILY/SEED, such as {family}/3."
        )
    return make_task(family, int(seed or 0))


@rubrics.command()
def generate(
    tasks: Annotated[list[str], typer.Argument(metavar="TASK", help="FAMILY or FAMILY/SEED.")],
    writer: WriterName,
    ask: Annotated[
        bool,
        typer.Option("--ask", help="You answer the writer's questions. Default: the task's table does."),
    ] = False,
    temperature: Temperature = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Generate the rubric of tasks: its checks, their weights, and what the writer asked before.

    onward rubrics generate travel_itinerary/1 --writer rubrics-run

    onward rubrics generate survey_digest --model openai:gpt-4.1-mini --json > rubric.json

    Exit code 1: a text was no valid rubric. docs/rubrics-tasks.md lists the families.
    """
    from onward.cli.rubrics_releases import open_named
    from onward.rubrics.policy.episodes import answers_of

    named = [task_named(name) for name in tasks]
    opened = open_named(writer, file, data_dir)
    found = opened.player.play(
        named,
        seed=seed,
        temperature=temperature,
        stakeholder=(lambda task: _asked_here) if ask else answers_of,
    )
    if as_json:
        print_json({"writer": opened.name, "rubrics": [written(one) for one in found]})
    else:
        for one in found:
            _show(one)
    if any(one.rubric is None for one in found):
        raise typer.Exit(1)


def _asked_here(topic: str) -> str:
    return typer.prompt(f"The writer asks how much {topic} matters", err=True)


def written(one: Attempt) -> dict[str, Any]:
    """Returns an episode as JSON; ``rubric`` is None if it was not valid, for the reason ``problem``."""
    from onward.rubrics.explanation import name_of
    from onward.rubrics.language import serialise

    return {
        "task": name_of(one.task),
        "brief": one.task.brief,
        "questions": list(one.questions),
        "rubric": None if one.rubric is None else json.loads(serialise(one.rubric)),
        "problem": one.problem,
    }


def _show(one: Attempt) -> None:
    from onward.rubrics.explanation import name_of
    from onward.rubrics.tasks import describe

    name = name_of(one.task)
    asked = f"asked about {', '.join(one.questions)}" if one.questions else "no question asked"
    if one.rubric is None:
        print_text(f"{name}: no valid rubric ({asked}). {one.problem}")
        return
    table = Table("check", "asks", number("weight"), number("share"), title=f"{name}, {asked}")
    for criterion, share in zip(one.rubric.criteria, one.rubric.weights, strict=True):
        cells = str(criterion.check), describe(criterion.check), str(criterion.weight), f"{share:.0%}"
        table.add_row(*cells)
    print_text(table)


@rubrics.command()
def train(
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("rubrics-run"),
    algorithm: Annotated[
        str | None, typer.Option(help="rloo, grpo, reinforce or reinforce_plus_plus. Default: rloo.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=0, help="Steps of learning. Default: 80.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the run. Default: 0.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Another setting. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Events as JSON lines.")] = False,
) -> None:
    """Train a rubric writer: demonstrations first, then reinforcement learning by the reward alone.

    onward rubrics train --out rubrics-run

    onward rubrics train --algorithm grpo --steps 120 --set group_size=16 --set warm_start.steps=200

    This takes about five minutes on two cores. One minute shows the way, and teaches little:

    onward rubrics train --out short --steps 4 --set warm_start.demonstrations=600 --set warm_start.steps=30

    Ctrl-C saves after the present step, and the same command goes on. The folder then has writer/ (the
    result), base/ (after the demonstrations), metrics.jsonl and curves.png. --set model=FOLDER trains an
    adapter of a model of yours instead of a tiny network.
    """
    from onward.rubrics.policy.plan import Plan

    asked = {"algorithm": algorithm, "steps": steps, "seed": seed}
    values = {name: value for name, value in asked.items() if value is not None}
    plan = changed(Plan.read(out) or Plan(), values, changes or [])  # before the rest is loaded
    from onward.progress import Bars
    from onward.rubrics.policy.display import shown
    from onward.rubrics.policy.training import train as train_writer

    with Bars(console(), quiet=as_json) as bars, stop_asked() as stop:
        emit = _print_event if as_json else shown(bars)
        writer = train_writer(plan, out, emit=emit, stop=stop)
    if writer is None:
        say(f"Stopped and saved: the same command goes on in {out}.", err=True)
        raise typer.Exit(130)
    picture = _curves(out) if plan.steps else None
    if as_json:
        _print_event("ended", writer=str(writer), curves=picture)
        return
    say(f"Writer: {writer}" + (f"; curves: {picture}" if picture else ""))
    print_text(f"Judge it with 'onward rubrics eval {out}'.")


def _curves(folder: Path) -> str | None:
    from onward.rubrics.policy.display import draw_curves

    try:
        return str(draw_curves(folder)[0])
    except ImportError:
        say(f"No curves are drawn without matplotlib: run {install_command('matplotlib')}.", err=True)
        return None


def _print_event(event: str, **facts: Any) -> None:
    say(json.dumps({"event": event, **facts}, default=str))


@contextmanager
def stop_asked() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns True after Ctrl-C or SIGTERM; the second one ends the command."""
    asked: list[int] = []

    def taken(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {one: signal.signal(one, taken) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def changed(plan: Plan, values: dict[str, Any], assignments: Sequence[str]) -> Plan:
    """Returns ``plan`` with ``values`` and with assignments such as ``group_size=16`` or
    ``warm_start.steps=200``. Raises ConfigError for a name or a value that it cannot have."""
    from onward.rubrics.policy.plan import Plan as TheirPlan

    document = {**asdict(plan), **values}
    for assignment in assignments:
        name, equals, text = (part.strip() for part in assignment.partition("="))
        *outer, last = name.split(".")
        part: Any = document
        for key in outer:
            part = part.get(key) if isinstance(part, dict) else None
        if not equals or not isinstance(part, dict) or (last not in part and outer != ["options"]):
            raise ConfigError(_unknown(name, equals, part if isinstance(part, dict) else document))
        part[last] = _value(text, part.get(last))
    return TheirPlan.from_dict(document)


def _unknown(name: str, equals: str, part: dict[str, Any]) -> str:
    from onward.spelling import closest_name

    if not equals:
        return f"--set {name}: give NAME=VALUE, such as --set group_size=16."
    outer, dot, last = name.rpartition(".")
    near = closest_name(last, part)
    known = f"did you mean {outer}{dot}{near}?" if near else f"there are {', '.join(part)}."
    return f"--set {name}: a run of a rubric writer has no such setting, {known}"


def _value(text: str, present: Any) -> Any:
    """Returns the JSON value of an assignment, else its text; ``present`` is the setting's value so far."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return text.split(",") if isinstance(present, tuple) and isinstance(value, str) else value
