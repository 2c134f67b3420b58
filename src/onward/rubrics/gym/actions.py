"""Actions of a manager: each is a typed model with a name; ``perform`` applies one to a workflow.

An action that is not possible changes nothing and gives a result of kind ``failed_action`` with the reason:
a manager that errs goes on. Questions and rubrics belong to the first phase (``phases``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from onward.rubrics.gym.clarification import MAX_QUESTIONS, Question
from onward.rubrics.gym.graph import suggestion
from onward.rubrics.gym.parts import Part, WorkflowError


class AssignTask(Part):
    """Assigns a pending task to an agent."""

    action: Literal["assign_task"] = "assign_task"
    task_id: str
    agent_id: str


class AssignAllPendingTasks(Part):
    """Assigns each unassigned task to a present agent of its role, the one with the fewest hours of work."""

    action: Literal["assign_all_pending_tasks"] = "assign_all_pending_tasks"


class AssignTasksToAgents(Part):
    """Assigns several tasks at once: task → agent. All or none."""

    action: Literal["assign_tasks_to_agents"] = "assign_tasks_to_agents"
    assignments: dict[str, str] = Field(min_length=1)


class CreateTask(Part):
    """Adds a task without files, such as a meeting or a review."""

    action: Literal["create_task"] = "create_task"
    task_id: str = Field(min_length=1)
    name: str
    description: str = ""
    role: str = ""
    estimated_hours: float = Field(default=1.0, gt=0)
    estimated_cost: float = Field(default=0.0, ge=0)
    dependencies: tuple[str, ...] = ()


class RemoveTask(Part):
    """Removes a task that is not started and that no other task needs."""

    action: Literal["remove_task"] = "remove_task"
    task_id: str


class RefineTask(Part):
    """Changes the words or estimates of a task that is not started. What is None stays."""

    action: Literal["refine_task"] = "refine_task"
    task_id: str
    name: str | None = None
    description: str | None = None
    estimated_hours: float | None = Field(default=None, gt=0)
    estimated_cost: float | None = Field(default=None, ge=0)


class DecomposeTask(Part):
    """Splits a task into steps that follow each other; the last step writes its files."""

    action: Literal["decompose_task"] = "decompose_task"
    task_id: str
    steps: tuple[str, ...] = Field(min_length=2)


class AddTaskDependency(Part):
    """Makes a task wait for another one."""

    action: Literal["add_task_dependency"] = "add_task_dependency"
    task_id: str
    depends_on: str


class RemoveTaskDependency(Part):
    """Removes a dependency; refused if the task reads a file of the other one."""

    action: Literal["remove_task_dependency"] = "remove_task_dependency"
    task_id: str
    depends_on: str


class SendMessage(Part):
    """Sends a message to an agent or to the stakeholder."""

    action: Literal["send_message"] = "send_message"
    receiver: str
    text: str = Field(min_length=1)


class GetWorkflowStatus(Part):
    """Reports counts, money and time."""

    action: Literal["get_workflow_status"] = "get_workflow_status"


class GetAvailableAgents(Part):
    """Lists the agents that are present."""

    action: Literal["get_available_agents"] = "get_available_agents"


class GetPendingTasks(Part):
    """Lists the tasks that are not started, and which of them are ready."""

    action: Literal["get_pending_tasks"] = "get_pending_tasks"


class InspectTask(Part):
    """Shows a task with its files."""

    action: Literal["inspect_task"] = "inspect_task"
    task_id: str


class RequestEndWorkflow(Part):
    """Ends the workflow, with a reason."""

    action: Literal["request_end_workflow"] = "request_end_workflow"
    reason: str = Field(min_length=1)


class Noop(Part):
    """Does nothing in this time step."""

    action: Literal["noop"] = "noop"


class AskClarificationQuestions(Part):
    """Asks the stakeholder, in the first phase. A single ``question`` text is read as one topic."""

    action: Literal["ask_clarification_questions"] = "ask_clarification_questions"
    questions: tuple[Question, ...] = Field(min_length=1, max_length=MAX_QUESTIONS)

    @model_validator(mode="before")
    @classmethod
    def _one_question(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("question"), str) and "questions" not in data:
            rest = {key: value for key, value in data.items() if key != "question"}
            return {**rest, "questions": [{"topic": data["question"]}]}
        return data


class GeneratePreferenceRubric(Part):
    """Hands the rubric for a preference of the stakeholder over, in the first phase."""

    action: Literal["generate_preference_rubric"] = "generate_preference_rubric"
    preference_name: str = "overall"
    rubric: Any = None
    """Rubric that the manager wrote: a ``WorkflowRubric``, or JSON of one."""


Action = Annotated[
    AssignTask | AssignAllPendingTasks | AssignTasksToAgents | CreateTask | RemoveTask | RefineTask
    | DecomposeTask | AddTaskDependency | RemoveTaskDependency | SendMessage | GetWorkflowStatus
    | GetAvailableAgents | GetPendingTasks | InspectTask | RequestEndWorkflow | Noop
    | AskClarificationQuestions | GeneratePreferenceRubric,
    Field(discriminator="action"),
]  # fmt: skip
_ADAPTER: TypeAdapter[Action] = TypeAdapter(Action)
ACTIONS: tuple[str, ...] = (
    "assign_task", "assign_all_pending_tasks", "assign_tasks_to_agents", "create_task", "remove_task",
    "refine_task", "decompose_task", "add_task_dependency", "remove_task_dependency", "send_message",
    "get_workflow_status", "get_available_agents", "get_pending_tasks", "inspect_task",
    "request_end_workflow", "noop", "ask_clarification_questions", "generate_preference_rubric",
)  # fmt: skip
"""Names of the actions, as a model writes them."""

Kind = Literal["mutation", "info", "noop", "message", "inspection", "failed_action"]


class ActionResult(Part):
    """Outcome of an action. ``data`` is what an information action found."""

    action_type: str
    kind: Kind
    summary: str
    data: dict[str, Any] = Field(default_factory=dict)
    timestep: int = 0
    success: bool = True


def parse_action(data: dict[str, Any]) -> Action:
    """Reads an action from a name and arguments, as a model writes it: ``{"action": "noop"}``.

    Raises WorkflowError with one sentence for an unknown name or a wrong argument.
    """
    name = data.get("action")
    if name not in ACTIONS:
        raise WorkflowError(
            f"The manager has no action {name!r}{suggestion(str(name), ACTIONS)}: "
            f"use one of {', '.join(ACTIONS)}."
        )
    try:
        return _ADAPTER.validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "its arguments"
        raise WorkflowError(
            f"The action {name} has a wrong argument ({where}: {first['msg']}): give it as its schema says."
        ) from None
