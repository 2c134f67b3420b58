"""PPO with its critic beside REINFORCE and RLOO: three tasks, five seeds each, the same episodes per update.

A door opens to one of two words. In ``first`` only the first of two answers
counts, in ``last`` only the last of three. In ``share`` the reward is the share of right answers. For each
task a small network (two layers, 64 hidden units) is taught to say any of the words, and the right ones of
doors in other colours. Every run starts from that network with a new adapter, and differs from the others in
its algorithm and seed alone. ``before`` and ``after`` are the mean reward on 100 held-out tasks, sampled
(before: about 1/2). ``--tasks maze,crafting`` takes built-in environments, warmed up on their own
demonstrations, for hours.

The JSON file holds every finished run and the warm networks lie beside it, so that an interrupted program
continues where it stopped.

Median and range of the reward afterwards over seeds 0 to 4 (two cores with much other work, which changes the
time alone; 101 s of processor time for all 45 runs):

    task    before  reinforce            rloo                 ppo
    first   0.69    0.97 (0.18 to 0.99)  0.97 (0.95 to 0.98)  0.97 (0.15 to 0.98)
    last    0.50    0.98 (0.96 to 0.98)  0.97 (0.95 to 0.99)  0.98 (0.96 to 0.99)
    share   0.69    0.97 (0.97 to 0.99)  0.97 (0.97 to 0.99)  0.98 (0.97 to 0.99)

The medians are equal within 0.01. In ``first``, one seed of five lost the task with REINFORCE and one with
PPO; RLOO lost none. A state of these tasks tells little about the reward but its mean, and PPO's critic says
so: its held-out explained variance is about -0.03. PPO takes 1.2 to 1.3 times the processor time of RLOO.

    python benchmarks/lm_algorithms.py --json algorithms.json [--tasks first,maze] [--seeds 0,1] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import onward.lm  # noqa: F401  (before torch: it makes waiting threads passive)

import torch  # isort: skip

from rich.console import Console

from machine import machine
from onward.envs.environment import Effect, Environment, LocalSource, Player, World
from onward.envs.policies import random_policy, reference_policy
from onward.envs.registry import find
from onward.envs.rollouts import rollouts
from onward.envs.tasks import TaskRef
from onward.files import write_whole
from onward.lm import sft
from onward.lm.chat import Chat
from onward.lm.policy import Policy
from onward.lm.tiny import build_tiny
from onward.progress import Bars
from onward.training.data import conversations
from onward.training.job import methods
from onward.training.job.kept import KeptPolicy
from onward.training.job.local import RunOptions, demonstrations
from onward.training.job.onpolicy import OnPolicy, RunProgress
from onward.training.spec.environment_plan import EnvironmentPlan
from onward.training.spec.request import JobSpec
from onward.training.warm_start import tiny_base

ALGORITHMS = ("reinforce", "rloo", "ppo")
WORDS = ("left", "right")
OPENS = {"red": "left"}
TAUGHT = {"green": "left", "white": "right"}
"""Doors of the warm-up: by them the network learns to tell the words apart."""


class Doors(Environment):
    """A word opens a door, always the same one for its colour. The reward is the share of right answers among
    the turns ``counted``; success is all of them."""

    version = "1"
    instructions = "Open the door."
    panels: ClassVar[Mapping[str, int]] = {"train": 400, "test": 100}

    def __init__(
        self, name: str, turns: int, counted: Sequence[int], opens: Mapping[str, str] = OPENS
    ) -> None:
        self.name, self.horizon, self.counted, self.opens = name, turns, frozenset(counted), opens

    def make_task(self, task: TaskRef) -> str:
        return list(self.opens)[task.index % len(self.opens)]

    def definition(self, task: str) -> object:
        return task

    def world(self, task: str) -> World:
        return _Door(self, task)

    def reference(self, task: str) -> Player:
        return lambda observation: self.opens[task]

    def random(self, task: str, rng: random.Random) -> Player:
        return lambda observation: rng.choice(WORDS)


class _Door(World):
    def __init__(self, environment: Doors, colour: str) -> None:
        self._environment, self._colour = environment, colour
        self._turn, self._right = 0, 0

    def describe(self) -> str:
        return f"The door is {self._colour}."

    def act(self, action: str) -> Effect:
        counted = self._environment.counted
        right = action.strip() == self._environment.opens[self._colour]
        self._right += right and self._turn in counted
        self._turn += 1
        if self._turn < self._environment.horizon:
            return Effect(f"The door is {self._colour}.")
        share = self._right / len(counted)
        return Effect("Over.", reward=share, done=True, success=share == 1)


ENVIRONMENTS = {
    "first": Doors("first", 2, [0]),
    "last": Doors("last", 3, [2]),
    "share": Doors("share", 3, [0, 1, 2]),
}


def environment(name: str) -> Environment:
    return ENVIRONMENTS.get(name) or find(name)


@dataclass(frozen=True)
class Task:
    """``warm_steps`` of imitation make the network of every run; ``steps`` are updates of a run."""

    warm_steps: int
    steps: int
    learning_rate: float
    episodes: int = 64
    held_out: int = 100
    max_tokens: int = 12
    horizon: str = ""


TASKS = {
    "first": Task(60, 12, 5e-3, max_tokens=4),
    "last": Task(60, 12, 5e-3, max_tokens=4),
    "share": Task(60, 12, 5e-3, max_tokens=4),
}
MORE = {
    "maze": Task(400, 12, 3e-3, horizon="12"),
    "crafting": Task(400, 12, 3e-3, horizon="10", max_tokens=24),
}
"""Built-in environments, on request: they take more than the time of the others together."""


def warm(name: str, folder: Path, bars: Bars) -> Path:
    """Returns the folder of the warm network of a task; makes it if it is not there."""
    if (folder / "config.json").is_file():
        return folder
    chosen = environment(name)
    if isinstance(chosen, Doors):
        taught = Doors(name, chosen.horizon, [0], TAUGHT)
        spoken = []
        for one, player in ((chosen, random_policy(chosen)), (taught, reference_policy(taught))):
            episodes = asyncio.run(rollouts(LocalSource(one), player, one.panel("train", n=200)))
            spoken += [[dict(message) for message in episode.messages] for episode in episodes]
    else:
        spoken = demonstrated(name, 400)
    messages = [message for one in spoken for message in one]
    words = tiny_base.answer_words(messages)
    texts = [str(message["content"]) for message in messages] + ["system\n", "user\n", "assistant\n"] * 400
    built = build_tiny(
        folder.with_name(f"{name}-untrained"), [*texts, *words * 50], vocab=512, hidden=64, layers=2, heads=2,
        kv_heads=1, intermediate=192, split=tiny_base.split_pattern(words),
    )  # fmt: skip
    policy = Policy.load(built)
    chat = Chat(policy.tokenizer)
    rows = [conversations.token_row(chat, one) for one in spoken]
    steps = (TASKS | MORE)[name].warm_steps
    bar = bars.add_bar(f"warm up, {name}", steps)
    epochs = -(-steps * 16 // len(rows)) + 1
    for step in sft.fit(policy, None, rows, learning_rate=3e-3, batch_rows=16, epochs=epochs):
        bar.update(step.step, note=f"loss {step.loss:.2f}")
        if step.step >= steps:
            break
    bar.finish()
    policy.save(folder)
    return folder


def demonstrated(name: str, count: int) -> list[list[dict[str, Any]]]:
    """Returns conversations in which a built-in environment's own reference solves training tasks."""
    plan = EnvironmentPlan(place=name, max_tokens=(TASKS | MORE)[name].max_tokens)
    wanted = RunOptions("sft", "tiny", None, Path(), env=name)
    return [line["messages"] for line in demonstrations(wanted, plan, count)]


