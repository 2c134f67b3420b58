"""Control policies beside stable-baselines3: the same tasks, machine and run, one side after the other.

Three separate sections are compared:

- ``equal``: the zoo's settings on both sides (networks, batches, updates per step, schedules);
- ``cleanrl``: CleanRL's published settings on both sides (its scripts need an older Gymnasium, so they are
  not run; ``comparison.CLEANRL`` lists the settings that the two libraries lack);
- ``best``: the fastest settings of each side among the same number of trials (``TRIALS``) on tuning seeds
  (ten for PPO, two for slower ones: few, so a lucky trial may win), then measured on other seeds. Each run
  stops at the threshold, so that success is that of the policy which reached it.

The time to the threshold differs tenfold and more between seeds on either side, so cheap tasks have many
seeds: the first three are trained to the end (speed, final success), the others stop at the threshold.
Each side is evaluated every ``check_every`` steps by 20 greedy episodes from the same starts, with the clock
stopped. ``seconds_to_threshold`` is the training time at the first evaluation at or over Gymnasium's
threshold (Pendulum: −200), the mean over seeds. ``final_success`` is over 100 greedy episodes (Pendulum:
upright for the last 50 steps). Processor seconds are reported beside wall seconds, since their ratio is
steadier on a busy machine. Both sides get one torch thread. ``ratio`` is ours over theirs in steps/s, and
``ratio_to_threshold`` theirs over ours in seconds to the threshold: above 1 we are faster.

Results of profiling. PPO and DQN on networks of 64 to 256 units spend their time in Python and dispatch.
Environments therefore step as arrays, acting is numpy on memory shared with torch, and an update is few
operations: one flat gradient, one clipping, Adam's kernel without its wrapper, one target update. A burst is
sampled, and its targets are computed, once. Losses are written in torch. Of the two that train most often,
PPO's with discrete actions and DQN's, the gradient is also there by hand (``control/networks/fast``): PPO's
gradient step on CartPole takes half of autograd's time with it, DQN's about two thirds. SAC gained 13 to 17 %
by hand, so it has autograd alone. Matrix products run at the processor's speed on both sides; they can only
be left out or transposed: with a side of 2 or 4 the wrong orientation takes four times as long, and so does
a batched product with one output. Freed memory stays with the process, or a step of SAC gets 450 pages anew.
The working set (parameters, gradient, two moments: 1.1 MB) is larger than the second-level cache, so products
take a quarter longer than alone. A second thread gains nothing on either side.
numpy's own threads do not speed up acting and keep a second core busy, so they are limited to ours. PPO's and
DQN's gradient steps are the same on both sides (tests/unit/control/test_control_sb3.py). Steps to the
threshold over many seeds agree within chance (PPO 14,200 and 12,800 over 15 seeds, DQN 23,500 and 20,100 over
30).

Where we lose: the larger batches and networks are, the more the products dominate both sides. State-dependent
noise (gSDE), which the zoo uses for PPO on Pendulum and MountainCarContinuous, is not implemented here. The
cases where we are behind are listed below the table.

    python benchmarks/control_vs_peers.py [--quick] [--json FILE] [--seeds N] [--only SECTION …]

With --json every row is written as soon as it is measured. Sections that are not run stay unchanged in the
file. The whole takes about an hour and a half, and may be run in parts. ``--seeds`` caps the seeds of a task.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from machine import machine, machine_in_words
from onward.control.comparison import Outcome, Race, equal_settings, ours, stable_baselines3
from onward.control.running import presets
from onward.errors import MissingExtraError

TUNING_SEED = 1000
"""First tuning seed."""
Side = Callable[[Race], Outcome]
SIDES: dict[str, Side] = {"onward": ours, "stable-baselines3": stable_baselines3}
THRESHOLDS = {"CartPole-v1": 475.0, "Pendulum-v1": -200.0, "LunarLander-v3": 200.0, "Acrobot-v1": -100.0}
WHOLE = 3
"""Number of seeds that are trained to the end; further ones stop at the threshold."""


@dataclass(frozen=True)
class Case:
    """A task to learn, and the number of its seeds."""

    env: str
    algorithm: str
    steps: int
    seeds: int = 1
    tuning: int = 2
    """Number of seeds on which settings are chosen."""
    note: str = ""
    """Facts that the figures do not show."""


QUICK = (
    Case("CartPole-v1", "ppo", 100_000),
    Case("CartPole-v1", "dqn", 50_000),
    Case("Pendulum-v1", "sac", 6_000),
)
FULL = (
    Case("CartPole-v1", "ppo", 100_000, 15),
    Case("CartPole-v1", "dqn", 50_000, 30),
    Case("Pendulum-v1", "sac", 10_000, 3),
    Case("Acrobot-v1", "dqn", 100_000),
    Case(
        "LunarLander-v3", "ppo", 1_000_000,
        note="one seed; in the first 50,000 steps the ratio is 3.0: from about 200,000 on "
        "stable-baselines3's collection took several times as long as before, for no reason that was found",
    ),
)  # fmt: skip
CLEANRL = (
    replace(QUICK[0], seeds=3),
    replace(QUICK[1], seeds=3, note="learning starts after 10,000 steps, and is to take 500,000"),
    replace(QUICK[2], note="learning starts after 5,000 steps: this is mostly the environment's speed"),
)
BEST = (
    replace(
        FULL[0],
        tuning=10,
        note="stable-baselines3 is quicker with the zoo's settings on the seeds that are measured than with "
        "what the tuning seeds chose: the ratio under equal settings is the fairer one",
    ),
    replace(FULL[1], seeds=9),
    FULL[2],
)

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


def race(env: str, algorithm: str, steps: int, seed: int, peer: str = "sb3", **more: Any) -> Race:
    settings = equal_settings(peer, algorithm, env)
    return Race(env, settings, steps, THRESHOLDS[env], seed, max(500, steps // 100), **more)


def section(cases: tuple[Case, ...], most: int, peer: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of a comparison with the same settings on both sides."""
    for case in cases:
        outcomes: dict[str, list[Outcome]] = {name: [] for name in SIDES}
        for seed in range(min(case.seeds, most)):
            for name, side in SIDES.items():
                given = race(case.env, case.algorithm, case.steps, seed, peer, stop=seed >= WHOLE)
                outcomes[name].append(side(given))
        yield row(case, outcomes)


