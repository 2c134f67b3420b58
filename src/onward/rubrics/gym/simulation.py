"""Simulation of a workflow: time steps in which agents join and leave, the manager acts, and tasks run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from onward.rubrics.gym.actions import (
    Action,
    ActionResult,
    AssignAllPendingTasks,
    Noop,
    RequestEndWorkflow,
)
from onward.rubrics.gym.parts import (
    Agent,
    Constraint,
    Message,
    Part,
    Resource,
    StakeholderProfile,
    Task,
    TaskStatus,
    WorkflowError,
)
from onward.rubrics.gym.perform import perform
from onward.rubrics.gym.workflow import Workflow

Work = Callable[[Task, Agent, Workflow], Mapping[str, bytes]]
"""A worker: task and agent → contents of the task's output files, by name."""
MAX_TIMESTEPS = 100


class ManagerObservation(Part):
    """Facts that a manager sees at a time step."""

    workflow: str
    goal: str
    timestep: int
    max_timesteps: int
    counts: dict[str, int]
    ready: tuple[str, ...]
    unassigned: tuple[str, ...]
    failed: tuple[str, ...]
    agents: tuple[Agent, ...]
    messages: tuple[Message, ...]
    constraints: tuple[Constraint, ...]
    resources: tuple[Resource, ...]
    stakeholder: StakeholderProfile
    hours: float
    money_left: float | None
    last_result: ActionResult | None = None


class Manager(Protocol):
    """Chooses one action per time step."""

    def act(self, observation: ManagerObservation) -> Action: ...


class AutomaticManager:
    """Assigns what is not assigned, and ends a workflow whose tasks are done or cannot go on."""

    def act(self, observation: ManagerObservation) -> Action:
        """Returns the next action."""
        if not observation.counts["pending"] and not observation.counts["running"]:
            return RequestEndWorkflow(reason="every task is finished")
        refused = observation.last_result is not None and observation.last_result.data.get("without")
        return AssignAllPendingTasks() if observation.unassigned and not refused else Noop()


class Run(Part):
    """Record of a simulation."""

    results: tuple[ActionResult, ...]
    timesteps: int
    hours: float
    spent: float
    dead_hours: float
    complete: bool
    stopped: str
    """Reason for the end, as a sentence."""


def observe(workflow: Workflow, max_timesteps: int, last: ActionResult | None = None) -> ManagerObservation:
    """Returns what a manager sees now. Changes nothing."""
    tasks = workflow.leaves()
    pending = [task for task in tasks if task.status is TaskStatus.PENDING]
    return ManagerObservation(
        workflow=workflow.name, goal=workflow.goal, timestep=workflow.timestep, max_timesteps=max_timesteps,
        counts={str(state): sum(task.status is state for task in tasks) for state in TaskStatus},
        ready=tuple(task.id for task in workflow.ready()),
        unassigned=tuple(task.id for task in pending if task.assigned_to is None),
        failed=tuple(task.id for task in tasks if task.status is TaskStatus.FAILED),
        agents=workflow.present_agents(), messages=tuple(workflow.messages[-10:]),
        constraints=workflow.constraints, resources=tuple(workflow.resources.values()),
        stakeholder=workflow.owner, hours=workflow.hours, money_left=workflow.money_left, last_result=last,
    )  # fmt: skip


def simulate(
    workflow: Workflow, work: Work, manager: Manager | None = None, max_timesteps: int = MAX_TIMESTEPS
) -> Run:
    """Runs ``workflow`` until it is complete, ended by the manager, out of money, or out of time steps.

    In a time step each present agent does at most one ready task of its own; the clock advances by the
    longest of these. Raises WorkflowError if the graph is not sound.
    """
    workflow.check()
    manager = manager or AutomaticManager()
    results: list[ActionResult] = []
    stopped = ""
    while not stopped:
        if workflow.timestep >= max_timesteps:
            stopped = f"The {max_timesteps} time steps are used up."
            break
        _release_leavers(workflow)
        last = results[-1] if results else None
        results.append(perform(workflow, manager.act(observe(workflow, max_timesteps, last))))
        stopped = workflow.ended or _run_step(workflow, work)
        workflow.timestep += 1
        if workflow.is_complete:
            stopped = stopped or "Every task is completed."
        elif not stopped and _is_stuck(workflow, results[-1]):
            stopped = "No present agent can do the tasks that are left, and none joins later."
    return Run(
        results=tuple(results), timesteps=workflow.timestep, hours=workflow.hours, spent=workflow.spent,
        dead_hours=workflow.dead_hours, complete=workflow.is_complete, stopped=stopped,
    )  # fmt: skip


