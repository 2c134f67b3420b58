"""A run that trains a rubric writer: warm start, then reinforcement learning through the one learner.

A step samples a group of episodes for each of some tasks, scores the rubrics, and takes one optimiser step.
The run's folder has its plan, ``base`` (the policy after the warm start), ``writer`` (the result), one line
of ``metrics.jsonl`` for each step, and saved states of the warm start and of the learning while it runs.

Invariants: step ``n`` follows from the plan, the weights and ``n`` alone. A run that is killed in the warm
start or in the learning, and started again on its folder, goes on from the saved state and ends with the same
writer. Two processes never train in one folder.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from onward.errors import ConfigError, TrainingError
from onward.files import check_file, locked_folder, make_folder, write_whole
from onward.lm import algorithms
from onward.lm.learner import Learner, LearnerConfig
from onward.lm.statistics import StepMetrics
from onward.lm.trajectories import NothingToLearnError, Trajectory
from onward.rubrics.policy import warm_start
from onward.rubrics.policy.episodes import Attempt, Player
from onward.rubrics.policy.figures import figures
from onward.rubrics.policy.plan import PLAN, Plan
from onward.rubrics.policy.scoring import Scorer, TruthScorer
from onward.rubrics.policy.splits import training_tasks, validation_tasks
from onward.rubrics.policy.warm_start import Emit
from onward.rubrics.policy.writer import is_whole, load_player, save_writer
from onward.rubrics.reward import RubricReward
from onward.saved_state import StateFolder

METRICS, BASE, WRITER = "metrics.jsonl", "base", "writer"
RAW, WARM_STATE, STATE = "raw", "warm_state", "state"
"""Folders of an unfinished run: the network before training, and the saved states."""
LAST_RATE = 0.1
"""Share of the learning rate at the end of the run."""


def train(
    plan: Plan,
    folder: Path,
    *,
    judge: Scorer | None = None,
    emit: Emit = lambda event, **facts: None,
    stop: Callable[[], bool] = lambda: False,
) -> Path | None:
    """Trains a writer in ``folder``, or goes on with the run there, and returns the writer's folder.

    ``emit(event, **facts)`` receives events: demonstrations, warm_start, step, validation. If ``stop``
    returns True after a step, the state is saved and None is returned. Raises ConfigError if the folder has a
    run of another plan, if another process trains in it, or if it may not be read and written.
    """
    folder = Path(folder)
    make_folder(folder)
    try:
        with locked_folder(folder, f"Another process trains a rubric writer in {folder}: wait for its end."):
            check_file(folder / PLAN)
            return _Run(plan, folder, judge or TruthScorer(), emit).to_end(stop)
    except (PermissionError, NotADirectoryError) as error:
        raise ConfigError(
            f"The run in {folder} cannot go on, since {error.filename} cannot be used ({error.strerror}): "
            f"give a folder that may be read and written."
        ) from error


class _Run:
    def __init__(self, plan: Plan, folder: Path, judge: Scorer, emit: Emit) -> None:
        known = Plan.read(folder)
        if known is not None and known != plan:
            raise ConfigError(f"{folder} has a run of another plan: give a new folder, or its own plan.")
        plan.write(folder)
        torch.set_num_threads(plan.threads)
        self.plan, self.folder, self.judge, self.emit = plan, folder, judge, emit
        self.tasks = training_tasks(plan.families, plan.seeds_per_family)
        self.warm_state, self.state = StateFolder(folder / WARM_STATE), StateFolder(folder / STATE)
        self.rows: list[dict[str, Any]] = []

    def to_end(self, stop: Callable[[], bool]) -> Path | None:
        plan, writer = self.plan, self.folder / WRITER
        if is_whole(writer):
            self.state.clear()
            return writer
        player = self._start(stop)
        if player is None:
            return None
        learner = Learner(player.policy, player.adapter, self._config())
        algorithm = algorithms.from_options({"type": plan.algorithm, **plan.options})
        done = self._restore(learner, algorithm)
        while done < plan.steps:
            self.rows.append(self._step(player, learner, algorithm, done))
            done += 1
            self.emit("step", total=plan.steps, **self.rows[-1])
            if done % plan.eval_every == 0 or done == plan.steps:
                self._validate(player, done)
            halts = stop()
            if (halts or done % plan.save_every == 0) and done < plan.steps:
                self._save(learner, algorithm, done)
            if halts and done < plan.steps:
                return None
        self._write_metrics()
        save_writer(player, writer)
        self.state.clear()
        return writer

    def _start(self, stop: Callable[[], bool]) -> Player | None:
        """Returns a player of the policy after the warm start, which is made if it is not there; None if
        ``stop`` ended it."""
        plan, base, raw = self.plan, self.folder / BASE, self.folder / RAW
        if not is_whole(base):
            shutil.rmtree(raw, ignore_errors=True)
            policy, adapter = warm_start.untrained(plan, self.tasks, raw)
            player = Player(policy, adapter, questions=plan.questions, notes=plan.notes, ordered=plan.ordered)
            if not warm_start.warm_up(plan, player, self.tasks, self.warm_state, self.emit, stop):
                return None
            save_writer(player, base)
        shutil.rmtree(raw, ignore_errors=True)
        self.warm_state.clear()
        return load_player(base)

    def _config(self) -> LearnerConfig:
        plan = self.plan
        return LearnerConfig(
            learning_rate=plan.learning_rate,
            epochs=1,
            minibatch_rows=plan.tasks_per_step * plan.group_size,
            entropy_coef=plan.entropy_coef,
            micro_batch_tokens=8192,
            normaliser="sequence",
            seed=plan.seed,
        )

    # --- a step ------------------------------------------------------------------------------------

    def _step(
        self, player: Player, learner: Learner, algorithm: algorithms.Algorithm, number: int
    ) -> dict[str, Any]:
        plan, started = self.plan, time.monotonic()
        rng = random.Random(f"{plan.seed}/step/{number}")
        chosen = rng.sample(self.tasks, min(plan.tasks_per_step, len(self.tasks)))
        repeated = [task for task in chosen for _ in range(plan.group_size)]
        attempts = player.play(repeated, seed=rng.getrandbits(40), for_training=True)
        rewards = self.judge(attempts)
        sampled = time.monotonic()
        learner.stepper.learning_rate = plan.learning_rate * self._rate_share(number)
        metrics = _learned(learner, algorithm, trajectories(attempts, rewards))
        found = asdict(figures(attempts, rewards))
        return {
            "step": number + 1,
            **found,
            "loss": None if metrics is None else metrics.loss,
            "token_entropy": None if metrics is None else metrics.entropy,
            "grad_norm": None if metrics is None else metrics.grad_norm,
            "sampling_seconds": sampled - started,
            "learning_seconds": time.monotonic() - sampled,
        }

    def _rate_share(self, number: int) -> float:
        return 1.0 - (1.0 - LAST_RATE) * number / max(1, self.plan.steps - 1)

    def _validate(self, player: Player, done: int) -> None:
        attempts = player.play(validation_tasks(self.plan.eval_tasks), seed=self.plan.seed)
        found = figures(attempts, TruthScorer()(attempts))
        self.rows[-1] = {**self.rows[-1], "validation": asdict(found)}
        self.emit("validation", step=done, total=self.plan.steps, **asdict(found))

    # --- state -------------------------------------------------------------------------------------

    def _save(self, learner: Learner, algorithm: algorithms.Algorithm, done: int) -> None:
        facts = {"done": done, "rows": self.rows, "algorithm": algorithm.state()}
        self.state.save(learner.save, facts)
        self._write_metrics()

    def _restore(self, learner: Learner, algorithm: algorithms.Algorithm) -> int:
        facts = self.state.facts()
        if not facts or self.state.current is None:
            return 0
        learner.restore(self.state.current)
        algorithm.load_state(facts["algorithm"])
        self.rows = facts["rows"]
        return int(facts["done"])

    def _write_metrics(self) -> None:
        text = "".join(json.dumps(row) + "\n" for row in self.rows)
        write_whole(self.folder / METRICS, text.encode())


def trajectories(attempts: Sequence[Attempt], rewards: Sequence[RubricReward]) -> list[Trajectory]:
    """Returns scored episodes as the algorithms take them: the group is the task."""
    return [
        Trajectory(
            [one.row],
            found.total,
            group=f"{one.task.family}/{one.task.seed}",
            task_type=one.task.family,
        )
        for one, found in zip(attempts, rewards, strict=True)
    ]


def _learned(
    learner: Learner, algorithm: algorithms.Algorithm, scored: Sequence[Trajectory]
) -> StepMetrics | None:
    """Takes the step; returns its metrics, None if no group had anything to compare."""
    try:
        (metrics,) = algorithms.learn(learner, algorithm, algorithm.select(scored))
    except NothingToLearnError:
        return None
    if metrics.skipped:
        raise TrainingError("CONVERGENCE", "A step was not finite: lower the learning rate.")
    return metrics
