"""The desk suite: validation tasks played by one policy, 32 at once so that the engine can batch them.

Both policies play the same tasks with the same seeds; the result of a task is its program's verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from onward.envs import desk
from onward.release.checks import Complete

AT_ONCE = 32


@dataclass(frozen=True)
class TaskResult:
    """``completion`` lies in [0, 1]; ``success`` is the program's verdict."""

    task_id: str
    kind: str
    success: bool
    completion: float


async def play(task: desk.Task, complete: Complete, session_id: str) -> TaskResult:
    """One task from first message to verdict."""
    episode = desk.Episode(task)
    messages = [dict(message) for message in episode.messages()]
    done = False
    while not done:
        answer = await complete([{**message} for message in messages], session_id)
        step = episode.step(answer)
        done = step.done
        messages += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": step.observation or ""},
        ]
    outcome = episode.outcome()
    return TaskResult(task.task_id, task.kind, outcome.success, outcome.completion)


async def run_desk(
    complete: Complete,
    size: int,
    *,
    split: str = "validation",
    seed: int = 0,
    label: str = "suite",
    at_once: int = AT_ONCE,
) -> list[TaskResult]:
    """Play ``size`` tasks of ``split``, in the order of ``desk.tasks``; results in the same order."""
    tasks: Sequence[desk.Task] = desk.tasks(split, size, seed)
    free = asyncio.Semaphore(at_once)

    async def one(task: desk.Task) -> TaskResult:
        async with free:
            return await play(task, complete, f"{label}-{task.task_id}")

    return list(await asyncio.gather(*(one(task) for task in tasks)))
