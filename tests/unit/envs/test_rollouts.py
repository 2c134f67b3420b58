"""The driver: order, batches, horizons, unscored failures, and that every episode is closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from onward.envs.failures import EnvironmentFailure
from onward.envs.rollouts import Action, Conversation, Reply, rollouts
from onward.envs.tasks import TaskRef
from onward.errors import ConfigError, ContractError


class Counting:
    """Says 'more' until it was answered as often as the task's index says; then done, reward 1."""

    name, instructions, horizon, panel_hash = "counting", "Count.", 5, "p" * 64

    def __init__(self, fail_at: dict[int, str] | None = None) -> None:
        self.fail_at = fail_at or {}
        self.opened = self.closed = self.most = 0

    @contextlib.asynccontextmanager
    async def open(self, task: TaskRef) -> AsyncIterator[CountingPlay]:
        self.opened += 1
        self.most = max(self.most, self.opened - self.closed)
        try:
            yield CountingPlay(task.index, self.fail_at.get(task.index))
        finally:
            self.closed += 1


class CountingPlay:
    first = "begin"

    def __init__(self, wanted: int, cause: str | None) -> None:
        self.wanted, self.cause, self.given = wanted, cause, 0

    async def step(self, answer: str) -> Reply:
        await asyncio.sleep(0)
        self.given += 1
        if self.cause:
            raise EnvironmentFailure(self.cause, "Broken on purpose.")
        done = self.given == self.wanted
        return Reply("end" if done else "more", float(done), float(done), done, done or None)


class Says:
    """Answers with its turn number; remembers what it was asked."""

    def __init__(self) -> None:
        self.batches: list[list[Conversation]] = []

    async def act(self, conversations: Sequence[Conversation]) -> list[Action]:
        self.batches.append(list(conversations))
        return [Action(f"{c.task.index}.{c.turn}", sampling=(c.key, c.turn)) for c in conversations]


def refs(*indices: int) -> list[TaskRef]:
    return [TaskRef("counting", "train", index) for index in indices]


async def test_episodes_come_in_the_order_of_tasks_and_attempts_whatever_ends_first() -> None:
    found = await rollouts(Counting(), Says(), refs(3, 1, 2), attempts=2)
    assert [(e.task.index, e.attempt, len(e.turns)) for e in found] == [
        (3, 0, 3),
        (3, 1, 3),
        (1, 0, 1),
        (1, 1, 1),
        (2, 0, 2),
        (2, 1, 2),
    ]
    assert all(e.ended == "done" and e.reward == 1.0 and e.success is True for e in found)
    assert {e.panel_hash for e in found} == {"p" * 64}


async def test_a_turn_has_its_own_reward_and_the_episode_the_last_score() -> None:
    class Pays(CountingPlay):
        async def step(self, answer: str) -> Reply:
            reply = await super().step(answer)
            return replace(reply, reward=0.25, score=0.25 * self.given)

    class PayingSource(Counting):
        @contextlib.asynccontextmanager
        async def open(self, task: TaskRef) -> AsyncIterator[CountingPlay]:
            yield Pays(task.index, None)

    done, cut = await rollouts(PayingSource(), Says(), refs(3, 9))
    assert [turn.reward for turn in done.turns] == [0.25, 0.25, 0.25]
    assert (done.reward, cut.reward, cut.success) == (0.75, 1.25, False)


async def test_no_tasks_are_no_episodes_and_no_call() -> None:
    policy = Says()
    assert await rollouts(Counting(), policy, []) == [] and policy.batches == []


async def test_a_task_that_is_named_again_goes_on_counting_so_that_no_two_episodes_have_one_key() -> None:
    found = await rollouts(Counting(), Says(), refs(1, 2, 1), attempts=2)
    assert [e.key for e in found] == [
        "counting-train-0-1-a0",
        "counting-train-0-1-a1",
        "counting-train-0-2-a0",
        "counting-train-0-2-a1",
        "counting-train-0-1-a2",
        "counting-train-0-1-a3",
    ]


async def test_the_conversation_has_every_answer_and_no_observation_after_the_last() -> None:
    policy = Says()
    (episode,) = await rollouts(Counting(), policy, refs(2))
    assert [(m["role"], m["content"]) for m in episode.messages] == [
        ("system", "Count."),
        ("user", "begin"),
        ("assistant", "2.0"),
        ("user", "more"),
        ("assistant", "2.1"),
    ]
    assert [t.observation for t in episode.turns] == ["more", "end"]
    assert [t.reward for t in episode.turns] == [0.0, 1.0]
    assert [t.action.sampling for t in episode.turns] == [
        ("counting-train-0-2-a0", 0),
        ("counting-train-0-2-a0", 1),
    ]
    seen = [c for batch in policy.batches for c in batch]
    assert [(c.turn, c.turns_left, len(c.messages), len(c.actions)) for c in seen] == [
        (0, 5, 2, 0),
        (1, 4, 4, 1),
    ]


async def test_running_episodes_share_every_call_of_the_policy() -> None:
    policy = Says()
    await rollouts(Counting(), policy, refs(3, 1, 2, 3), linger_seconds=None)
    assert [len(batch) for batch in policy.batches] == [4, 3, 2]


