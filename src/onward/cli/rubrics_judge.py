"""``onward rubrics eval``, ``explain`` and ``compare``: how well rubrics score work."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward.cli import ConfigFile, DataDir
from onward.cli.output import AsJson, Table, number, print_json, print_text, say
from onward.cli.rubrics import Temperature, rubrics, task_named
from onward.errors import ConfigError

if TYPE_CHECKING:
    from onward.rubrics.explanation import Explanation
    from onward.rubrics.language import Rubric
    from onward.rubrics.tasks import RubricTask

UNDECIDED = 3
_CONTROLS = {
    "shuffled_tasks": "its rubrics on another task of the family",
    "blank_brief": "it sees the checks alone",
    "shuffled_answers": "the stakeholder answers for another task",
    "no_answers": "the stakeholder has nothing to add",
    "hidden_design": "its rubrics on other outputs",
}
Seeds = Annotated[int, typer.Option(min=1, help="Tasks of each family.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the draws.")]
SplitName = Annotated[
    list[str] | None, typer.Option("--split", metavar="SPLIT", help="Repeatable. Default: all four.")
]
_PRICE = "Dollars of a million tokens of prompts and of answers, such as 0.4,1.6."


@rubrics.command("eval")
def evaluate(
    writer: Annotated[str, typer.Argument(metavar="WRITER", help="A run, a model or a baseline.")],
    split: SplitName = None,
    seeds: Seeds = 4,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    controls: Annotated[bool, typer.Option(help="Show whether skill comes from reading the task.")] = True,
    price: Annotated[str | None, typer.Option(metavar="IN,OUT", help=_PRICE)] = None,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Judge a rubric writer on tasks that it never trained on, beside rubrics that need no learning.

    onward rubrics eval rubrics-run

    onward rubrics eval openai:gpt-4.1-mini --split held_out_families --no-controls --price 0.4,1.6

    Skill is 1 for a rubric that scores outputs as the truth does, and 0 for one that cannot tell them apart.
    The splits: held_out_families, new_seeds, new_preferences, new_parameters.
    """
    from onward.cli.rubrics_releases import open_named
    from onward.rubrics.comparison import evaluated
    from onward.rubrics.policy.splits import SPLITS

    if controls and seeds < 2:
        raise ConfigError("Controls move each rubric to another task of its family: give --seeds 2 or more, "
                          "or --no-controls.")  # fmt: skip
    opened = open_named(writer, file, data_dir)
    writer = opened.name
    report = evaluated(
        opened,
        _splits(split) or SPLITS,
        seeds=seeds,
        temperature=temperature,
        seed=seed,
        price=_price(price),
        with_controls=controls,
    )
    if as_json:
        print_json({"writer": writer, "splits": report})
        return
    names = ("skill", "95 % interval", "F1", "valid", "degenerate", "questions")
    table = Table("split", *map(number, names), title=writer)
    for name, facts in report.items():
        table.add_row(name, *_figures(facts))
    print_text(table)
    for name, facts in report.items():
        print_text(f"{name}: {facts['episodes']} episodes, {_cost(facts['cost'])}.")
    first, facts = next(iter(report.items()))
    points = facts["reference_points"].items()
    others = [(name, str(one["words"]), one) for name, one in points]
    found = facts.get("controls", {}).items()
    others += [(name, f"control: {_CONTROLS[name]}", one) for name, one in found]
    table = Table("beside it", "what it is", number("skill"), number("95 % interval"), title=first)
    for name, words, one in others:
        table.add_row(name, words, f"{one['skill']:.3f}", _interval(one["interval"]))
    print_text(table)


def _splits(given: list[str] | None) -> list[str]:
    from onward.rubrics.policy.splits import SPLITS
    from onward.spelling import closest_name

    for name in given or []:
        if name not in SPLITS:
            near = closest_name(name, SPLITS)
            hint = f"did you mean {near}?" if near else f"give one of {', '.join(SPLITS)}."
            raise ConfigError(f"There is no split {name!r}: {hint}")
    return list(dict.fromkeys(given or []))


def _price(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        prompts, answers = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"The price {text!r} is not two numbers: give IN,OUT, such as 0.4,1.6.") from None
    return prompts, answers


def _figures(facts: dict[str, Any]) -> Sequence[str]:
    return (
        f"{facts['skill']:.3f}", _interval(facts["interval"]), f"{facts['f1']:.3f}",
        f"{1 - facts['invalid']:.1%}", f"{facts['degenerate']:.1%}", f"{facts['questions']:.2f}",
    )  # fmt: skip


