"""The desk as a suite: its validation tasks, played at the temperature of serving.

``play_all`` knows no endpoint, so that a release can also ask the engine directly, which is faster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from copy import copy
from functools import partial
from typing import Literal

from onward.envs import desk
from onward.suites.asking import AT_ONCE, Asker, play_each
from onward.suites.finding import Sources
from onward.suites.suite import Endpoint, ItemResult, OnItem

Complete = Callable[[list[dict[str, str]], str], Awaitable[str]]
"""``await complete(messages, session_id) -> text``: one answer of the policy under test."""
SPLIT = "validation"


async def play(task: desk.Task, complete: Complete) -> ItemResult:
    """Plays one task from first message to verdict. The score is the task's completion."""
    episode = desk.Episode(task)
    messages = [{"role": m["role"], "content": m["content"]} for m in episode.messages()]
    done, why = False, ""
    while not done:
        answer = await complete(list(messages), task.task_id)
        step = episode.step(answer)
        done, why = step.done, step.error or ""
        messages.append({"role": "assistant", "content": answer})
        if not done:
            messages.append({"role": "user", "content": step.observation or ""})
    outcome = episode.outcome()
    return ItemResult(task.task_id, task.kind, outcome.completion, outcome.success, messages, why)


async def play_all(
    complete: Complete,
    size: int,
    *,
    split: str = SPLIT,
    seed: int = 0,
    done: Collection[str] = (),
    at_once: int = AT_ONCE,
    on_item: OnItem | None = None,
) -> list[ItemResult]:
    """Plays ``size`` tasks of ``split`` in the order of ``desk.tasks``, without those that are ``done``.
    Results have the same order."""
    tasks = [task for task in desk.tasks(split, size, seed) if task.task_id not in done]
    return await play_each(tasks, partial(play, complete=complete), at_once=at_once, on_item=on_item)


class DeskSuite:
    """The first ``size`` validation tasks of the desk."""

    name = "desk"
    purpose: Literal["benchmark", "safety"] = "benchmark"

    def __init__(self, size: int) -> None:
        self.size = size
        self.done: Collection[str] = ()
        """Tasks that are not played."""

    @property
    def item_ids(self) -> list[str]:
        return [task.task_id for task in desk.tasks(SPLIT, self.size)]

    def without(self, done: Collection[str]) -> DeskSuite:
        rest = copy(self)
        rest.done = done
        return rest

    def digest(self) -> str:
        """Returns the hash of the tasks."""
        return desk.panel_hash(SPLIT, self.size)

    async def run(self, policy: Endpoint, *, seed: int, on_item: OnItem | None = None) -> list[ItemResult]:
        """Plays the tasks by asking the endpoint. Raises EngineError."""
        async with Asker(policy, seed=seed) as asker:

            async def complete(messages: list[dict[str, str]], session_id: str) -> str:
                return (await asker.ask(messages, session_id)).text

            return await play_all(complete, self.size, seed=seed, done=self.done, on_item=on_item)


async def make(rest: str, sources: Sources) -> DeskSuite:
    """Makes the suite ``desk``."""
    return DeskSuite(sources.items)
