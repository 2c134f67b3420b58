"""Control policies beside stable-baselines3 and SBX (its JAX version), task by task on one machine.

Four sides: ours; stable-baselines3 as shipped; stable-baselines3 with denormal numbers rounded to 0 as ours
does (one line, ``torch.set_flush_denormal(True)``, that its users may write too: Adam is up to 15 times as
slow on denormals); SBX as shipped, where it is installed (extra ``sbx``; the time to compile counts). No
environment draws: stable-baselines3 makes them with a render mode unless told otherwise, and LunarLander's
steps then take up to 20 times as long.

Three sections:

- ``equal``: the zoo's settings on all sides (networks, batches, updates per step, schedules);
- ``cleanrl``: CleanRL's published settings on all sides (its scripts need an older Gymnasium, so they are
  not run; ``comparison.CLEANRL`` lists the settings that the libraries lack);
- ``best``: the fastest settings of each of two sides, ours and stable-baselines3 as shipped, among the same
  number of trials (``TRIALS``) on tuning seeds (few, so a lucky trial may win), then measured on other seeds.
  Each run stops at the threshold, so that success is that of the policy which reached it.

Every figure is the median over seeds. Speed is steps per processor second: on a busy machine it is steadier
than steps per second, which stands beside it. The time to the threshold differs tenfold and more between
seeds, so cheap tasks have many seeds: the first three are trained to the end (speed, final success), the
others stop at the threshold. Each side is evaluated at fixed steps by 20 greedy episodes from the same
starts, with the clock stopped. ``cpu_seconds_to_threshold`` is the training time at the first evaluation at
or over Gymnasium's threshold (Pendulum: −200); a seed that never comes there counts as slower than all
others. ``final_success`` is over 100 greedy episodes (Pendulum: upright for the last 50 steps). All sides
get one thread.

Results of profiling. PPO and DQN on networks of 64 to 256 units spend their time in Python and dispatch.
Environments therefore step as arrays, acting is numpy on memory shared with torch, and an update is few
operations: one flat gradient, one clipping, Adam's kernel without its wrapper, one target update. A burst
is sampled, and its targets are computed, once. Losses are written in torch. Of the two that train most
often, PPO's with discrete actions and DQN's, the gradient is also there by hand
(``control/networks/fast``): PPO's gradient step on CartPole takes half of autograd's time with it, DQN's
about two thirds. SAC gained 13 to 17 % by hand, so it has autograd alone. Matrix products run at the
processor's speed on both sides; they can only be left out or transposed: with a side of 2 or 4 the wrong
orientation takes four times as long, and so does a batched product with one output. Freed memory stays with
the process, or a step of SAC gets 450 pages anew. The working set (parameters, gradient, two moments: 1.1
MB) is larger than the second-level cache, so products take a quarter longer than alone. A second thread
gains nothing on either side. numpy's own threads do not speed up acting and keep a second core busy, so
they are limited to ours. PPO's and DQN's gradient steps are the same on both sides
(tests/unit/control/test_control_sb3.py). Steps to the threshold over many seeds agree within chance (PPO
14,200 and 12,800 over 15 seeds, DQN 23,500 and 20,100 over 30).

Where we lose: the larger batches and networks are, the more the products dominate both sides. Noise that
depends on the state (gSDE), which the zoo uses for PPO on Pendulum and MountainCarContinuous, is not
implemented here. The cases where we are behind are listed below the table.

    python benchmarks/control_vs_peers.py [--quick] [--json FILE] [--seeds N] [--only SECTION …]

Every cell (one side, one seed) is written to the file as soon as it is measured, and the same command goes
on where it was stopped. ``--quick`` takes about 20 minutes on an idle machine, the whole several hours;
``--seeds`` caps the seeds of a task.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from control_peers_page import page
from machine import machine
from onward.control.comparison import SIDES, Race, equal_settings
from onward.errors import ControlError, MissingExtraError
from onward.files import write_whole
from onward.progress import Bars

OURS, SHIPPED, FLUSHED, SBX = SIDES
RESULTS = Path(__file__).parent / "results"
TUNING_SEED = 1000
"""First tuning seed."""
THRESHOLDS = {"CartPole-v1": 475.0, "Pendulum-v1": -200.0, "LunarLander-v3": 200.0, "Acrobot-v1": -100.0}
MOST = 100
"""Seeds of a task at most."""
WHOLE = 3
"""Number of seeds that are trained to the end; further ones stop at the threshold."""
Cells = dict[str, dict[str, Any]]
"""Key of a cell → ``digest`` of its race, and ``outcome``, or ``missing``: why there is none."""


@dataclass(frozen=True)
class Case:
    """A task to learn, and the number of its seeds."""

    env: str
    algorithm: str
    steps: int
    seeds: int = 1
    looks: int = 100
    """Number of evaluations during a run."""
    tuning: int = 2
    """Number of seeds on which settings are chosen."""
    note: str = ""
    """Facts that the figures do not show."""

    @property
    def name(self) -> str:
        return f"{self.algorithm} on {self.env}"


QUICK = (
    Case("CartPole-v1", "ppo", 100_000, 3, looks=50),
    Case("CartPole-v1", "dqn", 50_000, 3, looks=50),
    Case("Pendulum-v1", "sac", 6_000, looks=20),
    Case("Acrobot-v1", "dqn", 20_000, looks=20),
    Case("LunarLander-v3", "ppo", 100_000, looks=4, note="100,000 steps show the speed, not a solution"),
)
FULL = (
    Case("CartPole-v1", "ppo", 100_000, 15),
    Case("CartPole-v1", "dqn", 50_000, 30),
    Case("Pendulum-v1", "sac", 10_000, 3),
    Case("Acrobot-v1", "dqn", 100_000),
    Case("LunarLander-v3", "ppo", 1_000_000),
)
CLEANRL = (
    Case("CartPole-v1", "ppo", 100_000, 3),
    Case("CartPole-v1", "dqn", 50_000, 3, note="learning starts after 10,000 steps, and is to take 500,000"),
    Case(
        "Pendulum-v1", "sac", 6_000,
        note="learning starts after 5,000 steps: this is mostly the environment's speed",
    ),
)  # fmt: skip
BEST = (replace(FULL[0], tuning=10), replace(FULL[1], seeds=9), FULL[2])

TRIALS: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {
    ("CartPole-v1", "ppo"): {
        "onward": [{}, {"num_envs": 32}, {"epochs": 10}, {"num_envs": 16, "batch_size": 512}],
        "stable-baselines3": [{}, {"num_envs": 32}, {"epochs": 10}, {"num_envs": 16, "batch_size": 512}],
    },
    ("CartPole-v1", "dqn"): {
        "onward": [
            {},
            {"double": True, "n_step": 3},
            {"hidden": (128, 128)},
            {"hidden": (64, 64)},
            {"hidden": (64, 64), "double": True, "n_step": 3},
            {"num_envs": 8, "hidden": (64, 64), "double": True, "n_step": 3},
        ],
        "stable-baselines3": [
            {},
            {"n_step": 3},
            {"hidden": (128, 128)},
            {"hidden": (64, 64)},
            {"hidden": (64, 64), "n_step": 3},
            {"num_envs": 8, "hidden": (64, 64), "n_step": 3},
        ],
    },
    ("Pendulum-v1", "sac"): {
        "onward": [{}, {"hidden": (64, 64)}, {"batch_size": 128}, {"hidden": (128, 128), "n_step": 3}],
        "stable-baselines3": [
            {},
            {"hidden": (64, 64)},
            {"batch_size": 128},
            {"hidden": (128, 128), "n_step": 3},
        ],
    },
}
"""Trials of each side, as changes to the zoo's settings; the same number on both sides."""