def _interval(found: dict[str, float]) -> str:
    return f"{found['low']:.3f} … {found['high']:.3f}"


def _cost(cost: dict[str, Any]) -> str:
    words = f"{cost['seconds']:.1f} s, {cost['completion_tokens']:,} tokens written"
    if cost["requests"] is not None:
        words += f", {cost['prompt_tokens']:,} read in {cost['requests']:,} requests"
    return words + ("" if cost["dollars"] is None else f", {cost['dollars']:.4f} dollars")


@rubrics.command()
def explain(
    rubric: Annotated[
        str,
        typer.Argument(
            metavar="RUBRIC", help="File of 'generate --json'; - for stdin. With --writer: the task."
        ),
    ],
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="FAMILY/SEED. Default: the file says it.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page: outputs with both scores side by side.")
    ] = None,
    writer: Annotated[
        str | None,
        typer.Option(metavar="WRITER", help="Writes the rubric of the task here; no file is read."),
    ] = None,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Explain a rubric criterion by criterion: what it separates, both scores, and the terms of its reward.

    onward rubrics explain rubric.json --page rubric.html

    onward rubrics explain travel_itinerary/1 --writer released

    The file has {"criteria": [{"check", "arg", "weight"}, …]}, or is what 'onward rubrics generate --json'
    prints. Twelve outputs are designed so that each check holds in half of them.
    """
    from onward.rubrics.explanation import explained

    if writer is None:
        parsed, found, questions, by = _read(rubric, task)
    elif task is not None:
        raise ConfigError(f"With --writer the task is the only argument: leave {task} out.")
    else:
        parsed, found, questions, by = _write(rubric, writer, file, data_dir)
    explanation = explained(parsed, found, questions=questions)
    if page is not None:
        from onward.files import check_file
        from onward.rubrics.page import write_rubric_page

        check_file(page)
        write_rubric_page(page, explanation, by)
    if as_json:
        print_json(explanation.as_dict())
        return
    _show(explanation)
    if page is not None:
        say(f"Page: {page}")


def _write(
    name: str, writer: str, file: Path | None, data_dir: Path | None
) -> tuple[Rubric, RubricTask, int, str]:
    """Returns the same for a rubric that ``writer`` writes now. Raises ConfigError if it writes none."""
    from onward.cli.rubrics_releases import open_named

    task, opened = task_named(name), open_named(writer, file, data_dir)
    (attempt,) = opened.player.play([task], temperature=0.0)
    if attempt.rubric is None:
        raise ConfigError(f"{opened.name} wrote no valid rubric for {name}: {attempt.problem}")
    return attempt.rubric, task, len(attempt.questions), opened.name


def _read(source: str, name: str | None) -> tuple[Rubric, RubricTask, int, str]:
    """Returns rubric, task, number of questions and writer of a file. Raises ConfigError."""
    from onward.rubrics.language import parse

    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
        document = json.loads(text)
    except OSError as error:
        raise ConfigError(f"The rubric {source} cannot be read ({error.strerror}): give a file.") from None
    except ValueError:
        raise ConfigError(
            f"{source} is no JSON: give what 'onward rubrics generate --json' prints."
        ) from None
    if not isinstance(document, dict):
        raise ConfigError(
            f"{source} is no rubric: give an object with criteria, or what 'onward rubrics generate --json' "
            f"prints."
        )
    writer, entry = str(document.get("writer", "")), document
    if isinstance(document.get("rubrics"), list):
        entries = [one for one in document["rubrics"] if isinstance(one, dict)]
        fit = [one for one in entries if name in (None, one.get("task"))]
        if len(fit) != 1:
            tasks = ", ".join(str(one.get("task")) for one in entries)
            raise ConfigError(f"{source} has rubrics for {tasks or 'no task'}: give one of these tasks.")
        entry = fit[0]
    name = name or entry.get("task")
    if not name:
        raise ConfigError(
            f"{source} does not say which task its rubric is for: give it, such as recall_notice/3."
        )
    value = entry.get("rubric") or entry
    if "criteria" not in value:
        raise ConfigError(f"{source} has no criteria: {entry.get('problem') or 'give a rubric.'}")
    task = task_named(str(name))
    rubric = parse(json.dumps({"criteria": value["criteria"]}), task.active)
    return rubric, task, len(entry.get("questions") or ()), writer


def _show(found: Explanation) -> None:
    from onward.rubrics.explanation import name_of, signed

    columns = map(number, ("weight", "share", "true share", "gap"))
    table = Table("criterion", *columns, "holds in", title=name_of(found.task))
    for one in found.criteria:
        gap = "none" if one.gap is None else signed(one.gap)
        where = ", ".join(map(str, one.holds)) or "none"
        table.add_row(
            str(one.check), str(one.weight), f"{one.share:.2f}", f"{one.true_share:.2f}", gap, where
        )
    print_text(table)
    print_text(
        "Gap: how much better, by the truth, the outputs are in which the criterion holds. Without a weight "
        "in the truth ('true share' 0.00) it adds noise."
    )
    if found.missing:
        left = ", ".join(f"{check} ({weight:.2f})" for check, weight in found.missing)
        print_text(f"Counts in the truth and is missing: {left}.")
    table = Table(number("output"), number("this rubric"), number("truth"), number("difference"))
    for one in found.outputs:
        table.add_row(str(one.number), f"{one.score:.2f}", f"{one.truth:.2f}", signed(one.score - one.truth))
    print_text(table)
    reward = found.reward
    if reward.total is None or reward.gate:
        print_text(f"Reward: {reward.failure or f'{reward.total}, {reward.gate}'}.")
        return
    terms = " ".join(f"{signed(value, 3)} ({name})" for name, value in reward.terms.items())
    print_text(f"Reward {reward.total:.3f} = {terms}.")


@rubrics.command()
def compare(
    a: Annotated[str, typer.Option("--a", metavar="WRITER", help="First writer.")],
    b: Annotated[str, typer.Option("--b", metavar="WRITER", help="Second writer.")],
    split: Annotated[str, typer.Option(metavar="SPLIT", help="Tasks to compare on.")] = "held_out_families",
    seeds: Seeds = 4,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    price_a: Annotated[str | None, typer.Option(metavar="IN,OUT", help=_PRICE)] = None,
    price_b: Annotated[str | None, typer.Option(metavar="IN,OUT", help="The same for B.")] = None,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Compare two writers on the same tasks: difference in skill with its interval, and cost.

    onward rubrics compare --a rubrics-run --b openai:gpt-4.1-mini --price-b 0.4,1.6

    onward rubrics compare --a rubric-writer-v3 --b released

    Exit code 0: A is better; 1: B is better; 3: the interval has 0 in it, so no difference is shown.
    """
    from onward.cli.rubrics_releases import open_named
    from onward.rubrics.comparison import compared
    from onward.rubrics.policy.splits import judging_tasks

    (name,) = _splits([split])
    tasks = judging_tasks(name, seeds)
    prices = _price(price_a), _price(price_b)
    first, second = (open_named(one, file, data_dir) for one in (a, b))
    a, b = first.name, second.name
    found = compared(first, second, tasks, temperature=temperature, seed=seed, prices=prices)
    words = {"a": f"{a} is better than {b}", "b": f"{b} is better than {a}"}
    better = words.get(found.verdict, f"No difference between {a} and {b} is shown")
    gap = found.difference
    sentence = (
        f"{better}: on {len(tasks)} tasks of {name} the skill differs by {gap.mean:+.3f} "
        f"(95 %: {gap.low:+.3f} … {gap.high:+.3f})."
    )
    sides = (("a", a, found.a, found.cost_a), ("b", b, found.b, found.cost_b))
    if as_json:
        document: dict[str, Any] = {
            side: {"writer": writer, **one.report(), "cost": asdict(cost)}
            for side, writer, one, cost in sides
        }
        facts = {"split": name, "tasks": len(tasks), "difference": asdict(gap), "verdict": found.verdict}
        print_json({**document, **facts, "sentence": sentence})
    else:
        names = ("skill", "95 % interval", "F1", "valid", "degenerate", "questions")
        table = Table("writer", *map(number, names))
        for _, writer, one, _ in sides:
            table.add_row(writer, *_figures(one.report()))
        print_text(table)
        for _, writer, _, cost in sides:
            print_text(f"{writer}: {_cost(asdict(cost))}.")
        print_text(sentence)
    code = {"a": 0, "b": 1}.get(found.verdict, UNDECIDED)
    if code:
        raise typer.Exit(code)
