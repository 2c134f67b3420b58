"""The table of control training: several seeds per task and algorithm, every success metric measured.

For each (environment, algorithm, seed) our preset is trained to the end of its steps. The policy that was
best by evaluation is judged by ``onward.control.evaluation.assess`` (100 greedy episodes on unseen seeds,
noise of 0.2 running deviations, transfer variants). Over the seeds the table gives the interquartile mean and
the coefficient of variation, with bootstrap intervals from five seeds on. Definitions: docs/control.md. The
last column lists the targets that were not reached.

Every finished cell is written at once, and an interrupted cell continues from its saved state. The program
can therefore be stopped at any time and started again with the same arguments. A cell is trained anew when
its settings change. Trainings run in ``--runs``; only the two result files are kept in the repository.

    python benchmarks/control_results.py [--quick] [--only ENV/ALGORITHM …] [--seeds N] [--processes N]
        [--runs FOLDER] [--json FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from machine import machine, machine_in_words
from onward.control.evaluation.assess import assess
from onward.control.evaluation.statistics import (
    FEWEST_SEEDS,
    SOLVE_LIMIT,
    iqm,
    iqm_interval,
    variation,
    variation_interval,
)
from onward.control.policies.policy import Policy
from onward.control.running import presets
from onward.control.running.runs import Folder, RunConfig, read_json, write_json
from onward.control.running.seeds_in_parallel import Task, train_all

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Group:
    """Several seeds of one task and algorithm."""

    env: str
    algorithm: str
    seeds: int = 3
    timesteps: int | None = None
    """None means the preset's number."""

    @property
    def name(self) -> str:
        return f"{self.env}/{self.algorithm}"

    def run(self, seed: int) -> RunConfig:
        name, found = presets.preset(None, self.algorithm, self.env)
        return RunConfig(
            env=self.env,
            algorithm=self.algorithm,
            settings=presets.settings(self.algorithm, found, {}),
            preset=name,
            seed=seed,
            timesteps=self.timesteps or found.timesteps,
            **{**found.run, "stop_when_solved": False, "eval_share": 1.0},
        )


GROUPS = (
    Group("CartPole-v1", "ppo", 5),
    Group("CartPole-v1", "dqn", 5),
    Group("CartPole-v1", "a3c", 3),
    Group("Acrobot-v1", "ppo", 5),
    Group("Acrobot-v1", "dqn", 3),
    Group("MountainCar-v0", "dqn", 5),
    Group("MountainCar-v0", "ppo", 3),
    Group("Pendulum-v1", "sac", 5),
    Group("Pendulum-v1", "ddpg", 3),
    Group("Pendulum-v1", "ppo", 3),
    Group("MountainCarContinuous-v0", "sac", 3),
    Group("MountainCarContinuous-v0", "ddpg", 3),
    Group("LunarLander-v3", "dqn", 3),
    Group("LunarLander-v3", "ppo", 3),
)
QUICK = (Group("CartPole-v1", "ppo", 2, 2000),)


@dataclass(frozen=True)
class Target:
    """One published success metric."""

    key: str
    words: str
    reached: Any
    """Predicate on the value. A value of None never reaches the target."""


TARGETS = (
    Target("episodes_to_solve", "solved in < 10,000 episodes", lambda v: v < SOLVE_LIMIT),
    Target("success", "> 90 % success", lambda v: v > 0.9),
    Target("variation", "< 10 % variation", lambda v: v < 0.1),
    Target("transfer", "≥ 80 % transfer", lambda v: v >= 0.8),
    Target("noise", "≥ 80 % kept under 20 % noise", lambda v: v >= 0.8),
    Target("hours", "within 24 hours", lambda v: v < 24),
)


# Cells: one seed each.


NEWER = ("eval_share", "start", "env_processes", "until_success", "solve_episodes", "stage")
"""Fields of a run that came after the first cells, which were trained as these fields are set here."""


def digest(run: RunConfig) -> str:
    document = {name: value for name, value in run.as_dict().items() if name not in NEWER}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:12]


def missing(groups: Sequence[Group], cells: dict[str, Any]) -> list[tuple[Group, list[RunConfig]]]:
    """Returns, per group, the runs without a cell of their present settings."""
    found = []
    for group in groups:
        runs = [group.run(seed) for seed in range(group.seeds)]
        left = [run for run in runs if not known(run, cells)]
        if left:
            found.append((group, left))
    return found


def known(run: RunConfig, cells: dict[str, Any]) -> bool:
    """Returns True if there is a cell of the run's present settings."""
    return cells.get(key(run), {}).get("digest") == digest(run)


