"""Workflow: tasks, files, agents and rules, with simulated time and money."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from onward.rubrics.gym import graph
from onward.rubrics.gym.parts import (
    Agent,
    Constraint,
    Message,
    Resource,
    StakeholderProfile,
    Task,
    TaskStatus,
    WorkflowError,
)
from onward.rubrics.gym.store import ResourceStore

PartT = TypeVar("PartT")


@dataclass
class Workflow:
    """A project of a manager: the only mutable object of the gym. Its parts are frozen models.

    Invariants: reading never changes it; time (``hours``) and money (``spent``) never fall.
    """

    name: str
    goal: str
    title: str = ""
    owner: StakeholderProfile = field(default_factory=lambda: StakeholderProfile(name="Owner", role="owner"))
    seed: int = 42
    budget: float | None = None
    tasks: dict[str, Task] = field(default_factory=dict)
    resources: dict[str, Resource] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    constraints: tuple[Constraint, ...] = ()
    messages: list[Message] = field(default_factory=list)
    store: ResourceStore = field(default_factory=ResourceStore, repr=False)
    hours: float = 0.0
    """Simulated hours since the start."""
    timestep: int = 0
    spent: float = 0.0
    ended: str = ""
    """Reason for which the manager ended it; empty while it goes on."""
    _verdicts: dict[object, bool] = field(default_factory=dict, repr=False)

    def restart(self) -> None:
        """Returns to the state before the first task: outputs, messages, time and money are gone."""
        fresh = {"status": TaskStatus.PENDING, "assigned_to": None, "actual_hours": None, "actual_cost": None,
                 "ready_at": None, "started_at": None, "completed_at": None, "notes": ()}  # fmt: skip
        self.tasks = {name: task.model_copy(update=fresh) for name, task in self.tasks.items()}
        self.resources = {name: one for name, one in self.resources.items() if one.made_by is None}
        self.messages, self.ended = [], ""
        self.hours, self.timestep, self.spent = 0.0, 0, 0.0
        self._verdicts = {}

    def remember(self, what: object, judge: Callable[[], bool]) -> bool:
        """Returns the verdict of ``judge`` on the files as they are now, and asks it once for each state."""
        key = (what, tuple(one.digest for one in self.resources.values()))
        if key not in self._verdicts:
            self._verdicts[key] = judge()
        return self._verdicts[key]

    def check(self) -> None:
        """Checks the task graph and the files. Raises WorkflowError with one sentence."""
        graph.check_graph(self.tasks, [name for name, one in self.resources.items() if one.made_by is None])
        for resource in self.resources.values():
            self.store.get(resource)

    def task(self, task_id: str) -> Task:
        """Returns a task. Raises WorkflowError if there is none of this name."""
        return self._named(self.tasks, task_id, "task")

    def agent(self, agent_id: str) -> Agent:
        """Returns an agent. Raises WorkflowError if there is none of this name."""
        return self._named(self.agents, agent_id, "agent")

    def read(self, name: str) -> bytes:
        """Returns the content of a file. Raises WorkflowError if no task has written it yet."""
        return self.store.get(self._named(self.resources, name, "file"))

    def _named(self, among: dict[str, PartT], name: str, kind: str) -> PartT:
        if name not in among:
            raise WorkflowError(
                f"The workflow {self.name!r} has no {kind} {name!r}{graph.suggestion(name, among)}."
            )
        return among[name]

    def put(self, task: Task) -> None:
        """Stores a new version of ``task``."""
        self.tasks[task.id] = task

    def leaves(self) -> tuple[Task, ...]:
        """Returns the atomic tasks: those that are worked on."""
        return tuple(self.tasks[leaf] for leaf in graph.leaves(self.tasks))

    def status_of(self, task_id: str) -> TaskStatus:
        """Returns the state of a task; that of a composite task follows from its leaves."""
        states = {self.tasks[leaf].status for leaf in graph.leaves_of(self.tasks, self.task(task_id).id)}
        if len(states) == 1:
            return states.pop()
        return TaskStatus.FAILED if TaskStatus.FAILED in states else TaskStatus.RUNNING

    def ready(self) -> tuple[Task, ...]:
        """Returns the atomic tasks that may start now. Changes nothing."""
        before = graph.predecessors(self.tasks)
        done = {task.id for task in self.leaves() if task.status is TaskStatus.COMPLETED}
        return tuple(
            task for task in self.leaves() if task.status is TaskStatus.PENDING and before[task.id] <= done
        )

    def ready_at(self, task_id: str) -> float:
        """Returns the simulated hour at which the last task before ``task_id`` was completed."""
        before = (self.tasks[one].completed_at for one in graph.predecessors(self.tasks)[task_id])
        return max((hour for hour in before if hour is not None), default=0.0)

    def present_agents(self) -> tuple[Agent, ...]:
        """Returns the agents that may work at this time step."""
        return tuple(agent for agent in self.agents.values() if agent.is_present(self.timestep))

    @property
    def is_complete(self) -> bool:
        """True if every atomic task is completed; False for a workflow without tasks."""
        states = [task.status for task in self.leaves()]
        return bool(states) and all(state is TaskStatus.COMPLETED for state in states)

    @property
    def estimated_cost(self) -> float:
        """Sum of the estimates of the atomic tasks: no task counts twice."""
        return sum(task.estimated_cost for task in self.leaves())

    @property
    def money_left(self) -> float | None:
        """Budget that is not spent; None for a workflow without a budget."""
        return None if self.budget is None else self.budget - self.spent

    @property
    def dead_hours(self) -> float:
        """Simulated hours for which tasks were ready and no one worked on them."""
        return sum(task.dead_hours for task in self.leaves())

    def outputs(self) -> dict[str, Resource]:
        """Returns the files that tasks wrote."""
        return {name: one for name, one in self.resources.items() if one.made_by is not None}

    def add_inputs(self, resources: Iterable[Resource]) -> None:
        """Adds input files."""
        self.resources.update((one.name, one) for one in resources)
