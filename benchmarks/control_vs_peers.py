"""Control policies beside stable-baselines3: the same tasks, machine and run, one side after the other.

What is compared, in three sections kept apart:

- ``equal``: the zoo's settings, carried out by both (networks, batches, updates per step, schedules);
- ``cleanrl``: CleanRL's published settings, carried out by both (its scripts need an older Gymnasium, so
  they are not run; which of its settings the two libraries lack is said at ``comparison.CLEANRL``);
- ``best``: each side's best settings, found on a tuning seed among the same number of trials (``TRIALS``),
  then measured on other seeds. Each side stops at the threshold.

A side is looked at every ``check_every`` steps by 20 greedy episodes from the same starts, the clock
stopped; ``seconds_to_threshold`` is training time at the first look at or over Gymnasium's threshold
(Pendulum: −200). ``final_success`` is over 100 greedy episodes (Pendulum: upright for the last 50 steps).
Processor seconds stand beside wall seconds: on a busy machine their ratio is the steadier one. Both sides get
one torch thread. ``ratio`` is ours over theirs in steps/s, and ``ratio_to_threshold`` theirs over ours in
seconds to the threshold: above 1 we are faster.

What profiling taught: PPO and DQN on networks of 64 to 256 units spend their time in Python and dispatch, so
environments step as arrays, acting is numpy on memory shared with torch, and an update is few operations:
forward and backward by hand into one flat gradient (``control/chains.py``), one clipping, Adam's kernel
without its wrapper, one target update; a burst is sampled, and its targets are taken, once. Products run at
the processor's speed on both sides and can only be left out or turned round: with a side of 2 or 4 the wrong
way round costs three to six times as much, and where SAC takes the smaller of two critics each row goes back
through one of them. Graphs of autograd at the outputs cost more than the arithmetic there: with closed forms
PPO's gradient step on CartPole fell from 0.85 to 0.64 ms and SAC's on Pendulum from 11 to 9.5 ms. What is
left, by the profiler: of DQN's step (0.84 ms) 0.43 ms are products and 0.08 Adam, of SAC's 5.9 ms are
products, which caps it near 2. Keeping the hidden layers' memory between steps changed nothing (2 %).
numpy's own threads do not speed acting up and keep a second core busy: they are held to ours. Where we lose:
with batches and networks so large that the products dominate both sides are equal; tasks not in numpy
(LunarLander) step at Gymnasium's own pace on either side; state-dependent noise (gSDE), which the zoo uses
for PPO on Pendulum and MountainCarContinuous, is not built here. Ratios below 1 are printed like any other.

    python benchmarks/control_vs_peers.py [--quick] [--json FILE] [--seeds N] [--only SECTION …]
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from machine import machine
from onward.control import presets
from onward.control.comparison import Outcome, Race, equal_settings, ours, stable_baselines3
from onward.errors import MissingExtraError

TUNING_SEED = 1000
Side = Callable[[Race], Outcome]
SIDES: dict[str, Side] = {"onward": ours, "stable-baselines3": stable_baselines3}
THRESHOLDS = {"CartPole-v1": 475.0, "Pendulum-v1": -200.0, "LunarLander-v3": 200.0, "Acrobot-v1": -100.0}
QUICK = (("CartPole-v1", "ppo", 100_000), ("CartPole-v1", "dqn", 50_000), ("Pendulum-v1", "sac", 6_000))
FULL = (
    ("CartPole-v1", "ppo", 100_000),
    ("CartPole-v1", "dqn", 50_000),
    ("Pendulum-v1", "sac", 20_000),
    ("Acrobot-v1", "dqn", 100_000),
    ("LunarLander-v3", "ppo", 1_000_000),
)

TRIALS: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {
    ("CartPole-v1", "ppo"): {
        "onward": [{}, {"num_envs": 32}, {"epochs": 10}, {"num_envs": 16, "batch_size": 512}],
        "stable-baselines3": [{}, {"num_envs": 32}, {"epochs": 10}, {"num_envs": 16, "batch_size": 512}],
    },
    ("CartPole-v1", "dqn"): {
        "onward": [{}, {"double": True, "n_step": 3}, {"hidden": (128, 128)}, {"num_envs": 8}],
        "stable-baselines3": [{}, {"n_step": 3}, {"hidden": (128, 128)}, {"num_envs": 8}],
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
"""What each side may try over the zoo's settings: as many trials each."""


