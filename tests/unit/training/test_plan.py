"""What an environment job plays: every task once, none that is held out, the same again after a stop."""

from typing import Any, cast

import pytest

from onward.envs import registry
from onward.envs.environment import LocalSource
from onward.envs.tasks import TaskRef
from onward.errors import ConfigError, TrainingError
from onward.training.spec import environment_plan as plans
from onward.training.spec.environment_plan import EnvironmentPlan


def test_every_task_comes_once_before_any_comes_again() -> None:
    tasks = [TaskRef("maze", "train", n) for n in range(5)]
    played = [task for step in range(5) for task in plans.tasks_of(step, tasks, 3, seed=1)]
    assert [sorted(played[at : at + 5]) for at in (0, 5, 10)] == [tasks] * 3
    assert plans.tasks_of(3, tasks, 3, seed=1) == played[9:12]
    assert plans.tasks_of(0, tasks, 3, seed=2) != played[:3]


def test_held_out_tasks_are_never_trained_on() -> None:
    source = LocalSource(registry.find("maze"))
    train, held_out = plans.panels(EnvironmentPlan(place="maze", held_out=10, tasks=20), source)
    assert len(train) == 20 and {task.split for task in train} == {"train"}
    assert held_out == source.panel("test", n=10)
    with pytest.raises(ConfigError, match="is the held-out one"):
        plans.panels(EnvironmentPlan(place="maze", split="test"), source)


class Silent:
    """A server that does not tell its tasks; ``known`` of them are known of its kind."""

    name, meta = "textcraft", None

    def __init__(self, known: int | None = None) -> None:
        self.known = known

    def panel(self, split: str | None, seed: int, n: int | None = None) -> list[TaskRef]:
        n = self.known if n is None else n
        if n is None:
            raise ConfigError("give n")
        return [TaskRef("textcraft", "all", index) for index in range(n)]


RESERVED = [1, 4, 6, 7, 14, 53, 59, 60, 62, 65, 76, 78, 79, 88, 99]
"""The reserved tasks of TextCraft up to 99: SHA-256 of textcraft/N, its first 8 bytes divisible by 5."""


def test_held_out_tasks_of_a_server_come_from_all_of_its_range() -> None:
    """TextCraft sorts its goals by depth: 125, 291, 117 and 11 of depths 1 to 4; 20, 58, 17 and 4 of them are
    reserved."""
    ends = [125, 416, 533, 544]
    plan = EnvironmentPlan(place="http://x", held_out=50)
    train, held_out = plans.panels(plan, cast(Any, Silent(544)))
    counts = [sum(task.index < end for task in held_out) for end in ends]
    assert counts[0] in (10, 11) and counts[1] in (39, 40) and counts[2] in (47, 48, 49) and counts[3] == 50
    assert len(train) == 544 - 99 and {task.index for task in train}.isdisjoint(RESERVED)
    assert {task.index for task in held_out if task.index < 100} <= set(RESERVED)
    again = EnvironmentPlan(place="http://x", held_out=50, panel_seed=7)
    assert plans.panels(again, cast(Any, Silent(544)))[1] == held_out
    assert plans.panels(EnvironmentPlan(place="http://x"), cast(Any, Silent(544)))[1] == held_out


def test_no_option_lets_a_run_train_on_what_another_run_holds_out() -> None:
    options: list[dict[str, Any]] = [
        {}, {"held_out": 0}, {"held_out": 24}, {"held_out": 99}, {"tasks": 100}, {"panel_seed": 3},
        {"tasks": 543},
    ]  # fmt: skip
    found = [
        plans.panels(EnvironmentPlan(place="http://x", **one), cast(Any, Silent(544))) for one in options
    ]
    trained = {task.index for train, _ in found for task in train}
    tried = {task.index for _, held_out in found for task in held_out}
    assert len(tried) == 99 and trained.isdisjoint(tried)


def test_a_server_of_unknown_size_has_200_tasks_or_as_many_as_were_asked_for() -> None:
    def sizes(**asked: Any) -> tuple[int, int]:
        train, held_out = plans.panels(EnvironmentPlan(place="http://x", **asked), cast(Any, Silent()))
        return len(train), len(held_out)

    assert sizes() == (168, 32)
    assert sizes(tasks=8, held_out=3) == (4, 3)
    assert sizes(tasks=8, held_out=0) == (4, 0)
    with pytest.raises(ConfigError, match="5 held-out tasks were asked for, and 4 of the 8 tasks"):
        sizes(tasks=8, held_out=5)
    alone = plans.panels(EnvironmentPlan(place="http://x", tasks=1), cast(Any, Silent()))
    assert [task.index for task in alone[0]] == [0] and alone[1] == []


def test_a_server_with_reserved_tasks_alone_is_refused() -> None:
    class Reserved(Silent):
        def panel(self, split: str | None, seed: int, n: int | None = None) -> list[TaskRef]:
            return [TaskRef("textcraft", "all", index) for index in RESERVED]

    with pytest.raises(
        ConfigError, match="15 tasks, 15 of them reserved for evaluation, leave none to train"
    ):
        plans.panels(EnvironmentPlan(place="http://x", held_out=1), cast(Any, Reserved()))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "names no environment, or two"),
        ({"name": "maze", "url": "http://x"}, "names no environment, or two"),
        ({"name": "maze", "episodes": 0}, "dataset.environment.episodes is wrong"),
        ({"name": "maze", "colour": 1}, "colour is wrong"),
        ({"name": "maze", "horizon": "9,3"}, "rising numbers"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_with_what_it_may_have(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(TrainingError, match=words) as caught:
        plans.read(given, max_tokens=8)
    assert caught.value.code == "DATA"


def test_groups_of_one_teach_group_methods_nothing() -> None:
    alone = EnvironmentPlan(place="maze", group_size=1)
    plans.check(alone, "reinforce", grouped=False)
    with pytest.raises(ConfigError, match="or use reinforce or ppo"):
        plans.check(alone, "rloo", grouped=True)
    with pytest.raises(ConfigError, match="cannot be split into groups"):
        plans.check(EnvironmentPlan(place="maze", episodes=10, group_size=4), "rloo", grouped=True)
