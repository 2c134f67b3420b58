"""The shipped tasks as suites of an endpoint, without Inspect: they need nothing but this package."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import copy
from functools import partial
from typing import Literal

from onward.errors import NotFoundError
from onward.suites.asking import AT_ONCE, Asker, play_each
from onward.suites.finding import Sources
from onward.suites.suite import Endpoint, ItemResult, OnItem
from onward.suites.tasks.code_generation import CodeGeneration
from onward.suites.tasks.data_analysis import DataAnalysis
from onward.suites.tasks.research_synthesis import ResearchSynthesis
from onward.suites.tasks.task import Item, Messages, Task
from onward.suites.tasks.tool_usage import ToolUsage

TASKS: dict[str, Callable[[], Task]] = {
    task.name: task for task in (CodeGeneration, DataAnalysis, ResearchSynthesis, ToolUsage)
}


class ShippedSuite:
    """One shipped task as a suite. An answer that the policy refuses to give counts as an empty one."""

    purpose: Literal["benchmark", "safety"] = "benchmark"

    def __init__(self, task: Task, size: int | None = None, *, at_once: int = AT_ONCE) -> None:
        """``size``: the first so many items, kinds in turn; None: all."""
        self._task = task
        self._items = _spread(list(task.items()))[:size]
        self.name = task.name
        self._at_once = at_once

    @property
    def size(self) -> int:
        return len(self._items)

    @property
    def item_ids(self) -> list[str]:
        return [item.item_id for item in self._items]

    def without(self, done: Collection[str]) -> ShippedSuite:
        rest = copy(self)
        rest._items = [item for item in self._items if item.item_id not in done]
        return rest

    def digest(self) -> str:
        """Returns the digest of the task, with the number of its items that are asked."""
        return f"{self._task.digest()[:56]}{self.size:08x}"

    async def run(self, policy: Endpoint, *, seed: int, on_item: OnItem | None = None) -> list[ItemResult]:
        """Plays all items. Raises EngineError, and ConfigError if this machine cannot judge them."""
        await self._task.check()
        async with Asker(policy, seed=seed, max_tokens=self._task.max_tokens) as asker:
            play = partial(_play, asker=asker)
            return await play_each(self._items, play, at_once=self._at_once, on_item=on_item)


async def _play(item: Item, asker: Asker) -> ItemResult:
    async def complete(messages: Messages, /) -> str:
        return (await asker.ask(messages, item.item_id)).text

    messages = [dict(message) for message in item.messages]
    judged = await item.play(messages, complete)
    return ItemResult(item.item_id, item.kind, judged.score, judged.success, messages, judged.note)


def _spread(items: list[Item]) -> list[Item]:
    """Returns the items with their kinds in turn, so that the first few have every kind."""
    by_kind: dict[str, list[Item]] = {}
    for item in items:
        by_kind.setdefault(item.kind, []).append(item)
    longest = max(map(len, by_kind.values()), default=0)
    return [kind[place] for place in range(longest) for kind in by_kind.values() if place < len(kind)]


def task(name: str) -> Task:
    """Returns the shipped task of that name. Raises NotFoundError."""
    made = TASKS.get(name)
    if made is None:
        raise NotFoundError(f"There is no shipped task {name!r}: choose one of {', '.join(TASKS)}.")
    return made()


async def make(name: str, sources: Sources) -> ShippedSuite:
    """Makes the suite of a shipped task. Raises NotFoundError, and ConfigError as ``run`` does."""
    made = task(name)
    await made.check()
    return ShippedSuite(made, sources.items)