def best(cases: tuple[Case, ...], most: int) -> Iterator[dict[str, Any]]:
    """Yields rows with each side's best trial, measured on other seeds; both stop at the threshold."""
    for case in cases:
        outcomes: dict[str, list[Outcome]] = {name: [] for name in SIDES}
        chosen: dict[str, Any] = {}
        for name, trials in TRIALS[case.env, case.algorithm].items():
            seconds = [time_of(case, name, trial) for trial in trials]
            changes = trials[int(np.argmin(seconds))]
            chosen[name] = {"changes": changes, "trials": len(trials), "seconds": seconds}
        for seed in range(min(case.seeds, most)):
            for name, side in SIDES.items():
                outcomes[name].append(side(changed(case, chosen[name]["changes"], seed)))
        yield {**row(case, outcomes, whole=case.seeds), "chosen": chosen}


def changed(case: Case, changes: dict[str, Any], seed: int) -> Race:
    """Builds a race that stops at the threshold, with ``changes`` to the zoo's settings."""
    base = race(case.env, case.algorithm, case.steps, seed, stop=True)
    found = presets.Preset(case.steps, base.settings.as_dict() | changes)
    settings = {key: tuple(v) if isinstance(v, list) else v for key, v in found.settings.items()}
    return replace(base, settings=type(base.settings)(**settings))


