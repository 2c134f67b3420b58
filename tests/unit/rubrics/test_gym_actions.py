"""Manager's actions by name: typed arguments, results, and no change where one is not possible."""

from __future__ import annotations

from typing import Any

import pytest

from onward.rubrics.gym.actions import ACTIONS, AskClarificationQuestions, parse_action
from onward.rubrics.gym.loading import load_workflow
from onward.rubrics.gym.parts import WorkflowError
from onward.rubrics.gym.perform import perform
from onward.rubrics.gym.workflow import Workflow

NAMES = {
    "assign_task", "assign_all_pending_tasks", "assign_tasks_to_agents", "create_task", "remove_task",
    "refine_task", "decompose_task", "add_task_dependency", "remove_task_dependency", "send_message",
    "get_workflow_status", "get_available_agents", "get_pending_tasks", "inspect_task",
    "request_end_workflow", "noop", "ask_clarification_questions", "generate_preference_rubric",
}  # fmt: skip


@pytest.fixture
def workflow() -> Workflow:
    return load_workflow("marketing_campaign")


def do(workflow: Workflow, name: str, /, **arguments: Any) -> Any:
    return perform(workflow, parse_action({"action": name, **arguments}))


def test_every_action_of_the_gym_is_there() -> None:
    assert set(ACTIONS) == NAMES


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        ("assign_task", {"task_id": "cost", "agent_id": "finn"}, "mutation"),
        ("assign_all_pending_tasks", {}, "mutation"),
        ("assign_tasks_to_agents", {"assignments": {"cost": "finn", "plan": "eva"}}, "mutation"),
        ("create_task", {"task_id": "chat", "name": "Chat", "dependencies": ["cost"]}, "mutation"),
        ("remove_task", {"task_id": "brief"}, "mutation"),
        ("refine_task", {"task_id": "cost", "estimated_hours": 3}, "mutation"),
        ("decompose_task", {"task_id": "brief", "steps": ["Draft", "Final"]}, "mutation"),
        ("add_task_dependency", {"task_id": "plan", "depends_on": "buyers"}, "mutation"),
        ("send_message", {"receiver": "eva", "text": "Hello"}, "message"),
        ("send_message", {"receiver": "Rosa Kling", "text": "Hello"}, "message"),
        ("get_workflow_status", {}, "info"),
        ("get_available_agents", {}, "info"),
        ("get_pending_tasks", {}, "info"),
        ("inspect_task", {"task_id": "cost"}, "inspection"),
        ("request_end_workflow", {"reason": "done"}, "mutation"),
        ("noop", {}, "noop"),
    ],
)
def test_an_action_succeeds(workflow: Workflow, name: str, arguments: dict[str, Any], kind: str) -> None:
    result = do(workflow, name, **arguments)
    assert (result.kind, result.success, result.action_type) == (kind, True, name)
    workflow.check()


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("assign_task", {"task_id": "costs", "agent_id": "finn"}, "did you mean 'cost'"),
        (
            "assign_task",
            {"task_id": "cost", "agent_id": "eva"},
            "needs the role analyst, and 'eva' has marketer",
        ),
        (
            "assign_tasks_to_agents",
            {"assignments": {"cost": "finn", "plan": "finn"}},
            "needs the role marketer",
        ),
        ("create_task", {"task_id": "cost", "name": "x"}, "has a task 'cost' already"),
        ("create_task", {"task_id": "x", "name": "x", "dependencies": ["y"]}, "depends on 'y'"),
        ("remove_task", {"task_id": "cost"}, "is needed by expensive"),
        ("add_task_dependency", {"task_id": "cost", "depends_on": "brief"}, "circle"),
        ("remove_task_dependency", {"task_id": "brief", "depends_on": "plan"}, "does not wait for the task"),
        ("remove_task_dependency", {"task_id": "cost", "depends_on": "plan"}, "does not depend on"),
        ("send_message", {"receiver": "zoe", "text": "x"}, "no agent 'zoe'"),
        ("inspect_task", {"task_id": "zzz"}, "no task 'zzz'"),
        ("ask_clarification_questions", {"question": "accuracy"}, "belongs to the first phase"),
        ("generate_preference_rubric", {}, "belongs to the first phase"),
    ],
)
def test_an_impossible_action_changes_nothing(
    workflow: Workflow, name: str, arguments: dict[str, Any], reason: str
) -> None:
    before, messages = dict(workflow.tasks), list(workflow.messages)
    result = do(workflow, name, **arguments)
    assert (result.kind, result.success) == ("failed_action", False)
    assert reason in result.summary
    assert (workflow.tasks, workflow.messages) == (before, messages)


def test_steps_share_hours_and_cost_and_the_last_one_writes_the_file(workflow: Workflow) -> None:
    cost = workflow.estimated_cost
    do(workflow, "decompose_task", task_id="brief", steps=["Draft", "Check", "Final"])
    assert workflow.estimated_cost == pytest.approx(cost)
    assert workflow.task("brief.3").outputs == ("brief.md",)
    assert workflow.task("brief.3").dependencies == ("brief.2",)
    assert workflow.task("brief").outputs == ()


def test_work_is_shared_out_by_role_and_load(workflow: Workflow) -> None:
    result = do(workflow, "assign_all_pending_tasks")
    assert set(result.data["assigned"].values()) == {"eva", "finn"}
    assert result.data["assigned"]["plan"] == "eva"
    assert do(workflow, "assign_all_pending_tasks").data["assigned"] == {}


def test_unknown_names_and_wrong_arguments_are_one_sentence() -> None:
    with pytest.raises(WorkflowError, match=r"no action 'asign_task'.*did you mean 'assign_task'"):
        parse_action({"action": "asign_task"})
    with pytest.raises(WorkflowError, match=r"assign_task has a wrong argument \(agent_id: Field required\)"):
        parse_action({"action": "assign_task", "task_id": "x"})
    with pytest.raises(WorkflowError, match="estimated_hours"):
        parse_action({"action": "refine_task", "task_id": "x", "estimated_hours": -1})


def test_a_question_text_is_one_topic_and_a_turn_has_at_most_three() -> None:
    action = parse_action({"action": "ask_clarification_questions", "question": "brevity"})
    assert isinstance(action, AskClarificationQuestions)
    assert [one.topic for one in action.questions] == ["brevity"]
    with pytest.raises(WorkflowError, match="questions"):
        topics = [{"topic": one} for one in "abcd"]
        parse_action({"action": "ask_clarification_questions", "questions": topics})