# Cells: one side and one seed each.


@dataclass(frozen=True)
class Cell:
    """One run to measure."""

    section: str
    case: Case
    side: str
    seed: int
    peer: str = "sb3"
    stop: bool = False
    changes: dict[str, Any] = field(default_factory=dict)
    trial: int | None = None
    """Number of the trial that it judges; None: it is measured."""

    @property
    def key(self) -> str:
        tried = "" if self.trial is None else f"/trial {self.trial}"
        return f"{self.section}/{self.case.name}/{self.side}{tried}/{self.seed}"

    @property
    def race(self) -> Race:
        case = self.case
        settings = replace(equal_settings(self.peer, case.algorithm, case.env), **self.changes)
        every = max(500, case.steps // case.looks)
        return Race(case.env, settings, case.steps, THRESHOLDS[case.env], self.seed, every, stop=self.stop)

    @property
    def digest(self) -> str:
        race = self.race
        document = {**vars(race), "settings": race.settings.as_dict()}
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:12]

    def known(self, cells: Cells) -> bool:
        """Returns True if it was measured. One that was missing is tried again."""
        found = cells.get(self.key, {})
        return found.get("digest") == self.digest and "outcome" in found

    def tried(self, cells: Cells) -> bool:
        """Returns True if it was measured, or cannot be in this session."""
        return self.known(cells) or "missing" in cells.get(self.key, {})

    def measure(self) -> dict[str, Any]:
        """Returns the cell's results; ``missing`` where its side cannot take part."""
        try:
            outcome = SIDES[self.side](self.race).as_dict()
        except (ControlError, MissingExtraError) as error:
            if self.side != SBX:
                raise SystemExit(str(error)) from None
            return {"digest": self.digest, "missing": str(error)}
        return {"digest": self.digest, "outcome": {**outcome, "curve": None}}