def spec_of(name: str, algorithm: str, seed: int, folder: Path, quick: bool) -> JobSpec:
    task = (TASKS | MORE)[name]
    plan = EnvironmentPlan.model_validate(
        {
            "place": name,
            "steps": 2 if quick else task.steps,
            "episodes": 16 if quick else task.episodes,
            "held_out": 8 if quick else task.held_out,
            "max_tokens": task.max_tokens,
            "horizon": task.horizon,
        }
    )
    return JobSpec(
        job_id="bench", epoch=1, algorithm=algorithm, base_model="tiny", model_folder=str(folder),
        start_digest=None, learning_rate=task.learning_rate, epochs=2, batch_rows=32, clip_epsilon=0.2,
        lora_rank=4, lora_alpha=8.0, first_lora_layer=0.0, normaliser="token", return_from="outcome",
        standardise=algorithm != "ppo", negative_weight=1.0, kl_coef=0.0, seed=seed, threads=1,
        environment=plan,
    )  # fmt: skip


def run(spec: JobSpec, source: LocalSource, told: Any) -> dict[str, Any]:
    """Trains once in the environment; ``told(step)`` is called after each update."""
    policy = Policy.load(Path(spec.model_folder))
    policy.new_adapter(methods.ADAPTER, spec.lora_rank, spec.lora_alpha, seed=spec.seed)
    torch.manual_seed(spec.seed)
    explained: list[float] = []

    def emit(event: str, **facts: Any) -> None:
        if event == "progress":
            explained.append(facts["metrics"].get("held_out_explained_variance", 0.0))
            told(facts["step"])

    started, cpu = time.perf_counter(), time.process_time()
    method = methods.make(policy, spec)
    with tempfile.TemporaryDirectory() as scratch:
        playing = OnPolicy(
            method, source, spec, course=RunProgress(), emit=emit, save=lambda _: False, stop=lambda: None,
            kept=KeptPolicy(Path(scratch), method.tensors, None),
        )  # fmt: skip
        found = asyncio.run(playing.run())  # the figures after are those of the last policy
    return {
        "before": found["held_out"]["before"]["reward"],
        "after": found["held_out"]["after"]["reward"],
        "explained_variance": round(statistics.median(explained), 3) if spec.algorithm == "ppo" else None,
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns median and range of the reward after the runs of each task and algorithm."""
    found = []
    for name in TASKS | MORE:
        for algorithm in ALGORITHMS:
            chosen = [one for one in runs if (one["task"], one["algorithm"]) == (name, algorithm)]
            if not chosen:
                continue
            after = [one["after"] for one in chosen]
            told = [one["explained_variance"] for one in chosen if one["explained_variance"] is not None]
            found.append(
                {
                    "task": name,
                    "algorithm": algorithm,
                    "seeds": len(chosen),
                    "before": statistics.median(one["before"] for one in chosen),
                    "after": statistics.median(after),
                    "least": min(after),
                    "most": max(after),
                    "explained_variance": statistics.median(told) if told else None,
                    "cpu_seconds": statistics.median(one["cpu_seconds"] for one in chosen),
                }
            )
    return found


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Returns PPO's median reward over that of each of the others, by task."""
    after = {(row["task"], row["algorithm"]): row["after"] for row in rows}
    return {
        f"{task}: ppo / {other}": round(after[task, "ppo"] / after[task, other], 2)
        for task in TASKS | MORE
        for other in ALGORITHMS[:2]
        if (task, "ppo") in after and after.get((task, other))
    }


def write(path: Path | None, runs: list[dict[str, Any]]) -> dict[str, Any]:
    rows = summary(runs)
    found = {"benchmark": "lm_algorithms", "ratios": ratios(rows), "summary": rows, "machine": machine()}
    if path is not None:
        write_whole(path, (json.dumps(found | {"runs": runs}, indent=1) + "\n").encode())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="PPO beside REINFORCE and RLOO on three tasks.")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", default="0,1,2,3,4", help="numbers, separated by commas")
    parser.add_argument("--json", type=Path, help="results; runs that it holds already are kept")
    parser.add_argument("--quick", action="store_true", help="one task, one seed: its figures mean nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = ["first"] if given.quick else given.tasks.split(",")
    seeds = [0] if given.quick else [int(text) for text in given.seeds.split(",")]
    runs: list[dict[str, Any]] = []
    if given.json and given.json.exists():
        runs = json.loads(given.json.read_text(encoding="utf-8"))["runs"]
    done = {(one["task"], one["algorithm"], one["seed"]) for one in runs}
    wanted = [(n, a, s) for s in seeds for n in names for a in ALGORITHMS if (n, a, s) not in done]
    with tempfile.TemporaryDirectory() as scratch, Bars(Console(stderr=True)) as bars:
        beside = given.json.with_suffix("") if given.json and not given.quick else Path(scratch)
        every = bars.add_bar("runs", len(wanted))
        for number, (name, algorithm, seed) in enumerate(wanted):
            folder = warm(name, beside / name, bars)
            spec = spec_of(name, algorithm, seed, folder, given.quick)
            assert spec.environment is not None
            bar = bars.add_bar(f"{name}, {algorithm}, seed {seed}", spec.environment.steps)
            found = run(spec, LocalSource(environment(name)), bar.update)
            bar.finish()
            runs.append({"task": name, "algorithm": algorithm, "seed": seed} | found)
            write(given.json, runs)
            every.update(number + 1, note=f"{name} {algorithm} {found['before']:.2f} to {found['after']:.2f}")
        every.finish()
    print(json.dumps(write(given.json, runs), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
