"""Plays tasks of an environment with the policy in training, and the figures of what it did there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from onward.envs.environment import LocalSource
from onward.envs.rollouts import Episode, rollouts
from onward.envs.sources import TaskSource
from onward.envs.tasks import TaskRef
from onward.lm import off_policy
from onward.training.job.actor import Actor
from onward.training.job.methods import Method
from onward.training.spec.environment_plan import EnvironmentPlan


async def play(
    method: Method,
    source: TaskSource,
    plan: EnvironmentPlan,
    thread: Executor,
    tasks: Sequence[TaskRef],
    *,
    seed: str,
    temperature: float,
    attempts: int = 1,
    horizon: int | None = None,
    for_training: bool = False,
    stop: Callable[[], None] = lambda: None,
) -> tuple[list[Episode], int]:
    """Returns the episodes and the number of sampled tokens. ``stop`` is called at every token and may
    raise."""
    actor = Actor(
        method.policy,
        method.adapter,
        thread,
        max_tokens=plan.max_tokens,
        temperature=temperature,
        seed=seed,
        for_training=for_training,
        batch=plan.concurrency,
        check=stop,
    )
    try:
        episodes = await rollouts(
            source,
            actor,
            tasks,
            attempts=attempts,
            horizon=horizon,
            concurrency=plan.concurrency,
            linger_seconds=None if isinstance(source, LocalSource) else 0.25,
        )
    finally:
        actor.close()
    return episodes, actor.tokens


def figures(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Returns success and mean reward of the scored episodes, the reward's 95 % interval over tasks if there
    are enough of them, and counts."""
    scored = [one for one in episodes if one.reward is not None]
    rewards = [float(one.reward or 0.0) for one in scored]
    interval = off_policy.estimate(
        [
            off_policy.LoggedAttempt(one.task, [0.0], [reward])
            for one, reward in zip(scored, rewards, strict=True)
        ],
        bounds=(min([0.0, *rewards]), max([1.0, *rewards])),
    )
    return {
        "success": mean([bool(one.success) for one in scored]),
        "reward": mean(rewards),
        "episodes": len(episodes),
        "unscored": len(episodes) - len(scored),
        "tasks": interval.tasks,
        "method": "replay",
        **({} if interval.low is None else {"low": interval.low, "high": interval.high}),
    }


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