def equal(section: str, cases: Sequence[Case], most: int, peer: str) -> list[Cell]:
    """Returns the cells of a section with the same settings on all sides."""
    return [
        Cell(section, case, side, seed, peer, stop=seed >= WHOLE)
        for case in cases
        for seed in range(min(case.seeds, most))
        for side in SIDES
    ]


def trials(cases: Sequence[Case]) -> list[Cell]:
    """Returns the cells that choose each side's settings of the section ``best``."""
    return [
        Cell("best", case, side, TUNING_SEED + seed, stop=True, changes=changes, trial=number)
        for case in cases
        for side, tried in TRIALS[case.env, case.algorithm].items()
        for number, changes in enumerate(tried)
        for seed in range(case.tuning)
    ]


def best(cases: Sequence[Case], most: int, cells: Cells) -> list[Cell]:
    """Returns the cells of each side's best trial on other seeds, once every trial is measured."""
    if not all(cell.known(cells) for cell in trials(cases)):
        return []
    return [
        Cell("best", case, side, seed, stop=True, changes=tried[chosen(case, side, cells)])
        for case in cases
        for seed in range(min(case.seeds, most))
        for side, tried in TRIALS[case.env, case.algorithm].items()
    ]


def chosen(case: Case, side: str, cells: Cells) -> int:
    """Returns the number of the trial with the least processor time to the threshold, summed over the tuning
    seeds; a miss counts twice its time."""
    sums: dict[int, float] = {}
    for cell in trials([case]):
        if cell.side == side and cell.trial is not None:
            found = cells[cell.key]["outcome"]
            seconds = found["cpu_seconds_to_threshold"] or 2 * found["cpu_seconds"]
            sums[cell.trial] = sums.get(cell.trial, 0.0) + seconds
    return min(sums, key=sums.__getitem__)


# Rows: one task each.


def row(own: Sequence[Cell], cells: Cells) -> dict[str, Any]:
    """Builds the row of a task from those of its cells that were measured."""
    case = own[0].case
    sides = {
        side: [
            (cell.stop, cells[cell.key]["outcome"]) for cell in own if cell.side == side and cell.known(cells)
        ]
        for side in dict.fromkeys(cell.side for cell in own)
    }
    count = sum(cell.side == OURS for cell in own)
    found = {side: summary(listed, count) for side, listed in sides.items() if listed}
    mine = found.get(OURS)
    others = {side: theirs for side, theirs in found.items() if side != OURS and mine}
    return {
        "task": case.name,
        "steps": case.steps,
        "note": case.note,
        "sides": found,
        "ratios": {side: ratio(mine, theirs, "steps_per_cpu_second") for side, theirs in others.items()},
        "ratios_to_threshold": {
            side: ratio(theirs, mine, "cpu_seconds_to_threshold") for side, theirs in others.items()
        },
    }


def ratio(one: Any, other: Any, key: str) -> float | None:
    return None if one[key] is None or other[key] is None else round(one[key] / other[key], 2)


