"""Learning from an environment: play with the current policy, learn once from that, play again.

Invariants: an episode whose environment failed is unscored. It is left out of the loss and the baselines and
counted by its cause; above ``max_unscored_share`` of a step the job fails with code DATA. A step that is
interrupted while playing is played again from the saved state, with the same result.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from onward.envs.rollouts import Episode
from onward.envs.sources import TaskSource
from onward.envs.tasks import TaskRef
from onward.errors import TrainingError
from onward.lm.cursor import rate_share
from onward.lm.trajectories import NothingToLearnError
from onward.training.job import playing
from onward.training.job.actor import trajectory
from onward.training.job.kept import KeptPolicy
from onward.training.job.methods import Method
from onward.training.job.pace import Pace
from onward.training.job.placing import peak_gigabytes
from onward.training.spec import environment_plan as plans
from onward.training.spec.algorithms import ALGORITHMS
from onward.training.spec.environment_plan import EnvironmentPlan
from onward.training.spec.request import JobSpec

PATIENCE = 8
"""Consecutive steps without any success after which the run stops."""
HELD_OUT = "held_out"
"""Metric with figures of held-out tasks."""

Emit = Callable[..., None]
Save = Callable[[dict[str, Any]], bool]


@dataclass
class RunProgress:
    """Progress of a run; all of it is in the saved state."""

    step: int = 0
    without_signal: int = 0
    """Consecutive steps without an update."""
    episodes: int = 0
    updates: int = 0
    tokens: int = 0
    unscored: dict[str, int] = field(default_factory=dict)
    """Unscored episodes by cause."""
    before: dict[str, Any] | None = None
    """Held-out figures of the starting policy."""
    last: dict[str, Any] = field(default_factory=dict)
    """Metrics of the last step."""
    panel_hash: str = ""
    """Hash of the held-out tasks that ``before`` was measured on."""
    evaluated: int = 0
    """Last step after which the held-out tasks were tried."""


class OnPolicy:
    """Trains on episodes; ``run`` takes the remaining steps of ``course``.

    One thread plays and learns, beside the event loop that talks to the environment. With a second computing
    thread, OpenMP would have two teams of threads and sleep at every wait.
    """

    def __init__(
        self,
        method: Method,
        source: TaskSource,
        spec: JobSpec,
        *,
        course: RunProgress,
        emit: Emit,
        save: Save,
        stop: Callable[[], None],
        kept: KeptPolicy,
    ) -> None:
        """``stop`` is called at every token and may raise; ``save`` receives the course after each step.
        ``kept`` keeps the policy with the best held-out success."""
        assert spec.environment is not None
        self.method, self.source, self.spec = method, source, spec
        self.plan: EnvironmentPlan = spec.environment
        self.course, self._emit, self._save, self._stop = course, emit, save, stop
        self._kept = kept
        self._train, self._held_out = plans.panels(self.plan, source)
        self._thread = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="torch",
            initializer=torch.set_num_threads,
            initargs=(spec.thread_count,),
        )

    async def run(self) -> dict[str, Any]:
        """Runs the steps; returns facts for the manifest. Raises TrainingError (DATA); ``stop`` may raise."""
        try:
            return await self._run()
        finally:
            self._thread.shutdown()

    async def _run(self) -> dict[str, Any]:
        plan, course = self.plan, self.course
        if course.before is None:
            course.before = await self._evaluate("before")
            course.panel_hash = self.source.panel_hash
            if self.spec.start_counts:
                self._offer(course.before)
            self._save(vars(course))
        elif course.panel_hash != self.source.panel_hash:
            raise TrainingError(
                "DATA",
                f"{self.source.name} serves other held-out tasks than when this run began: start a new run.",
            )
        pace = Pace(plan.steps)
        while course.step < plan.steps:
            await self._evaluate_if_due()
            metrics = await self._step(course.step)
            course.step += 1
            course.last = metrics
            self._emit(
                "progress",
                step=course.step,
                total_steps=plan.steps,
                progress=pace.progress(course.step, plan.steps),
                metrics={**metrics, "memory_gb": peak_gigabytes(self.method.policy)},
            )
            self._save(vars(course))
        if course.updates == 0:
            raise TrainingError("DATA", self._nothing_learned())
        return await self._summary()

    async def _evaluate_if_due(self) -> None:
        """Evaluates after every period, before the next one: a stop meanwhile repeats it."""
        step = self.course.step
        if not step or step % self.spec.evaluation_period(self.plan.steps) or step == self.course.evaluated:
            return
        figures = await self._evaluate(f"step {step}")
        self.course.evaluated = step
        if self._offer(figures):
            self._save(vars(self.course))

    def _offer(self, figures: dict[str, Any]) -> bool:
        """Keeps the present policy if none had more success, and as much reward with the same success."""
        if not figures or figures["success"] is None:
            return False
        metrics = {**self.course.last, HELD_OUT: figures}
        return self._kept.offer(self.course.step, figures["success"], figures["reward"], metrics=metrics)

    async def _step(self, step: int) -> dict[str, Any]:
        plan, course, started = self.plan, self.course, time.monotonic()
        tasks = plans.tasks_of(step, self._train, plan.episodes // plan.group_size, self.spec.seed)
        schedule = plan.schedule
        episodes, tokens = await self._play(
            tasks,
            plan.group_size,
            f"{self.spec.seed}/{step}",
            plan.temperature,
            schedule.turns_at(step) if schedule else None,
            for_training=True,
        )
        course.episodes += len(episodes)
        course.tokens += tokens
        self._count_unscored(episodes)
        scored = [one for one in episodes if one.reward is not None]
        metrics: dict[str, Any] = {
            "reward_mean": playing.mean([float(one.reward or 0.0) for one in scored]),
            "reward_std": statistics.pstdev([float(one.reward or 0.0) for one in scored]) if scored else None,
            "success_rate": playing.mean([bool(one.success) for one in scored]),
            "turns": playing.mean([len(one.turns) for one in scored]),
            "scored": len(scored),
            "unscored": len(episodes) - len(scored),
            "horizon": schedule.turns_at(step) if schedule else self.source.horizon,
        }
        share = rate_share(self.spec.schedule, step, plan.steps, self.spec.warmup_steps)
        self.method.stepper.learning_rate = self.spec.learning_rate * share
        learned = await asyncio.get_running_loop().run_in_executor(self._thread, self._learn, episodes)
        course.without_signal = 0 if learned else course.without_signal + 1
        course.updates += bool(learned)
        if course.without_signal >= PATIENCE and not metrics["success_rate"]:
            raise TrainingError("DATA", self._nothing_learned())
        seconds = time.monotonic() - started
        found = {**learned, **metrics, "tokens_per_second": tokens / seconds, "steps": step + 1}
        return {name: value for name, value in found.items() if value is not None}

    def _learn(self, episodes: Sequence[Episode]) -> dict[str, Any]:
        """Returns metrics of the update's last optimiser step; empty if all attempts ended alike. Raises
        TrainingError (DATA) for invalid attempts, which no further step would correct."""
        per_turn = ALGORITHMS[self.spec.algorithm].places_rewards
        played = [trajectory(one, per_turn=per_turn) for one in episodes]
        try:
            self.method.prepare(played)
        except NothingToLearnError:
            return {}
        return [found for _, _, found in self.method.steps()][-1]

    async def _play(
        self,
        tasks: Sequence[TaskRef],
        attempts: int,
        seed: str,
        temperature: float,
        horizon: int | None,
        *,
        for_training: bool,
    ) -> tuple[list[Episode], int]:
        return await playing.play(
            self.method,
            self.source,
            self.plan,
            self._thread,
            tasks,
            seed=seed,
            temperature=temperature,
            attempts=attempts,
            horizon=horizon,
            for_training=for_training,
            stop=self._stop,
        )

    def _count_unscored(self, episodes: Sequence[Episode]) -> None:
        causes = Counter(one.failure or "unknown" for one in episodes if not one.is_scored)
        for cause, count in causes.items():
            self.course.unscored[cause] = self.course.unscored.get(cause, 0) + count
        share = causes.total() / len(episodes)
        if share > self.spec.max_unscored_share:
            told = ", ".join(f"{count} {cause}" for cause, count in causes.most_common())
            said = next((one.message for one in episodes if one.message), "")
            raise TrainingError(
                "DATA",
                f"{causes.total()} of {len(episodes)} episodes are unscored ({told}), more than the "
                f"{self.spec.max_unscored_share:.0%} that training.max_unscored_share allows: look at the "
                f"environment. {said}".strip(),
            )

    async def _evaluate(self, when: str) -> dict[str, Any]:
        """Measures held-out success and reward, each task once, with the same seeds before and after and the
        last turn limit of the schedule."""
        if not self._held_out:
            return {}
        self._emit("stage", name=f"held-out tasks, {when}")
        episodes, _ = await self._play(
            self._held_out,
            1,
            f"{self.spec.seed}/held-out",
            self.plan.held_out_temperature,
            schedule.turns[-1] if (schedule := self.plan.schedule) else None,
            for_training=False,
        )
        figures = playing.figures(episodes)
        self._emit("held_out", when=when, **figures)
        return figures

    async def _summary(self) -> dict[str, Any]:
        course = self.course
        after = await self._evaluate("after")
        self._offer(after)
        facts: dict[str, Any] = {
            "environment": self.source.name,
            "panel_hash": course.panel_hash,
            "episodes": course.episodes,
            "sampled_tokens": course.tokens,
            "unscored_episodes": dict(course.unscored),
            "updates": course.updates,
        }
        if after:
            facts[HELD_OUT] = {"before": course.before, "after": after}
        return facts

    def _nothing_learned(self) -> str:
        place, steps = self.plan.place, self.course.without_signal
        return (
            f"The attempts at a task in {self.source.name} all ended alike for {steps} steps in a row, so "
            f"there is nothing to learn from: warm the policy up first (`onward train --algorithm sft --env "
            f"{place}`), choose easier tasks, or raise the group size."
        )
