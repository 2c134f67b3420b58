"""An environment as a suite: the first of its held-out tasks.

``env:maze``, ``env:package.module:NAME`` and ``env:http://HOST:PORT`` are environments as ``onward env``
knows them. An episode that the environment failed is unscored, which is not the policy's fault.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Sequence
from copy import copy
from typing import Literal

from onward.envs.rollouts import Action, Conversation, Episode, rollouts
from onward.envs.sources import open_source
from onward.envs.tasks import TaskRef
from onward.suites.asking import AT_ONCE, Asker
from onward.suites.finding import Sources
from onward.suites.suite import Endpoint, ItemResult, OnItem


class EnvironmentSuite:
    """The first held-out tasks of one environment."""

    purpose: Literal["benchmark", "safety"] = "benchmark"

    def __init__(self, place: str, tasks: Sequence[TaskRef], panel_hash: str) -> None:
        self.name = f"env:{place}"
        self._place, self._tasks, self._panel_hash = place, tasks, panel_hash

    @property
    def size(self) -> int:
        return len(self._tasks)

    @property
    def item_ids(self) -> list[str]:
        return [item.task_id for item in self._tasks]

    def without(self, done: Collection[str]) -> EnvironmentSuite:
        rest = copy(self)
        rest._tasks = [item for item in self._tasks if item.task_id not in done]
        return rest

    def digest(self) -> str:
        """Returns a hash of the panel, as the environment reports it, and of the names of the tasks."""
        names = "\n".join([self._panel_hash, *(task.task_id for task in self._tasks)])
        return hashlib.sha256(names.encode()).hexdigest()

    async def run(self, policy: Endpoint, *, seed: int, on_item: OnItem | None = None) -> list[ItemResult]:
        """Plays each task once. Raises EngineError, and EnvironmentFailure if the server is away."""

        def ended(episode: Episode) -> None:
            if on_item is not None:
                on_item(_result(episode))

        async with open_source(self._place) as source, Asker(policy, seed=seed) as asker:
            episodes = await rollouts(
                source, _Asked(asker), self._tasks, concurrency=AT_ONCE, on_episode=ended
            )
        return [_result(episode) for episode in episodes]


class _Asked:
    """The policy of an endpoint, as ``rollouts`` asks it."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def act(self, conversations: Sequence[Conversation]) -> Sequence[Action]:
        return await asyncio.gather(*(self._one(conversation) for conversation in conversations))

    async def _one(self, conversation: Conversation) -> Action:
        answer = await self._asker.ask(conversation.messages, conversation.task.task_id)
        return Action(answer.text, stopped="refused" if answer.refused else None)


def _result(episode: Episode) -> ItemResult:
    note = episode.message or episode.failure or ("" if episode.success else f"ended: {episode.ended}")
    score = None if episode.reward is None else min(1.0, max(0.0, episode.reward))
    kind = episode.task.environment
    return ItemResult(episode.task.task_id, kind, score, bool(episode.success), episode.messages, note)


async def make(rest: str, sources: Sources) -> EnvironmentSuite:
    """Makes the suite ``env:PLACE``. Raises NotFoundError, ConfigError, EnvironmentFailure."""
    async with open_source(rest) as source:
        return EnvironmentSuite(rest, source.panel(n=sources.items), source.panel_hash)