def summary(measured: Sequence[tuple[bool, dict[str, Any]]], wanted: int) -> dict[str, Any]:
    """Summarises the seeds of a side by medians; ``wanted``: number of seeds there will be.

    ``measured``: (it stops at the threshold, its outcome) of each seed. Speed and final success are of the
    seeds that are trained to the end, where there are any: a run that stops early was still warming up for
    much of its time.
    """
    found = [outcome for _, outcome in measured]
    whole = [outcome for stops, outcome in measured if not stops] or found
    reached = [one["cpu_seconds_to_threshold"] for one in found]
    middle = median(float("inf") if seconds is None else seconds for seconds in reached)
    successes = [one["final_success"] for one in whole if one["final_success"] is not None]
    return {
        "seeds": f"{len(found)} of {wanted}",
        "steps_per_cpu_second": round(median(one["steps"] / one["cpu_seconds"] for one in whole), 1),
        "steps_per_second": round(median(one["steps_per_second"] for one in whole), 1),
        "cpu_seconds_to_threshold": None if middle == float("inf") else round(middle, 2),
        "reached": len(found) - reached.count(None),
        "final_success": round(median(successes), 3) if successes else None,
        "final_mean": round(median(one["final_mean"] for one in whole), 2),
    }


def rows(planned: Sequence[Cell], cells: Cells) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows by section, without tasks that have no cell yet."""
    groups: dict[tuple[str, Case], list[Cell]] = {}
    for cell in planned:
        if cell.trial is None:
            groups.setdefault((cell.section, cell.case), []).append(cell)
    found: dict[str, list[dict[str, Any]]] = {}
    for (section, _), own in groups.items():
        if any(cell.known(cells) for cell in own):
            found.setdefault(section, []).append(row(own, cells))
    return found


# The program.


def plan(quick: bool, most: int, only: Sequence[str] | None, cells: Cells) -> list[Cell]:
    """Returns all cells in order; those of ``best`` that depend on trials appear after them."""
    if quick:
        return equal("equal", QUICK, most, "sb3")
    wanted = {
        "equal": equal("equal", FULL, most, "sb3"),
        "cleanrl": equal("cleanrl", CLEANRL, most, "cleanrl"),
        "best": trials(BEST) + best(BEST, most, cells),
    }
    return [cell for name, own in wanted.items() if not only or name in only for cell in own]


def main() -> None:
    parser = argparse.ArgumentParser(description="Control policies beside stable-baselines3 and SBX.")
    parser.add_argument("--quick", action="store_true", help="equal settings, few seeds: about 20 minutes")
    parser.add_argument("--json", type=Path, help="result file; the table goes beside it as .md")
    parser.add_argument("--seeds", type=int, default=MOST, help="of each task at most")
    parser.add_argument("--only", nargs="*", choices=("equal", "cleanrl", "best"))
    given = parser.parse_args()
    file = given.json or (
        Path("control-peers-quick.json") if given.quick else RESULTS / "control_vs_peers.json"
    )
    cells = cells_of(file)
    with Bars(Console(stderr=True)) as bars:
        bar = bars.add_bar("cells", 0)
        while True:
            planned = plan(given.quick, given.seeds, given.only, cells)
            left = [
                one for one in planned if not one.known(cells) and "missing" not in cells.get(one.key, {})
            ]
            bar.update(len(planned) - len(left), total=len(planned), note=left[0].key if left else "")
            if not left:
                break
            cells[left[0].key] = left[0].measure()
            write(file, given.quick, cells)
    write(file, given.quick, cells)
    print(file.with_suffix(".md").read_text())


def cells_of(file: Path) -> Cells:
    """Returns the cells of an earlier session, without those that were missing. Exits if they come from
    another machine."""
    if not file.exists():
        return {}
    before = json.loads(file.read_text())
    old, new = ({**one, "load_average": None} for one in (before["machine"], machine()))
    if old != new:
        raise SystemExit(f"{file} is of another machine ({old}): give another file.")
    return {key: cell for key, cell in before.get("cells", {}).items() if "outcome" in cell}


def write(file: Path, quick: bool, cells: Cells) -> None:
    """Writes the result and a table beside it (``.md``), each as a whole. Sections that are not measured now
    keep their rows."""
    result = {
        "benchmark": "control_vs_peers",
        "command": "python benchmarks/control_vs_peers.py" + " --quick" * quick,
        "machine": machine(),
        "rows": rows(plan(quick, MOST, None, cells), cells),
        "missing": sorted({cell["missing"] for cell in cells.values() if "missing" in cell}),
        "cells": cells,
    }
    write_whole(file, (json.dumps(result, indent=1) + "\n").encode())
    write_whole(file.with_suffix(".md"), page(result).encode())


if __name__ == "__main__":
    main()
