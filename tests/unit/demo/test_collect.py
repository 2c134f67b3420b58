"""Collecting the trajectories of a job: which tasks run, and an end where none gets a reward."""

from types import SimpleNamespace
from typing import Any

import pytest

from onward.demo import run
from onward.demo.fleet import Tally
from onward.errors import OnwardError


class Agents:
    """Agents whose tasks end at once; every task gets a reward while ``rewards`` lasts."""

    def __init__(self, rewards: int) -> None:
        self.rewards, self.asked, self.idle, self.tally = rewards, [], True, Tally()

    async def run_tasks(self, count: int) -> None:
        self.asked.append(count)

    def reset(self) -> None:
        pass

    def refuse_if_ended(self) -> None:
        pass

    @property
    def rewarded(self) -> int:
        return min(self.rewards, sum(self.asked))


class Jobs:
    def __init__(self, agents: Agents, threshold: int) -> None:
        self.agents, self.threshold = agents, threshold

    async def all(self) -> list[Any]:
        due = self.agents.rewarded >= self.threshold
        return [(SimpleNamespace(job_id="new"), 1)] if due else []


@pytest.fixture
def collect(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(run, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(run, "REWARD_SECONDS", 0.005)

    async def start(agents: Agents, before: int = 0) -> Any:
        async def counted(*_: Any) -> int:
            return before + agents.rewarded

        monkeypatch.setattr(run, "rewarded_since_snapshot", counted)
        demo = object.__new__(run.Demonstration)
        demo.agents, demo.table = agents, Jobs(agents, 96 - before)  # type: ignore[assignment]
        demo.settings = SimpleNamespace(training=SimpleNamespace(threshold=96))  # type: ignore[assignment]
        demo.ctx = SimpleNamespace(bus=None, warehouse=None)  # type: ignore[assignment]
        demo.stages = run.Stages(run.Console(quiet=True))
        with demo.stages:
            return await demo._collect(1, set())

    return start


async def test_exactly_the_tasks_of_a_job_are_started(collect: Any) -> None:
    agents = Agents(96)
    assert (await collect(agents)).job_id == "new"
    assert agents.asked == [96]


async def test_what_the_release_before_gave_counts(collect: Any) -> None:
    agents = Agents(96)
    await collect(agents, before=40)
    assert agents.asked == [56]


async def test_a_task_without_a_reward_is_replaced(collect: Any) -> None:
    agents = Agents(90)

    async def more(count: int) -> None:
        agents.asked.append(count)
        agents.rewards += 3 * (len(agents.asked) > 1)

    agents.run_tasks = more  # type: ignore[method-assign]
    await collect(agents)
    assert agents.asked == [96, 6, 3]


async def test_rewards_that_never_come_are_an_error_with_numbers(collect: Any) -> None:
    agents = Agents(5)
    with pytest.raises(OnwardError, match=r"get no reward: 5 of 96 have one\. See the logs"):
        await collect(agents)
    assert agents.asked == [96, 91, 91, 91]