def key(run: RunConfig) -> str:
    return f"{run.env}/{run.algorithm}/{run.seed}"


def train(runs: Sequence[RunConfig], folder: Path, processes: int | None) -> None:
    """Trains all runs; an interrupted run continues from its saved state."""
    tasks = []
    for run in runs:
        own = Folder.of(folder / digest(run), run)
        if finished(run, folder):
            continue
        again = own.state.exists()
        if not again and own.path.exists():
            shutil.rmtree(own.path)  # interrupted before its first saved state
        tasks.append(Task(run, own, again))
    if tasks:
        result = train_all(tasks, told, processes)
        if result.failure is not None:
            raise result.failure


def finished(run: RunConfig, folder: Path) -> bool:
    """Returns True if the run reached its end. An interrupted run has a summary too."""
    summary = Folder.of(folder / digest(run), run).summary
    return summary.exists() and json.loads(summary.read_text())["end"] != "interrupted"


def told(event: dict[str, Any]) -> None:
    if event["event"] in ("solved", "evaluated", "done", "failed"):
        words = {name: event[name] for name in ("eval_return", "episode", "message") if name in event}
        print(f"    seed {event['seed']} step {event['step']:,}: {event['event']} {words or ''}", flush=True)


def cell(run: RunConfig, folder: Path) -> dict[str, Any]:
    """Returns the results of one seed."""
    own = Folder.of(folder / digest(run), run)
    summary = read_json(own.summary, f"{own.path} holds no finished run")
    judged = assess(Policy.load(own.policy), run.env, seed=run.seed)
    return {
        "digest": digest(run),
        "preset": run.preset,
        "settings": run.settings.as_dict(),
        "timesteps": run.timesteps,
        "solved": summary["solved"],
        "hours": summary["seconds"] / 3600,
        "processor_hours": summary["processor_seconds"] / 3600,
        "steps_per_second": summary["steps_per_second"],
        "assessment": judged.as_dict(),
    }


# The table: one row per group.


