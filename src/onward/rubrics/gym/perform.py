"""Execution of a manager's action: one function per action, over the workflow that it changes or reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from onward.rubrics.gym import actions as act
from onward.rubrics.gym.actions import Action, ActionResult, Kind
from onward.rubrics.gym.graph import check_graph
from onward.rubrics.gym.parts import Agent, Message, Task, TaskStatus, WorkflowError
from onward.rubrics.gym.workflow import Workflow

Outcome = tuple[Kind, str, dict[str, Any]]
MANAGER = "manager"


def perform(workflow: Workflow, action: Action) -> ActionResult:
    """Applies ``action``. One that is not possible changes nothing; its result says why."""
    before = dict(workflow.tasks)
    try:
        kind, summary, data = _PERFORMERS[action.action](workflow, action)
        check_graph(workflow.tasks, [n for n, one in workflow.resources.items() if one.made_by is None])
    except WorkflowError as error:
        workflow.tasks = before
        kind, summary, data = "failed_action", str(error), {}
    return ActionResult(
        action_type=action.action, kind=kind, summary=summary, data=data,
        timestep=workflow.timestep, success=kind != "failed_action",
    )  # fmt: skip


def _pending(workflow: Workflow, task_id: str) -> Task:
    task = workflow.task(task_id)
    if workflow.status_of(task_id) is not TaskStatus.PENDING:
        raise WorkflowError(
            f"The task {task_id!r} is {workflow.status_of(task_id)}: only a pending one changes."
        )
    return task


def _set(workflow: Workflow, task: Task, **changes: Any) -> None:
    workflow.put(Task.model_validate({**task.model_dump(), **changes}))


def _assign(workflow: Workflow, task_id: str, agent_id: str) -> None:
    task, agent = _pending(workflow, task_id), workflow.agent(agent_id)
    if not agent.is_present(workflow.timestep):
        raise WorkflowError(
            f"The agent {agent_id!r} is away at time step {workflow.timestep}: choose another."
        )
    if task.role and task.role != agent.role:
        raise WorkflowError(
            f"The task {task_id!r} needs the role {task.role}, and {agent_id!r} has {agent.role}: "
            "choose another."
        )
    _set(workflow, task, assigned_to=agent_id)


def assign_task(workflow: Workflow, action: act.AssignTask) -> Outcome:
    _assign(workflow, action.task_id, action.agent_id)
    return "mutation", f"{action.task_id} is assigned to {action.agent_id}.", {}


def assign_tasks_to_agents(workflow: Workflow, action: act.AssignTasksToAgents) -> Outcome:
    for task_id, agent_id in action.assignments.items():
        _assign(workflow, task_id, agent_id)
    return "mutation", f"{len(action.assignments)} tasks are assigned.", {"assigned": action.assignments}


def assign_all_pending_tasks(workflow: Workflow, action: act.AssignAllPendingTasks) -> Outcome:
    load = dict.fromkeys(workflow.agents, 0.0)
    open_tasks = [task for task in workflow.leaves() if task.status is TaskStatus.PENDING]
    for task in open_tasks:
        if task.assigned_to in load:
            load[task.assigned_to] += task.estimated_hours
    assigned: dict[str, str] = {}
    without: list[str] = []
    for task in open_tasks:
        if task.assigned_to is not None:
            continue
        able = [one for one in workflow.present_agents() if task.role in ("", one.role)]
        if not able:
            without.append(task.id)
            continue
        agent: Agent = min(able, key=lambda one: (load[one.id], one.id))
        load[agent.id] += task.estimated_hours
        _set(workflow, task, assigned_to=agent.id)
        assigned[task.id] = agent.id
    rest = f" No present agent can do {', '.join(without)}." if without else ""
    return (
        "mutation",
        f"{len(assigned)} tasks are assigned.{rest}",
        {"assigned": assigned, "without": without},
    )


def create_task(workflow: Workflow, action: act.CreateTask) -> Outcome:
    if action.task_id in workflow.tasks:
        raise WorkflowError(f"The workflow has a task {action.task_id!r} already: choose another name.")
    workflow.put(Task(
        id=action.task_id, name=action.name, description=action.description, role=action.role,
        estimated_hours=action.estimated_hours, estimated_cost=action.estimated_cost,
        dependencies=action.dependencies,
    ))  # fmt: skip
    return "mutation", f"The task {action.task_id} is added.", {"task_id": action.task_id}


def remove_task(workflow: Workflow, action: act.RemoveTask) -> Outcome:
    task = _pending(workflow, action.task_id)
    needed_by = [
        one.id for one in workflow.tasks.values() if task.id in one.dependencies or one.parent == task.id
    ]
    if needed_by:
        raise WorkflowError(f"The task {task.id!r} is needed by {', '.join(needed_by)}: remove those first.")
    del workflow.tasks[task.id]
    return "mutation", f"The task {task.id} is removed.", {}


def refine_task(workflow: Workflow, action: act.RefineTask) -> Outcome:
    changes = action.model_dump(exclude={"action", "task_id"}, exclude_none=True)
    _set(workflow, _pending(workflow, action.task_id), **changes)
    return "mutation", f"The task {action.task_id} is changed: {', '.join(changes) or 'nothing'}.", changes


def decompose_task(workflow: Workflow, action: act.DecomposeTask) -> Outcome:
    task = _pending(workflow, action.task_id)
    if workflow.status_of(task.id) is not TaskStatus.PENDING or any(
        one.parent == task.id for one in workflow.tasks.values()
    ):
        raise WorkflowError(f"The task {task.id!r} has steps already: decompose one of these.")
    count = len(action.steps)
    names = [f"{task.id}.{number}" for number in range(1, count + 1)]
    for number, (name, words) in enumerate(zip(names, action.steps, strict=True)):
        last = number == count - 1
        workflow.put(Task(
            id=name, name=words, role=task.role, parent=task.id, assigned_to=task.assigned_to,
            operation=task.operation if last else "", arguments=task.arguments if last else {},
            inputs=task.inputs if last else (), outputs=task.outputs if last else (),
            dependencies=(names[number - 1],) if number else (),
            estimated_hours=task.estimated_hours / count, estimated_cost=task.estimated_cost / count,
        ))  # fmt: skip
    _set(workflow, task, operation="", arguments={}, inputs=(), outputs=(), assigned_to=None)
    return "mutation", f"The task {task.id} has {count} steps.", {"steps": names}


def add_task_dependency(workflow: Workflow, action: act.AddTaskDependency) -> Outcome:
    task = _pending(workflow, action.task_id)
    if action.depends_on in task.dependencies:
        raise WorkflowError(f"The task {task.id!r} depends on {action.depends_on!r} already.")
    _set(workflow, task, dependencies=(*task.dependencies, action.depends_on))
    return "mutation", f"{task.id} waits for {action.depends_on}.", {}


def remove_task_dependency(workflow: Workflow, action: act.RemoveTaskDependency) -> Outcome:
    task = _pending(workflow, action.task_id)
    if action.depends_on not in task.dependencies:
        raise WorkflowError(
            f"The task {task.id!r} does not depend on {action.depends_on!r}: nothing to remove."
        )
    _set(workflow, task, dependencies=tuple(one for one in task.dependencies if one != action.depends_on))
    return "mutation", f"{task.id} no longer waits for {action.depends_on}.", {}


def send_message(workflow: Workflow, action: act.SendMessage) -> Outcome:
    if action.receiver != workflow.owner.name:
        workflow.agent(action.receiver)
    workflow.messages.append(
        Message(sender=MANAGER, receiver=action.receiver, text=action.text, timestep=workflow.timestep)
    )
    return "message", f"A message is sent to {action.receiver}.", {}


def get_workflow_status(workflow: Workflow, action: act.GetWorkflowStatus) -> Outcome:
    counts = {str(state): 0 for state in TaskStatus}
    for task in workflow.leaves():
        counts[task.status] += 1
    data = {"counts": counts, "hours": workflow.hours, "spent": workflow.spent, "left": workflow.money_left}
    return "info", ", ".join(f"{count} {state}" for state, count in counts.items() if count), data


def get_available_agents(workflow: Workflow, action: act.GetAvailableAgents) -> Outcome:
    found = [agent.model_dump(mode="json") for agent in workflow.present_agents()]
    return "info", f"{len(found)} agents are present.", {"agents": found}


def get_pending_tasks(workflow: Workflow, action: act.GetPendingTasks) -> Outcome:
    pending = [task.id for task in workflow.leaves() if task.status is TaskStatus.PENDING]
    ready = [task.id for task in workflow.ready()]
    return (
        "info",
        f"{len(pending)} tasks are pending, {len(ready)} ready.",
        {"pending": pending, "ready": ready},
    )


def inspect_task(workflow: Workflow, action: act.InspectTask) -> Outcome:
    task = workflow.task(action.task_id)
    files = {name: workflow.resources[name].model_dump(mode="json") for name in (*task.inputs, *task.outputs)
             if name in workflow.resources}  # fmt: skip
    data = {"task": task.model_dump(mode="json"), "files": files}
    return "inspection", f"{task.id} is {workflow.status_of(task.id)}.", data


def request_end_workflow(workflow: Workflow, action: act.RequestEndWorkflow) -> Outcome:
    workflow.ended = action.reason
    return "mutation", f"The workflow ends: {action.reason}", {}


def noop(workflow: Workflow, action: act.Noop) -> Outcome:
    return "noop", "Nothing is changed.", {}


def _of_the_first_phase(workflow: Workflow, action: Action) -> Outcome:
    raise WorkflowError(
        f"The action {action.action} belongs to the first phase: run it in InitialRubricGenerationPhase."
    )


_PERFORMERS = cast(
    "dict[str, Callable[[Workflow, Any], Outcome]]",
    {
        one.__name__: one
        for one in (
            assign_task, assign_all_pending_tasks, assign_tasks_to_agents, create_task, remove_task,
            refine_task, decompose_task, add_task_dependency, remove_task_dependency, send_message,
            get_workflow_status,
            get_available_agents, get_pending_tasks, inspect_task, request_end_workflow, noop,
        )
    }
    | dict.fromkeys(("ask_clarification_questions", "generate_preference_rubric"), _of_the_first_phase),
)  # fmt: skip
