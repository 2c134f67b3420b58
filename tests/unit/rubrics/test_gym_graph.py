"""Task graph of the workflow gym: unsound graphs are one sentence, and reading changes nothing."""

from __future__ import annotations

import pytest

from onward.rubrics.gym.graph import check_graph, leaves, predecessors
from onward.rubrics.gym.parts import Resource, Task, TaskStatus, WorkflowError
from onward.rubrics.gym.workflow import Workflow


def task(name: str, *after: str, **more: object) -> Task:
    return Task.model_validate({"id": name, "name": name, "dependencies": after, **more})


def tasks(*given: Task) -> dict[str, Task]:
    return {one.id: one for one in given}


def test_a_circle_is_one_sentence_that_names_its_tasks() -> None:
    with pytest.raises(WorkflowError, match=r"circle \(a → c → b → a\)|circle \(.*a.*b.*c.*\)") as found:
        check_graph(tasks(task("a", "c"), task("b", "a"), task("c", "b")), ())
    assert "remove one of these dependencies" in str(found.value)


def test_a_task_that_waits_for_itself_is_a_circle() -> None:
    with pytest.raises(WorkflowError, match="circle"):
        check_graph(tasks(task("a", "a")), ())


def test_an_unknown_dependency_has_a_suggestion() -> None:
    with pytest.raises(WorkflowError, match=r"'report' depends on 'totlas'.*did you mean 'totals'"):
        check_graph(tasks(task("totals"), task("report", "totlas")), ())


def test_a_missing_file_names_the_task_and_a_near_name() -> None:
    with pytest.raises(WorkflowError, match=r"'a' reads the file 'sale.csv'.*did you mean 'sales.csv'"):
        check_graph(tasks(task("a", inputs=("sale.csv",))), ["sales.csv"])


def test_a_file_whose_writer_may_run_later_is_refused() -> None:
    with pytest.raises(WorkflowError, match=r"'b' reads the file 'x.csv' and does not wait for the task 'a'"):
        check_graph(tasks(task("a", outputs=("x.csv",)), task("b", inputs=("x.csv",))), ())
    check_graph(tasks(task("a", outputs=("x.csv",)), task("b", "a", inputs=("x.csv",))), ())


def test_two_writers_of_a_file_are_refused() -> None:
    with pytest.raises(WorkflowError, match="'a' writes it too"):
        check_graph(tasks(task("a", outputs=("x.csv",)), task("b", "a", outputs=("x.csv",))), ())
    with pytest.raises(WorkflowError, match="it is an input file"):
        check_graph(tasks(task("a", outputs=("x.csv",))), ["x.csv"])


def test_a_parent_that_is_unknown_or_circular_is_refused() -> None:
    with pytest.raises(WorkflowError, match="belongs to 'plan'"):
        check_graph(tasks(task("a", parent="plan")), ())
    with pytest.raises(WorkflowError, match="part of itself"):
        check_graph(tasks(task("a", parent="b"), task("b", parent="a")), ())


def test_leaves_wait_for_what_their_ancestors_wait_for() -> None:
    # build (foundation → walls) waits for permit; party waits for build: for both of its leaves.
    graph = tasks(
        task("permit"), task("build", "permit"), task("foundation", parent="build"),
        task("walls", "foundation", parent="build"), task("party", "build"),
    )  # fmt: skip
    assert leaves(graph) == ("permit", "foundation", "walls", "party")
    assert predecessors(graph) == {
        "permit": set(), "foundation": {"permit"}, "walls": {"permit", "foundation"},
        "party": {"foundation", "walls"},
    }  # fmt: skip


def test_reading_the_ready_tasks_changes_nothing_and_no_leaf_counts_twice() -> None:
    workflow = Workflow(name="w", goal="g", tasks=tasks(
        task("whole", estimated_cost=0.0), task("one", parent="whole", estimated_cost=30.0),
        task("two", "one", parent="whole", estimated_cost=12.0),
    ))  # fmt: skip
    before = dict(workflow.tasks)
    assert [one.id for one in workflow.ready()] == ["one"]
    assert [one.id for one in workflow.ready()] == ["one"]
    assert workflow.tasks == before
    assert workflow.estimated_cost == 42.0
    workflow.put(workflow.task("one").model_copy(update={"status": TaskStatus.COMPLETED}))
    assert [one.id for one in workflow.ready()] == ["two"]
    assert workflow.status_of("whole") is TaskStatus.RUNNING
    assert not workflow.is_complete


def test_a_workflow_without_tasks_is_not_complete() -> None:
    assert not Workflow(name="w", goal="g").is_complete


def test_a_workflow_whose_store_lost_a_file_is_refused() -> None:
    workflow = Workflow(name="w", goal="g")
    workflow.add_inputs([Resource(name="a.csv", digest="0" * 64, mime_type="text/csv", size=1, role="input")])
    with pytest.raises(WorkflowError, match=r"no content for the file 'a.csv'"):
        workflow.check()


def test_unknown_names_are_one_sentence() -> None:
    workflow = Workflow(name="w", goal="g", tasks=tasks(task("totals")))
    with pytest.raises(WorkflowError, match=r"no task 'total'.*did you mean 'totals'"):
        workflow.task("total")
    with pytest.raises(WorkflowError, match=r"no file 'x.md'"):
        workflow.read("x.md")