async def test_max_batch_cuts_a_call_and_concurrency_bounds_open_episodes() -> None:
    policy, source = Says(), Counting()
    await rollouts(source, policy, refs(*[2] * 10), concurrency=4, max_batch=2)
    assert max(len(batch) for batch in policy.batches) == 2
    assert source.most == 4


async def test_a_slow_environment_holds_the_others_up_only_for_the_linger() -> None:
    release = asyncio.Event()

    class Slow(Counting):
        @contextlib.asynccontextmanager
        async def open(self, task: TaskRef) -> AsyncIterator[CountingPlay]:
            if task.index == 4:
                await release.wait()
            async with super().open(task) as play:
                yield play

    ended: list[int] = []

    def note(episode) -> None:
        ended.append(episode.task.index)
        release.set()

    await rollouts(Slow(), Says(), refs(4, 1), linger_seconds=0.01, on_episode=note)
    assert ended == [1, 4]


async def test_an_environment_failure_is_unscored_and_the_others_go_on() -> None:
    source = Counting(fail_at={2: "step_timeout"})
    broken, whole = await rollouts(source, Says(), refs(2, 1))
    assert (broken.ended, broken.reward, broken.success) == ("failed", None, None)
    assert (broken.failure, broken.message, broken.is_scored) == ("step_timeout", "Broken on purpose.", False)
    assert [m["role"] for m in broken.messages] == ["system", "user", "assistant"]
    assert whole.reward == 1.0
    assert source.opened == source.closed == 2


async def test_the_horizon_ends_an_episode_without_success_and_never_exceeds_the_environments() -> None:
    (short,) = await rollouts(Counting(), Says(), refs(4), horizon=3)
    assert (short.ended, short.reward, short.success, len(short.turns)) == ("horizon", 0.0, False, 3)
    (own,) = await rollouts(Counting(), Says(), refs(9), horizon=100)
    assert (own.ended, len(own.turns)) == ("horizon", 5)


async def test_turns_that_the_environment_itself_counts_out_are_the_horizon_too() -> None:
    class Strict(CountingPlay):
        async def step(self, answer: str) -> Reply:
            reply = await super().step(answer)
            return replace(reply, done=True, success=False) if self.given == 5 else reply

    class StrictSource(Counting):
        @contextlib.asynccontextmanager
        async def open(self, task: TaskRef) -> AsyncIterator[CountingPlay]:
            yield Strict(task.index, None)

    (lost,) = await rollouts(StrictSource(), Says(), refs(9))
    (solved,) = await rollouts(Counting(), Says(), refs(5))
    assert (lost.ended, lost.success) == ("horizon", False)
    assert (solved.ended, solved.success) == ("done", True)


async def test_a_policy_that_cannot_go_on_ends_its_episode_with_its_own_word() -> None:
    class Full(Says):
        async def act(self, conversations: Sequence[Conversation]) -> list[Action]:
            return [Action("", stopped="context_length" if c.turn == 1 else None) for c in conversations]

    (episode,) = await rollouts(Counting(), Full(), refs(3))
    assert (episode.ended, episode.failure, episode.success) == ("stopped", "context_length", False)
    assert len(episode.turns) == 1


async def test_a_policy_that_hangs_leaves_its_episodes_unscored() -> None:
    class Hangs(Says):
        async def act(self, conversations: Sequence[Conversation]) -> list[Action]:
            await asyncio.Event().wait()
            raise AssertionError

    source = Counting()
    (episode,) = await rollouts(source, Hangs(), refs(1), policy_seconds=0.01)
    assert (episode.failure, episode.reward) == ("policy_timeout", None)
    assert source.closed == 1


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), TimeoutError("its own")])
async def test_an_error_of_the_policy_ends_the_run_as_it_is_and_closes_every_episode(
    error: Exception,
) -> None:
    class Breaks(Says):
        async def act(self, conversations: Sequence[Conversation]) -> list[Action]:
            raise error

    source = Counting()
    with pytest.raises(type(error), match=str(error)):
        await rollouts(source, Breaks(), refs(1, 2, 3))
    assert source.opened == source.closed == 3


async def test_seven_actions_for_eight_conversations_are_refused_and_never_padded() -> None:
    class Short(Says):
        async def act(self, conversations: Sequence[Conversation]) -> list[Action]:
            return (await super().act(conversations))[1:]

    with pytest.raises(ContractError, match="7 actions for 8 conversations"):
        await rollouts(Counting(), Short(), refs(*[1] * 8), linger_seconds=None)


async def test_cancelling_the_run_closes_every_episode() -> None:
    source, asked = Counting(), asyncio.Event()

    class Waits(Says):
        async def act(self, conversations: Sequence[Conversation]) -> list[Action]:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    run = asyncio.create_task(rollouts(source, Waits(), refs(1, 2, 3)))
    await asked.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert source.opened == source.closed == 3


@pytest.mark.parametrize("limit", ["attempts", "horizon", "concurrency", "max_batch"])
async def test_a_limit_below_one_is_refused(limit: str) -> None:
    with pytest.raises(ConfigError, match=f"{limit} is 0: give 1 or more"):
        await rollouts(Counting(), Says(), refs(1), **{limit: 0})


def test_a_task_is_named_by_split_seed_and_index() -> None:
    ref = TaskRef("maze", "test", 17, 3)
    assert ref.task_id == "maze-test-3-17"