def time_of(case: Case, name: str, changes: dict[str, Any]) -> float:
    """Returns the seconds to the threshold, summed over the tuning seeds; a miss counts twice its seconds."""
    seeds = range(TUNING_SEED, TUNING_SEED + case.tuning)
    found = [SIDES[name](changed(case, changes, seed)) for seed in seeds]
    return sum(one.seconds_to_threshold or 2 * one.seconds for one in found)


def row(case: Case, outcomes: dict[str, list[Outcome]], whole: int = WHOLE) -> dict[str, Any]:
    """Builds one row. ``whole``: number of seeds whose success counts."""
    sides = {name: summary(found, whole) for name, found in outcomes.items()}
    mine, theirs = sides["onward"], sides["stable-baselines3"]
    times = theirs["seconds_to_threshold"], mine["seconds_to_threshold"]
    return {
        "env": case.env,
        "algorithm": case.algorithm,
        "steps": case.steps,
        "note": case.note,
        **sides,
        "ratio": round(mine["steps_per_second"] / theirs["steps_per_second"], 2),
        "cpu_ratio": round(mine["steps_per_cpu_second"] / theirs["steps_per_cpu_second"], 2),
        "ratio_to_threshold": round(times[0] / times[1], 2) if None not in times else None,
    }


def summary(found: list[Outcome], count: int = WHOLE) -> dict[str, Any]:
    """Summarises seeds: time to the threshold if every seed reached it, success of the first ``count``."""
    whole = found[:count]
    reached = [one.seconds_to_threshold for one in found]
    seconds = None if None in reached else round(float(np.mean(np.array(reached, float))), 2)
    successes = [one.final_success for one in whole if one.final_success is not None]
    return {
        "steps_per_second": round(sum(o.steps for o in found) / sum(o.seconds for o in found), 1),
        "steps_per_cpu_second": round(sum(o.steps for o in found) / sum(o.cpu_seconds for o in found), 1),
        "seconds_to_threshold": seconds,
        "reached": f"{len(found) - reached.count(None)} of {len(found)}",
        "final_success": round(float(np.mean(successes)), 3) if successes else None,
        "final_mean": round(float(np.mean([one.final_mean for one in whole])), 2),
        "runs": [{key: value for key, value in one.as_dict().items() if key != "curve"} for one in found],
    }


def task(found: dict[str, Any]) -> str:
    return f"{found['algorithm']} on {found['env']}"


def show(found: dict[str, Any]) -> None:
    print(f"{task(found)}, {found['steps']:,} steps at most")
    for name in SIDES:
        side = found[name]
        print(
            f"  {name:18} {side['steps_per_second']:>9,.0f} steps/s  threshold after "
            f"{side['seconds_to_threshold']} s ({side['reached']})  success {side['final_success']}"
        )
    print(
        f"  ratio: steps/s {found['ratio']} (processor {found['cpu_ratio']}), time to threshold "
        f"{found['ratio_to_threshold']}",
        flush=True,
    )


