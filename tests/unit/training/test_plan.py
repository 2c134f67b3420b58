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


def test_held_out_tasks_of_a_server_come_from_all_of_its_range() -> None:
    """TextCraft sorts its goals by depth: 125, 291, 117 and 11 of depths 1 to 4."""
    ends = [125, 416, 533, 544]
    plan = EnvironmentPlan(place="http://x", held_out=50)
    train, held_out = plans.panels(plan, cast(Any, Silent(544)))
    counts = [sum(task.index < end for task in held_out) for end in ends]
    assert counts[0] in (11, 12) and counts[1] in (38, 39) and counts[2] in (48, 49) and counts[3] == 50
    assert sorted(task.index for task in (*train, *held_out)) == list(range(544))
    again = EnvironmentPlan(place="http://x", held_out=50, panel_seed=7)
    assert plans.panels(again, cast(Any, Silent(544)))[1] == held_out


def test_a_server_of_unknown_size_has_200_tasks_or_as_many_as_were_asked_for() -> None:
    def sizes(**asked: Any) -> tuple[int, int]:
        train, held_out = plans.panels(EnvironmentPlan(place="http://x", **asked), cast(Any, Silent()))
        return len(train), len(held_out)

    assert sizes() == (150, 50)
    assert sizes(tasks=8, held_out=3) == (5, 3)
    assert sizes(tasks=8, held_out=0) == (8, 0)
    with pytest.raises(ConfigError, match="leave none to train on"):
        sizes(tasks=8, held_out=8)


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