def rows(groups: Sequence[Group], cells: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for group in groups:
        own = [cells[key(run)] for run in map(group.run, range(group.seeds)) if known(run, cells)]
        if own:
            found.append(row(group, own))
    return found


def row(group: Group, own: list[dict[str, Any]]) -> dict[str, Any]:
    judged = [one["assessment"] for one in own]
    scores = [one["clean"]["mean"] for one in judged]
    random = float(np.mean([one["random"]["mean"] for one in judged]))
    solved = [one["solved"]["episode"] if one["solved"] else None for one in own]
    enough = len(own) >= FEWEST_SEEDS
    spread = variation(scores, random) if len(own) > 1 else None
    values = {
        "task": group.name,
        "preset": own[0]["preset"],
        "seeds": len(own),
        "seeds_wanted": group.seeds,
        "steps": own[0]["timesteps"],
        "return_iqm": list(iqm_interval(scores)) if enough else [iqm(scores)],
        "random": random,
        "solved": f"{sum(k is not None for k in solved)} of {len(own)}",
        "episodes_to_solve": None if None in solved else float(np.median(np.array(solved, float))),
        "success": mean(one["clean"]["success"] for one in judged),
        "rule": judged[0]["rule"],
        "variation": spread,
        "variation_interval": list(variation_interval(scores, random))[1:] if enough else None,
        "transfer": mean(one["transfer_ratio"] for one in judged),
        "noise": mean(one["noise"] and one["noise"]["ratio"] for one in judged),
        "noise_success": mean(one["noise"] and one["noise"]["success"] for one in judged),
        "hours": float(np.median([one["hours"] for one in own])),
        "processor_hours": _middle([one.get("processor_hours") for one in own]),
    }
    return {**values, "not_reached": not_reached(values)}


def _middle(values: list[float | None]) -> float | None:
    """Returns the median; None where an older cell did not measure it."""
    return None if None in values else float(np.median(np.array(values, float)))


def mean(values: Any) -> float | None:
    """Returns the mean, or None if a value is unknown: a policy no better than chance has no ratio."""
    listed = list(values)
    return None if None in listed or not np.isfinite(listed).all() else float(np.mean(listed))


def not_reached(values: dict[str, Any]) -> list[str]:
    """Returns the targets that were missed, or that apply and were not measured."""
    missed = []
    for target in TARGETS:
        value = values[target.key]
        if value is None:
            if target.key == "transfer":
                continue  # no variants are defined for this task
            solving = target.key == "episodes_to_solve"
            missed.append(f"{target.words} ({values['solved'] + ' seeds' if solving else 'not measured'})")
        elif not target.reached(value):
            missed.append(target.words)
    if values["seeds"] < values["seeds_wanted"]:
        left = values["seeds_wanted"] - values["seeds"]
        missed.append(f"{left} of {values['seeds_wanted']} seeds not trained yet")
    return missed


def markdown(document: dict[str, Any]) -> str:
    lines = [
        "# Control policies: what training came to",
        "",
        f"Made by `{document['command']}` on {machine_in_words(document['machine'])}.",
        "Definitions are in docs/control.md; each cell (one seed) is in control.json. Success is over 100",
        "greedy episodes on unseen seeds; intervals are 95 % bootstrap over seeds, from five seeds on. Hours",
        "(in brackets: of the processor, where that was measured) are medians over seeds.",
        "",
        "| task | preset, steps | seeds | return (IQM) | random | episodes to solve | success | variation "
        "| transfer | noise kept (success) | hours | not reached |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [line(values) for values in document["rows"]]
    if document["missing"]:
        lines += ["", f"Not trained yet, and finished by the same command: {', '.join(document['missing'])}."]
    return "\n".join(lines) + "\n"


def line(v: dict[str, Any]) -> str:
    bounds = f" ({v['return_iqm'][1]:.1f} … {v['return_iqm'][2]:.1f})" if len(v["return_iqm"]) > 1 else ""
    spread = v["variation_interval"]
    width = f" ({spread[0]:.1%} … {spread[1]:.1%})" if spread else ""
    solve = f"{v['episodes_to_solve']:.0f}" if v["episodes_to_solve"] is not None else f"{v['solved']} seeds"
    cells = (
        v["task"], f"{v['preset']}, {v['steps']:,}", str(v["seeds"]), f"{v['return_iqm'][0]:.1f}{bounds}",
        f"{v['random']:.1f}", solve, share(v["success"]), f"{share(v['variation'])}{width}",
        share(v["transfer"]), f"{share(v['noise'])} ({share(v['noise_success'])})", _hours(v),
        "; ".join(v["not_reached"]) or "all reached",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _hours(v: dict[str, Any]) -> str:
    processor = "" if v["processor_hours"] is None else f" ({v['processor_hours']:.2f})"
    return f"{v['hours']:.2f}{processor}"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Train, judge and tabulate control policies.")
    parser.add_argument(
        "--quick", action="store_true", help="two short seeds of CartPole, to see that it works"
    )
    parser.add_argument("--only", nargs="*", help="groups such as CartPole-v1/ppo")
    parser.add_argument("--seeds", type=int, help="of each group, instead of its own number")
    parser.add_argument("--processes", type=int, help="seeds at a time; default one per core")
    parser.add_argument("--runs", type=Path, default=Path("runs") / "results", help="folder of the trainings")
    parser.add_argument("--json", type=Path, help="result file; the table goes beside it as .md")
    given = parser.parse_args()
    file = given.json or (Path("control-quick.json") if given.quick else RESULTS / "control.json")
    groups = [
        Group(g.env, g.algorithm, given.seeds or g.seeds, g.timesteps)
        for g in (QUICK if given.quick else GROUPS)
        if not given.only or g.name in given.only
    ]
    if not groups:
        parser.error(f"--only names no group: use {', '.join(g.name for g in GROUPS)}")
    for group, runs in missing(groups, cells_of(file)):
        print(f"{group.name}: seeds {', '.join(str(run.seed) for run in runs)}", flush=True)
        train(runs, given.runs, given.processes)
        for run in runs:
            if not finished(run, given.runs):
                raise SystemExit(f"{group.name}: seed {run.seed} was interrupted; the same command goes on.")
            write(file, {key(run): cell(run, given.runs)}, QUICK if given.quick else GROUPS)
    write(file, {}, QUICK if given.quick else GROUPS)
    print(file.with_suffix(".md").read_text())


def cells_of(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())["cells"] if file.exists() else {}


def write(file: Path, new: dict[str, Any], groups: Sequence[Group]) -> None:
    """Adds ``new`` cells to those now in the file, since another process may have added cells meanwhile."""
    file.parent.mkdir(parents=True, exist_ok=True)
    cells = cells_of(file) | new
    document = {
        "benchmark": "control_results",
        "command": "python benchmarks/control_results.py" + (" --quick" if groups == QUICK else ""),
        "machine": machine(),
        "rows": rows(groups, cells),
        "missing": [
            f"{group.name} ({len(runs)} of {group.seeds} seeds)" for group, runs in missing(groups, cells)
        ],
        "cells": cells,
    }
    write_json(file, document)
    file.with_suffix(".md").write_text(markdown(document), encoding="utf-8")


if __name__ == "__main__":
    main()