def race(env: str, algorithm: str, steps: int, seed: int, peer: str = "sb3", **more: Any) -> Race:
    settings = equal_settings(peer, algorithm, env)
    return Race(env, settings, steps, THRESHOLDS[env], seed, max(500, steps // 100), **more)


def section(cases: Any, seeds: int, peer: str) -> list[dict[str, Any]]:
    """The same settings on both sides."""
    rows = []
    for env, algorithm, steps in cases:
        outcomes: dict[str, list[Outcome]] = {name: [] for name in SIDES}
        for seed in range(seeds):
            for name, side in SIDES.items():
                outcomes[name].append(side(race(env, algorithm, steps, seed, peer)))
        rows.append(row(env, algorithm, steps, outcomes))
        show(rows[-1])
    return rows


def best(seeds: int) -> list[dict[str, Any]]:
    """Each side's best of its trials, then measured on other seeds; both stop at the threshold."""
    rows = []
    for env, algorithm, steps in FULL:
        if (env, algorithm) not in TRIALS:
            continue
        outcomes: dict[str, list[Outcome]] = {}
        chosen: dict[str, Any] = {}
        for name, trials in TRIALS[env, algorithm].items():
            changes = min(trials, key=lambda t: time_of(env, algorithm, steps, name, t, TUNING_SEED))
            chosen[name] = {"changes": changes, "trials": len(trials)}
            outcomes[name] = [
                SIDES[name](changed(env, algorithm, steps, changes, seed)) for seed in range(seeds)
            ]
        rows.append({**row(env, algorithm, steps, outcomes), "chosen": chosen})
        show(rows[-1])
    return rows


def changed(env: str, algorithm: str, steps: int, changes: dict[str, Any], seed: int) -> Race:
    base = race(env, algorithm, steps, seed, stop=True)
    found = presets.Preset(steps, base.settings.as_dict() | changes)
    settings = {key: tuple(v) if isinstance(v, list) else v for key, v in found.settings.items()}
    return replace(base, settings=type(base.settings)(**settings))


def time_of(env: str, algorithm: str, steps: int, name: str, changes: dict[str, Any], seed: int) -> float:
    return SIDES[name](changed(env, algorithm, steps, changes, seed)).seconds_to_threshold or math.inf


def row(env: str, algorithm: str, steps: int, outcomes: dict[str, list[Outcome]]) -> dict[str, Any]:
    sides = {name: summary(found) for name, found in outcomes.items()}
    mine, theirs = sides["onward"], sides["stable-baselines3"]
    times = theirs["seconds_to_threshold"], mine["seconds_to_threshold"]
    return {
        "env": env,
        "algorithm": algorithm,
        "steps": steps,
        **sides,
        "ratio": round(mine["steps_per_second"] / theirs["steps_per_second"], 2),
        "cpu_ratio": round(mine["steps_per_cpu_second"] / theirs["steps_per_cpu_second"], 2),
        "ratio_to_threshold": round(times[0] / times[1], 2) if None not in times else None,
    }


def summary(found: list[Outcome]) -> dict[str, Any]:
    """Over seeds; the time to the threshold only where every seed reached it."""
    reached = [one.seconds_to_threshold for one in found]
    whole = None if None in reached else round(float(np.median(np.array(reached, float))), 2)
    successes = [one.final_success for one in found if one.final_success is not None]
    return {
        "steps_per_second": round(sum(o.steps for o in found) / sum(o.seconds for o in found), 1),
        "steps_per_cpu_second": round(sum(o.steps for o in found) / sum(o.cpu_seconds for o in found), 1),
        "seconds_to_threshold": whole,
        "reached": f"{sum(second is not None for second in reached)} of {len(found)}",
        "final_success": round(float(np.mean(successes)), 3) if successes else None,
        "final_mean": round(float(np.mean([one.final_mean for one in found])), 2),
        "runs": [one.as_dict() for one in found],
    }


def show(found: dict[str, Any]) -> None:
    print(f"{found['algorithm']} on {found['env']}, {found['steps']:,} steps at most")
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Control policies beside stable-baselines3.")
    parser.add_argument(
        "--quick", action="store_true", help="CartPole and Pendulum, equal settings, one seed"
    )
    parser.add_argument("--json", type=Path, help="write the result to this file as well")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=("equal", "cleanrl", "best"))
    given = parser.parse_args()
    sections = given.only or (("equal",) if given.quick else ("equal", "cleanrl", "best"))
    seeds = 1 if given.quick else given.seeds
    result: dict[str, Any] = {"benchmark": "control_vs_peers", "machine": machine(), "seeds": seeds}
    try:
        if "equal" in sections:
            result["equal settings"] = section(QUICK if given.quick else FULL, seeds, "sb3")
        if "cleanrl" in sections:
            result["cleanrl settings"] = section(QUICK, seeds, "cleanrl")
        if "best" in sections:
            result["each side's best settings, the same number of trials"] = best(seeds)
    except MissingExtraError as error:
        raise SystemExit(str(error)) from None
    cases = [case for name in result if "settings" in name for case in result[name]]
    result["ratio"] = {f"{c['algorithm']} {c['env']}": c["ratio"] for c in cases if c}
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