SECTIONS: dict[str, tuple[str, Callable[[int], Iterator[dict[str, Any]]]]] = {
    "equal": ("equal settings", lambda most: section(FULL, most, "sb3")),
    "cleanrl": ("cleanrl settings", lambda most: section(CLEANRL, most, "cleanrl")),
    "best": ("settings that each side chose, the same number of trials", lambda most: best(BEST, most)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Control policies beside stable-baselines3.")
    parser.add_argument(
        "--quick", action="store_true", help="CartPole and Pendulum, equal settings, one seed"
    )
    parser.add_argument("--json", type=Path, help="write the result to this file as well")
    parser.add_argument("--seeds", type=int, default=100, help="of each task at most")
    parser.add_argument("--only", nargs="*", choices=tuple(SECTIONS))
    given = parser.parse_args()
    wanted = [SECTIONS[name] for name in SECTIONS if name in (given.only or SECTIONS)]
    if given.quick:
        wanted = [("equal settings", lambda most: section(QUICK, most, "sb3"))]
    result: dict[str, Any] = {"benchmark": "control_vs_peers", "machine": machine()}
    if given.json and given.json.exists() and given.only:
        result = _of_this_machine(given.json) | result
    try:
        for name, rows in wanted:
            result[name] = []
            for found in rows(given.seeds):
                show(found)
                result[name].append(found)
                write(result, given.json)
    except MissingExtraError as error:
        raise SystemExit(str(error)) from None


def _of_this_machine(file: Path) -> dict[str, Any]:
    """Returns the earlier result. Exits if it comes from another machine."""
    before = json.loads(file.read_text())
    old, new = ({**one, "load_average": None} for one in (before["machine"], machine()))
    if old != new:
        raise SystemExit(f"{file} is of another machine ({old}): give another file.")
    return before


def write(result: dict[str, Any], file: Path | None) -> None:
    """Writes the result with the ratios of equal settings at the top, and a table beside it (``.md``)."""
    equal = result.get("equal settings", [])
    for key in ("ratio", "ratio_to_threshold"):
        result[key] = {f"{case['algorithm']} {case['env']}": case[key] for case in equal}
    if file:
        file.write_text(json.dumps(result, indent=1) + "\n")
        file.with_suffix(".md").write_text(page(result))


def page(result: dict[str, Any]) -> str:
    """Formats the result as a page, with the cases where we are behind."""
    found = {name: result[name] for name, _ in SECTIONS.values() if result.get(name)}
    lines = [
        "# Control policies beside stable-baselines3",
        "",
        f"Made by `python benchmarks/control_vs_peers.py` on {machine_in_words(result['machine'])}, "
        "one thread each. What is measured: the program's first lines.",
        "Ours / theirs throughout; a ratio above 1 is in our favour.",
    ]
    for name, cases in found.items():
        lines += ["", f"## {name[0].upper()}{name[1:]}", "", *_table(cases)]
    behind = [f"- {name}: {words}" for name, cases in found.items() for case in cases for words in lost(case)]
    return "\n".join([*lines, "", "## Where ours is behind", "", *(behind or ["Nowhere here."]), ""])


def _table(cases: list[dict[str, Any]]) -> Iterator[str]:
    yield "| task | steps/s | ratio | of processor time | seconds to threshold | ratio | reached | success |"
    yield "|---|---|---|---|---|---|---|---|"
    for case in cases:
        pair = [case[name] for name in SIDES]
        both = {key: " / ".join(_figure(side[key]) for side in pair) for key in pair[0] if key != "runs"}
        cells = (
            task(case), both["steps_per_second"], _figure(case["ratio"]),
            _figure(case["cpu_ratio"]), both["seconds_to_threshold"], _figure(case["ratio_to_threshold"]),
            both["reached"], both["final_success"],
        )  # fmt: skip
        yield "| " + " | ".join(cells) + " |"
    for case in cases:
        if case["note"]:
            yield from ("", f"{task(case)}: {case['note']}.")


def lost(case: dict[str, Any]) -> list[str]:
    """Returns the losses of a case: speed, time to the threshold, or success at the end."""
    mine, theirs = (case[name] for name in SIDES)
    words: list[str] = []
    if case["ratio"] < 1:
        words.append(f"{task(case)} is slower ({case['ratio']} of their steps/s)")
    if int(mine["reached"].split()[0]) < int(theirs["reached"].split()[0]):
        words.append(
            f"{task(case)} reaches the threshold less often ({mine['reached']} / {theirs['reached']})"
        )
    if case["ratio_to_threshold"] is not None and case["ratio_to_threshold"] < 1:
        words.append(f"{task(case)} comes to the threshold later ({case['ratio_to_threshold']})")
    if mine["final_success"] is not None and mine["final_success"] < theirs["final_success"]:
        words.append(
            f"{task(case)} succeeds less often ({mine['final_success']} / {theirs['final_success']})"
        )
    return words


def _figure(value: Any) -> str:
    if not isinstance(value, int | float):
        return "–" if value is None else str(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


if __name__ == "__main__":
    main()
