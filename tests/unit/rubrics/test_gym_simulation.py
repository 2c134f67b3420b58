"""Simulation: time steps, simulated hours, money, dead time, agents that come and go; worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from onward.rubrics.gym import simulation
from onward.rubrics.gym.actions import Action, AssignAllPendingTasks, Noop, RequestEndWorkflow
from onward.rubrics.gym.parts import Agent, Task, TaskStatus, WorkflowError
from onward.rubrics.gym.simulation import ManagerObservation, actual_effort, observe, simulate
from onward.rubrics.gym.workflow import Workflow


def task(name: str, hours: float, *after: str, role: str = "", **more: Any) -> Task:
    return Task(id=name, name=name, estimated_hours=hours, dependencies=after, role=role, **more)


def workflow(*given: Task, agents: tuple[Agent, ...] = (), **more: Any) -> Workflow:
    agents = agents or (Agent(id="a", name="A", role="x"), Agent(id="b", name="B", role="y"))
    return Workflow(
        name="w",
        goal="g",
        tasks={one.id: one for one in given},
        agents={one.id: one for one in agents},
        **more,
    )


def nothing(task: Task, agent: Agent, workflow: Workflow) -> Mapping[str, bytes]:
    return {}


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks take exactly their estimates."""

    def effort(workflow: Workflow, task: Task, agent: Agent) -> tuple[float, float]:
        return task.estimated_hours, task.estimated_hours * agent.hourly_cost

    monkeypatch.setattr(simulation, "actual_effort", effort)


def test_hours_and_dead_time_by_hand(exact: None) -> None:
    # Step 1: long (5 h) and short (2 h) together, the clock goes to 5. Step 2: after_short was ready at
    # hour 2 and starts at 5: 3 dead hours; after_long has none. The clock goes to 5 + 4.
    made = workflow(
        task("long", 5, role="x"), task("short", 2, role="y"),
        task("after_long", 4, "long", role="x"), task("after_short", 1, "short", role="y"),
    )  # fmt: skip
    run = simulate(made, nothing)
    assert (run.hours, run.timesteps, run.dead_hours, run.complete) == (9.0, 2, 3.0, True)
    assert made.task("after_short").dead_hours == 3.0
    assert made.task("after_long").dead_hours == 0.0
    assert run.stopped == "Every task is completed."


def test_an_agent_does_one_task_at_a_time(exact: None) -> None:
    made = workflow(task("one", 1, role="x"), task("two", 1, role="x"))
    assert simulate(made, nothing).timesteps == 2
    assert made.hours == 2.0


def test_the_budget_stops_the_work_with_a_sentence(exact: None) -> None:
    agents = (Agent(id="a", name="A", role="x", hourly_cost=10),)
    made = workflow(task("one", 3), task("two", 3, "one"), agents=agents, budget=50)
    run = simulate(made, nothing)
    assert run.stopped == "The budget of 50 is too small: two costs 30, and 20 are left."
    assert (run.spent, run.complete, made.money_left) == (30.0, False, 20.0)
    assert made.task("two").status is TaskStatus.PENDING


def test_an_agent_joins_later_and_its_task_waits(exact: None) -> None:
    agents = (Agent(id="a", name="A", role="x"), Agent(id="b", name="B", role="y", joins_at=2))
    made = workflow(task("one", 1, role="x"), task("two", 1, role="y"), agents=agents)
    run = simulate(made, nothing)
    assert run.complete
    assert run.timesteps == 3  # steps 0 and 1 without B, step 2 with


def test_a_leaver_gives_its_tasks_back(exact: None) -> None:
    agents = (
        Agent(id="a", name="A", role="x", leaves_at=1), Agent(id="b", name="B", role="x", joins_at=1),
    )  # fmt: skip
    made = workflow(task("one", 1, role="x"), task("two", 1, "one", role="x"), agents=agents)
    assert simulate(made, nothing).complete
    assert (made.task("one").assigned_to, made.task("two").assigned_to) == ("a", "b")


def test_a_task_that_no_one_can_do_ends_the_run() -> None:
    run = simulate(workflow(task("one", 1, role="pilot")), nothing)
    assert not run.complete
    assert run.stopped == "No present agent can do the tasks that are left, and none joins later."


class Ending:
    def act(self, observation: ManagerObservation) -> Action:
        return AssignAllPendingTasks() if observation.timestep == 0 else RequestEndWorkflow(reason="enough")


class Idle:
    def act(self, observation: ManagerObservation) -> Action:
        return Noop()


def test_the_manager_may_end_and_an_idle_one_runs_out_of_steps() -> None:
    run = simulate(workflow(task("one", 1), task("two", 1, "one")), nothing, Ending())
    assert (run.stopped, run.timesteps, run.complete) == ("enough", 2, False)
    run = simulate(workflow(task("one", 1)), nothing, Idle(), max_timesteps=4)
    assert run.stopped == "The 4 time steps are used up."


def test_a_worker_that_writes_the_wrong_files_fails_the_task() -> None:
    made = workflow(task("one", 1, operation="x", outputs=("a.md",)))
    simulate(made, lambda task, agent, workflow: {"b.md": b"x"})
    assert made.task("one").status is TaskStatus.FAILED
    assert "wrote ['b.md'], and its outputs are ['a.md']" in made.task("one").notes[0]


def test_an_unsound_graph_is_refused_before_any_step() -> None:
    made = workflow(task("one", 1, "two"), task("two", 1, "one"))
    with pytest.raises(WorkflowError, match="circle"):
        simulate(made, nothing)
    assert made.timestep == 0


def test_effort_is_within_a_tenth_and_repeats() -> None:
    made = workflow(task("one", 10))
    agent = Agent(id="a", name="A", role="x", hourly_cost=7)
    hours, cost = actual_effort(made, made.task("one"), agent)
    assert 9 <= hours <= 11
    assert cost == pytest.approx(7 * hours)
    assert actual_effort(made, made.task("one"), agent) == (hours, cost)


def test_the_observation_has_no_preference_and_changes_nothing() -> None:
    made = workflow(task("one", 1), task("two", 1, "one"), budget=9.0)
    before = (dict(made.tasks), made.hours)
    seen = observe(made, 7)
    assert (seen.counts["pending"], seen.ready, seen.unassigned, seen.money_left) == (
        2, ("one",), ("one", "two"), 9.0,
    )  # fmt: skip
    assert (made.tasks, made.hours) == before


def test_a_restart_is_the_state_before_the_first_task(exact: None) -> None:
    made = workflow(task("one", 1, operation="x", outputs=("a.md",)))
    before = dict(made.tasks)
    simulate(made, lambda task, agent, workflow: {"a.md": b"x"})
    assert made.read("a.md") == b"x"
    made.restart()
    assert made.tasks == before
    assert (made.resources, made.hours, made.timestep, made.spent) == ({}, 0.0, 0, 0.0)
