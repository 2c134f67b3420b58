"""Plays tasks of an environment with a policy, many episodes at once, and returns the episodes.

The policy interface is defined here, and a learner needs no more: ``act`` gets conversations and returns one
``Action`` for each, in order.

Invariants: an episode whose environment failed has no reward (None, *unscored*), never zero. Every opened
episode is closed, also at cancellation.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from onward.envs.failures import EnvironmentFailure
from onward.envs.tasks import TaskRef
from onward.errors import ConfigError, ContractError, OnwardError

Act = Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]


class PolicyTimeoutError(OnwardError):
    """Raised when the policy did not answer in time; the episodes of that call are unscored."""


class PolicyBatches:
    """Collects the conversations of many episodes into calls of one policy, one call at a time.

    The next one starts when every running episode waits for it, so that an environment in this process always
    fills whole batches. A slow server delays the others only for ``linger`` seconds. Use ``async with
    batches: action = await batches.request_action(conversation)``, while ``run()`` runs.
    """

    def __init__(self, act: Act, max_batch: int, linger_seconds: float | None, policy_seconds: float) -> None:
        self._act, self._max, self._linger, self._deadline = act, max_batch, linger_seconds, policy_seconds
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._changed = asyncio.Event()
        self._playing = 0

    async def __aenter__(self) -> PolicyBatches:
        """Registers one more running episode."""
        self._playing += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._playing -= 1
        self._changed.set()

    async def request_action(self, conversation: Any) -> Any:
        """Returns the policy's action. Raises PolicyTimeoutError."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((conversation, future))
        self._changed.set()
        return await future

    async def run(self) -> None:
        """Serves until cancelled. An exception of the policy ends this."""
        while True:
            batch = await self._next()
            deadline = asyncio.timeout(self._deadline)
            try:
                async with deadline:
                    actions = await self._act([conversation for conversation, _ in batch])
            except TimeoutError:
                if not deadline.expired():
                    raise
                error = PolicyTimeoutError(
                    f"The policy gave no action within {self._deadline:g} s to {len(batch)} conversations."
                )
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            if len(actions) != len(batch):
                raise ContractError(
                    "bad_actions",
                    f"The policy gave {len(actions)} actions for {len(batch)} conversations: "
                    f"act must return one for each, in order.",
                )
            for (_, future), action in zip(batch, actions, strict=True):
                if not future.done():
                    future.set_result(action)

    async def _next(self) -> list[tuple[Any, asyncio.Future[Any]]]:
        await self._until_full()
        batch, self._waiting = self._waiting[: self._max], self._waiting[self._max :]
        return batch

    async def _until_full(self) -> None:
        while not self._waiting:
            await self._changes()
        try:
            async with asyncio.timeout(self._linger):
                while not self._is_full():
                    await self._changes()
        except TimeoutError:
            pass
        self._waiting = [entry for entry in self._waiting if not entry[1].done()]
        if not self._waiting:
            await self._until_full()

    async def _changes(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _is_full(self) -> bool:
        waiting = sum(not future.done() for _, future in self._waiting)
        return waiting >= min(self._max, self._playing)


Message = dict[str, str]
"""One chat message: ``role`` and ``content``."""

Ending = Literal["done", "horizon", "stopped", "failed"]
"""Ended by the environment; turns spent without success; ended by the policy; failed, which is unscored."""


@dataclass(frozen=True)
class Action:
    """One answer of a policy.

    ``sampling`` is the policy's own record of how the answer was made (token ids, log-probs, adapter digest
    …). It is stored in the episode and never read here. ``stopped`` names the reason why the policy cannot go
    on (such as "context_length"): the text is then not played and the episode ends.
    """

    text: str
    sampling: Any = None
    stopped: str | None = None


@dataclass(frozen=True)
class Conversation:
    """Input of a policy for one episode.

    ``key`` is the same in every turn of an episode, and in a repeat of the rollouts. Draw random numbers from
    (key, turn), since the composition of a batch depends on timing. ``actions`` are the policy's own earlier
    answers, so that it can extend token rows without state of its own.
    """

    key: str
    task: TaskRef
    attempt: int
    turn: int
    turns_left: int
    messages: tuple[Message, ...]
    actions: tuple[Action, ...]


class Policy(Protocol):
    """A player of episodes. Compute in a thread (``asyncio.to_thread``): a blocked loop misses deadlines."""

    async def act(self, conversations: Sequence[Conversation]) -> Sequence[Action]:
        """Returns one action for each conversation, in their order. An exception ends the whole run."""
        ...


@dataclass(frozen=True)
class Reply:
    """An environment's reply to an answer: ``reward`` is this turn's, ``score`` the sum so far."""

    observation: str
    reward: float
    score: float
    done: bool
    success: bool | None = None
    """Known once done; None where the environment does not report it."""


class Play(Protocol):
    """One open episode. ``step`` raises EnvironmentFailure with the cause."""

    @property
    def first(self) -> str:
        """The first observation."""
        ...

    async def step(self, answer: str) -> Reply: ...


class Source(Protocol):
    """A source of episodes: in this process (``LocalSource``) or on a server (``EnvClient``)."""

    @property
    def name(self) -> str: ...

    @property
    def instructions(self) -> str:
        """System message; empty for none."""
        ...

    @property
    def horizon(self) -> int:
        """Turns after which an episode ends in any case."""
        ...

    @property
    def panel_hash(self) -> str:
        """Hash of the held-out task list; empty where the environment reports none."""
        ...

    def open(self, task: TaskRef) -> AbstractAsyncContextManager[Play]:
        """Starts ``task``; leaving the context always closes the episode."""
        ...


@dataclass(frozen=True)
class Turn:
    """One answer, the environment's reply to it, and its reward."""

    action: Action
    observation: str
    reward: float


@dataclass(frozen=True)
class Episode:
    """One attempt at one task.

    ``messages`` ends with the last answer: an observation after the end is in ``turns`` only, since it gets
    no answer. ``reward`` (the score at the end) and ``success`` are None when unscored: ``ended`` is then
    "failed" and ``failure`` names the cause.
    """

    key: str
    task: TaskRef
    attempt: int
    panel_hash: str
    messages: tuple[Message, ...]
    turns: tuple[Turn, ...]
    ended: Ending
    reward: float | None
    success: bool | None
    failure: str | None = None
    """Cause from ``failures.CAUSES``, or, for "stopped", the policy's own word."""
    message: str | None = None

    @property
    def is_scored(self) -> bool:
        return self.reward is not None


async def rollouts(
    source: Source,
    policy: Policy,
    tasks: Sequence[TaskRef],
    *,
    attempts: int = 1,
    horizon: int | None = None,
    concurrency: int = 64,
    max_batch: int | None = None,
    linger_seconds: float | None = 0.25,
    policy_seconds: float = 600.0,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Plays ``attempts`` episodes of each task, in the order of ``tasks`` with the attempts of a task
    together.

    ``horizon`` lowers the turn limit of the environment. ``policy`` is called as soon as one of these is
    true: all running episodes wait for it; ``max_batch`` of them wait (default: ``concurrency``); the first
    has waited ``linger_seconds`` (None: no such limit). ``on_episode`` gets each episode as it ends. Raises
    ConfigError for limits below 1, ContractError when the policy returns a wrong number of actions, and the
    policy's own exceptions.
    """
    _check(attempts=attempts, horizon=horizon, concurrency=concurrency, max_batch=max_batch)
    limit = source.horizon if horizon is None else min(horizon, source.horizon)
    batches = PolicyBatches(policy.act, max_batch or concurrency, linger_seconds, policy_seconds)
    places = asyncio.Semaphore(concurrency)
    episodes: list[Episode | None] = [None] * (len(tasks) * attempts)

    async def play(at: int, task: TaskRef, attempt: int) -> None:
        async with places:
            episode = await _Playing(source, batches, task, attempt, limit).run()
        episodes[at] = episode
        if on_episode is not None:
            on_episode(episode)

    try:
        async with asyncio.TaskGroup() as serving:
            served = serving.create_task(batches.run())
            async with asyncio.TaskGroup() as playing:
                for at, (task, attempt) in enumerate(_attempts(tasks, attempts)):
                    playing.create_task(play(at, task, attempt))
            served.cancel()
    except BaseExceptionGroup as group:
        raise _first(group) from None
    return [episode for episode in episodes if episode is not None]


class _Playing:
    """State of one running episode."""

    def __init__(
        self, source: Source, batches: PolicyBatches, task: TaskRef, attempt: int, limit: int
    ) -> None:
        self.source, self.batches, self.task, self.attempt, self.limit = source, batches, task, attempt, limit
        self.key = f"{task.task_id}-a{attempt}"
        self.messages: list[Message] = []
        self.turns: list[Turn] = []
        self.actions: list[Action] = []
        self.score = 0.0

    async def run(self) -> Episode:
        try:
            async with self.batches, self.source.open(self.task) as play:
                return await self._turns(play)
        except EnvironmentFailure as failure:
            return self._end("failed", failure=failure.cause, message=str(failure))
        except PolicyTimeoutError as error:
            return self._end("failed", failure="policy_timeout", message=str(error))

    async def _turns(self, play: Play) -> Episode:
        if self.source.instructions:
            self.messages.append({"role": "system", "content": self.source.instructions})
        observation = play.first
        while len(self.turns) < self.limit:
            self.messages.append({"role": "user", "content": observation})
            action: Action = await self._ask()
            if action.stopped is not None:
                return self._end("stopped", reward=self.score, success=False, failure=action.stopped)
            self.messages.append({"role": "assistant", "content": action.text})
            self.actions.append(action)
            reply = await play.step(action.text)
            self.turns.append(Turn(action, reply.observation, reply.reward))
            self.score, observation = reply.score, reply.observation
            if reply.done and (reply.success or len(self.turns) < self.limit):
                return self._end("done", reward=self.score, success=bool(reply.success))
        return self._end("horizon", reward=self.score, success=False)

    async def _ask(self) -> Action:
        turn = len(self.turns)
        left = self.limit - turn
        messages, actions = tuple(self.messages), tuple(self.actions)
        conversation = Conversation(self.key, self.task, self.attempt, turn, left, messages, actions)
        return await self.batches.request_action(conversation)

    def _end(
        self,
        ended: Ending,
        *,
        reward: float | None = None,
        success: bool | None = None,
        failure: str | None = None,
        message: str | None = None,
    ) -> Episode:
        messages, turns, panel = tuple(self.messages), tuple(self.turns), self.source.panel_hash
        return Episode(
            self.key,
            self.task,
            self.attempt,
            panel,
            messages,
            turns,
            ended,
            reward,
            success,
            failure,
            message,
        )


def _attempts(tasks: Sequence[TaskRef], attempts: int) -> Iterator[tuple[TaskRef, int]]:
    """Yields tasks with attempt numbers, which continue for a repeated task: no two episodes have one key."""
    seen: Counter[TaskRef] = Counter()
    for task in tasks:
        for _ in range(attempts):
            yield task, seen[task]
            seen[task] += 1


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


def _check(**limits: int | None) -> None:
    for name, value in limits.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}: give 1 or more.")
