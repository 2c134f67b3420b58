"""A rubric writer before and after reinforcement learning, on task families that it never saw.

    python benchmarks/rubrics_learning.py --seeds 0 1 2 --json benchmarks/results/rubrics_learning.json
    python benchmarks/rubrics_learning.py --model FOLDER --seeds 0 --tasks 2 --short --json rubrics_model.json

For each training seed: warm start, learning, then four held-out splits, reference points and controls. The
page beside the JSON file is made from it. A run that was interrupted goes on where it stopped. ``--model``
trains an adapter of another model by a short plan of its own (``SHORT``): a step costs minutes there.
``--short`` judges on unseen families alone, at temperature 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from machine import machine
from onward.progress import Bars
from onward.rubrics.policy.display import draw_curves, shown
from onward.rubrics.policy.evaluation import Judged, controls, difference, judged, reference_points, shuffled
from onward.rubrics.policy.figures import Interval
from onward.rubrics.policy.plan import TINY, Plan, WarmStart
from onward.rubrics.policy.splits import HELD_OUT, SPLITS, judging_tasks
from onward.rubrics.policy.training import BASE, WRITER, train
from onward.rubrics.policy.writer import load_player

TEMPERATURES = (1.0, 0.0)
SHORT = Plan(
    steps=8,
    tasks_per_step=3,
    group_size=4,
    learning_rate=2e-4,
    eval_every=8,
    eval_tasks=4,
    save_every=1,
    seeds_per_family=16,
    warm_start=WarmStart(demonstrations=640, steps=80, batch_rows=8, learning_rate=1e-3),
)
"""The plan for a language model of some 100 million weights on two cores."""


def trained(plan: Plan, folder: Path) -> dict[str, float]:
    """Trains in ``folder``; returns the time that it took, or the time of the run that is there already."""
    cost = folder / "cost.json"
    if not cost.is_file():
        wall, cpu = time.monotonic(), time.process_time()
        with Bars(Console(stderr=True)) as bars:
            train(plan, folder, emit=shown(bars))
        found = {"wall_seconds": time.monotonic() - wall, "cpu_seconds": time.process_time() - cpu}
        cost.write_text(json.dumps({**found, "load": os.getloadavg()[1]}))
        draw_curves(folder)
    return json.loads(cost.read_text())


def episodes(folder: Path, split: str, seeds: int, temperature: float) -> Judged:
    return judged(load_player(folder), judging_tasks(split, seeds), temperature=temperature)


def evaluated(
    folder: Path, seeds: int, temperature: float, *, short: bool = False
) -> tuple[dict[str, Any], tuple[Judged, Judged]]:
    """Returns the report of one run, and its episodes on unseen families before and after learning.
    ``short``: only unseen families, and only the control that plays no episodes."""
    found: dict[str, Any] = {"splits": {}}
    unseen: list[tuple[Judged, Judged]] = []
    for split in SPLITS[: 1 if short else None]:
        count = seeds if split == HELD_OUT else max(1, seeds // 4)
        before, after = (episodes(folder / name, split, count, temperature) for name in (BASE, WRITER))
        gain = difference([after], [before])
        found["splits"][split] = {
            "warm_start": before.report(),
            "learned": after.report(),
            "gain": asdict(gain),
        }
        if split == HELD_OUT:
            found["skills"] = {"warm_start": before.skills, "learned": after.skills}
            unseen.append((before, after))
            tasks = judging_tasks(split, count)
            found["warm_start_fall"] = asdict(difference([before], [shuffled(before, tasks)]))
            if short:
                made = {"shuffled_tasks": shuffled(after, tasks)}
            else:
                made = controls(load_player(folder / WRITER), tasks, after, temperature=temperature)
            found["controls"] = {
                name: {**one.report(), "fall": asdict(difference([after], [one]))}
                for name, one in made.items()
            }
            if short:
                continue
            answers = difference([made["shuffled_answers"]], [made["no_answers"]])
            found["gain_from_answers"] = asdict(difference([after], [made["no_answers"]]))
            found["gain_from_shuffled_answers"] = asdict(answers)
    return found, unseen[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--model", default=TINY, help="tiny, or the folder of a model")
    parser.add_argument("--steps", type=int, help="of reinforcement learning; the plan's number if not given")
    parser.add_argument("--short", action="store_true", help="unseen families alone, at temperature 1")
    parser.add_argument("--tasks", type=int, default=32, help="held-out tasks of each family")
    parser.add_argument("--work", type=Path, default=Path("rubrics-runs"), help="folder of the runs")
    parser.add_argument("--train-only", action="store_true", help="train the seeds, judge them later")
    parser.add_argument("--quick", action="store_true", help="one seed, one step, a task of each family")
    parser.add_argument("--json", type=Path, default=Path("rubrics_learning.json"), help="the results")
    given = parser.parse_args()
    preset = Plan() if given.model == TINY else replace(SHORT, model=given.model)
    preset = replace(preset, steps=preset.steps if given.steps is None else given.steps)
    if given.quick:
        given.seeds, given.tasks = given.seeds[:1], 2
        start = replace(preset.warm_start, demonstrations=64, steps=4)
        preset = replace(preset, steps=1, warm_start=start)
    temperatures = TEMPERATURES[: 1 if given.short else None]
    runs: dict[str, Any] = {}
    unseen: dict[float, list[tuple[Judged, Judged]]] = {t: [] for t in temperatures}
    for seed in given.seeds:
        folder = given.work / f"seed-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        plan = replace(preset, seed=seed)
        cost = trained(plan, folder)
        print(f"seed {seed}: {cost}", file=sys.stderr, flush=True)
        if given.train_only:
            continue
        evaluation = {}
        for t in temperatures:
            evaluation[str(t)], both = evaluated(folder, given.tasks, t, short=given.short)
            unseen[t].append(both)
        runs[str(seed)] = {"cost": cost, "evaluation": evaluation}
        report = {
            "machine": machine(),
            "load": os.getloadavg(),
            "plan": asdict(replace(plan, seed=0, model=Path(plan.model).name)),
            "reference_points": reference_points(judging_tasks(HELD_OUT, given.tasks)),
            "tasks_per_family": given.tasks,
            "gain": {str(t): asdict(_pooled(unseen[t])) for t in temperatures},
            "runs": runs,
        }
        given.json.write_text(json.dumps(report, indent=1) + "\n")
        given.json.with_suffix(".md").write_text(page(report))
    return 0


def _pooled(runs: list[tuple[Judged, Judged]]) -> Interval:
    """Returns the gain over all training seeds, averaged task by task, with its interval over families."""
    return difference([after for _, after in runs], [before for before, _ in runs])


COLUMNS = {
    "reward": ".2f",
    "f1": ".2f",
    "invalid": ".1%",
    "degenerate": ".1%",
    "questions": ".2f",
    "distinct": ".0f",
    "entropy": ".2f",
    "notes_right": ".0%",
}
"""Figures of the learned writer and their formats."""


def page(report: dict[str, Any]) -> str:
    """Returns the results for people, all seeds side by side."""
    runs = report["runs"]
    lines = [f"# A rubric writer learns: {report['plan']['model']}", ""]
    tasks = report["tasks_per_family"]
    lines += ["Made by `benchmarks/rubrics_learning.py`. Skill is 1 for the truth, 0 for a constant score,"]
    lines += ["and at least -1. Intervals are 95 %, over families of tasks, by Student's t. Tasks of each"]
    lines += [f"family: {tasks} of the held-out ones, {max(1, tasks // 4)} in the other splits.", ""]
    for seed, one in runs.items():
        cost = one["cost"]
        took = f"{cost['cpu_seconds']:.0f} s of CPU, {cost['wall_seconds']:.0f} s by the clock"
        lines.append(f"- Seed {seed}: {took} under a load of {cost['load']:.0f}.")
    for temperature, gain in report["gain"].items():
        lines += ["", f"## Temperature {temperature}", ""]
        lines += [f"Gain over the warm start on unseen families, {len(runs)} seeds: {_interval(gain)}.", ""]
        lines += _table("seed", "split", "warm start", "learned", "gain", *COLUMNS)
        for seed, one in runs.items():
            for split, found in one["evaluation"][temperature]["splits"].items():
                skills = [f"{found[name]['skill']:.2f}" for name in ("warm_start", "learned")]
                rest = [_cell(found["learned"][name], form) for name, form in COLUMNS.items()]
                lines.append(_row(seed, split, *skills, _interval(found["gain"]), *rest))
        lines += ["", *_table("seed", "control", "skill", "fall from the right one")]
        for seed, one in runs.items():
            found = one["evaluation"][temperature]
            for name, control in found["controls"].items():
                lines.append(_row(seed, name, f"{control['skill']:.2f}", _interval(control["fall"])))
        for seed, one in runs.items():
            found = one["evaluation"][temperature]["warm_start_fall"]
            skill = one["evaluation"][temperature]["splits"][HELD_OUT]["warm_start"]["skill"] - found["mean"]
            lines.append(_row(seed, "shuffled_tasks, of the warm start", f"{skill:.2f}", _interval(found)))
        with_answers = [s for s, one in runs.items() if "gain_from_answers" in one["evaluation"][temperature]]
        if with_answers:
            lines += ["", *_table("seed", "gain in skill from answers", "from those for another task")]
        for seed in with_answers:
            found = runs[seed]["evaluation"][temperature]
            gains = (found["gain_from_answers"], found["gain_from_shuffled_answers"])
            lines.append(_row(seed, *map(_interval, gains)))
    lines += ["", "## Reference points on unseen families", ""]
    lines += _table("rubric", "what it is", "skill", "reward")
    for name, one in report["reference_points"].items():
        lines.append(_row(name, one["words"], _interval(one["interval"]), f"{one['reward']:.2f}"))
    return "\n".join(lines) + "\n"


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _table(*names: str) -> list[str]:
    return [_row(*names), "|" + "---|" * len(names)]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _interval(found: dict[str, float]) -> str:
    return f"{found['mean']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


if __name__ == "__main__":
    sys.exit(main())