def _release_leavers(workflow: Workflow) -> None:
    present = {agent.id for agent in workflow.present_agents()}
    for task in workflow.leaves():
        if task.status is TaskStatus.PENDING and task.assigned_to not in (None, *present):
            workflow.put(task.model_copy(update={"assigned_to": None}))


def _is_stuck(workflow: Workflow, last: ActionResult) -> bool:
    """Returns whether the last assignment left tasks without an agent, and nothing can change that."""
    to_come = any(agent.joins_at > workflow.timestep for agent in workflow.agents.values())
    assigned = any(task.assigned_to and task.status is TaskStatus.PENDING for task in workflow.leaves())
    return bool(last.data.get("without")) and not to_come and not assigned


def _run_step(workflow: Workflow, work: Work) -> str:
    """Runs one task per agent. Returns the reason to stop, or an empty text."""
    busy: set[str] = set()
    longest = 0.0
    for task in workflow.ready():
        if task.assigned_to is None or task.assigned_to in busy:
            continue
        agent = workflow.agent(task.assigned_to)
        hours, cost = actual_effort(workflow, task, agent)
        left = workflow.money_left
        if left is not None and cost > left:
            return (
                f"The budget of {workflow.budget:,.0f} is too small: {task.id} costs {cost:,.0f}, "
                f"and {left:,.0f} are left."
            )
        busy.add(agent.id)
        longest = max(longest, hours)
        _run_task(workflow, task, agent, work, hours, cost)
    workflow.hours += longest
    return ""


def actual_effort(workflow: Workflow, task: Task, agent: Agent) -> tuple[float, float]:
    """Returns hours and cost of ``task``: the estimate times 0.9 to 1.1, by seed, task and agent."""
    digest = hashlib.sha256(f"{workflow.seed}/{workflow.name}/{task.id}/{agent.id}".encode()).digest()
    factor = 0.9 + 0.2 * int.from_bytes(digest[:4], "big") / 2**32
    hours = task.estimated_hours * factor
    return hours, hours * agent.hourly_cost if agent.hourly_cost else task.estimated_cost * factor


def _run_task(workflow: Workflow, task: Task, agent: Agent, work: Work, hours: float, cost: float) -> None:
    times: dict[str, Any] = {
        "ready_at": workflow.ready_at(task.id), "started_at": workflow.hours,
        "completed_at": workflow.hours + hours, "actual_hours": hours, "actual_cost": cost,
    }  # fmt: skip
    workflow.spent += cost
    try:
        made = work(task, agent, workflow) if task.operation else {}
        if set(made) != set(task.outputs):
            raise WorkflowError(
                f"The worker of {task.id!r} wrote {sorted(made)}, and its outputs are "
                f"{sorted(task.outputs)}: return exactly these."
            )
    except WorkflowError as error:
        failed = {"status": TaskStatus.FAILED, "notes": (*task.notes, str(error))}
        workflow.put(task.model_copy(update={**times, **failed}))
        return
    read_later = {name for one in workflow.tasks.values() for name in one.inputs}
    for name, content in made.items():
        role = "intermediary" if name in read_later else "output"
        workflow.resources[name] = workflow.store.put(name, content, role=role, made_by=task.id)
    workflow.put(task.model_copy(update={**times, "status": TaskStatus.COMPLETED}))
