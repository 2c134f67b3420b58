"""Checks of a task graph: every name is known, every input has a source, and no task waits for itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter

from onward.rubrics.gym.parts import Task, WorkflowError
from onward.spelling import closest_name

Tasks = Mapping[str, Task]


def suggestion(name: str, known: Collection[str]) -> str:
    """Returns ``: did you mean …?`` for a name like a known one; empty if there is none."""
    near = closest_name(name, known)
    return "" if near is None else f" (did you mean {near!r}?)"


def leaves_of(tasks: Tasks, task_id: str) -> tuple[str, ...]:
    """Returns the atomic tasks of ``task_id``: itself, or those of its children."""
    children = [task.id for task in tasks.values() if task.parent == task_id]
    return tuple(leaf for child in children for leaf in leaves_of(tasks, child)) or (task_id,)


def leaves(tasks: Tasks) -> tuple[str, ...]:
    """Returns every atomic task, in the order of ``tasks``."""
    parents = {task.parent for task in tasks.values()}
    return tuple(task_id for task_id in tasks if task_id not in parents)


def predecessors(tasks: Tasks) -> dict[str, set[str]]:
    """Returns each atomic task with the atomic tasks before it.

    A dependency on a composite task is one on all of its leaves. A leaf also waits for its ancestors'
    dependencies.
    """
    found: dict[str, set[str]] = {}
    for leaf in leaves(tasks):
        waits: set[str] = set()
        current: str | None = leaf
        while current is not None:
            for dependency in tasks[current].dependencies:
                waits.update(leaves_of(tasks, dependency))
            current = tasks[current].parent
        found[leaf] = waits
    return found


def check_graph(tasks: Tasks, given: Collection[str]) -> None:
    """Checks a task graph; ``given`` are the names of the input files.

    Raises WorkflowError with one sentence: an unknown dependency or parent, a cycle, an input file without a
    source, an input whose source may run later, or two tasks that write one file.
    """
    for task in tasks.values():
        for dependency in task.dependencies:
            _known(tasks, dependency, f"The task {task.id!r} depends on")
        if task.parent is not None:
            _known(tasks, task.parent, f"The task {task.id!r} belongs to")
    _check_parents(tasks)
    before = predecessors(tasks)
    try:
        order = tuple(TopologicalSorter(before).static_order())
    except CycleError as error:
        circle = " → ".join(reversed(error.args[1]))
        raise WorkflowError(
            f"The tasks wait for each other in a circle ({circle}): remove one of these dependencies."
        ) from None
    _check_files(tasks, given, before, order)


def _known(tasks: Tasks, name: str, sentence: str) -> None:
    if name not in tasks:
        raise WorkflowError(
            f"{sentence} {name!r}, which is no task of this workflow{suggestion(name, tasks)}."
        )


def _check_parents(tasks: Tasks) -> None:
    for task in tasks.values():
        seen, current = {task.id}, task.parent
        while current is not None:
            if current in seen:
                raise WorkflowError(
                    f"The task {task.id!r} is part of itself (over {current!r}): give it another parent."
                )
            seen.add(current)
            current = tasks[current].parent


def _check_files(
    tasks: Tasks, given: Collection[str], before: Mapping[str, set[str]], order: tuple[str, ...]
) -> None:
    source: dict[str, str] = {}
    for task_id in before:
        for name in tasks[task_id].outputs:
            if name in given or name in source:
                other = (
                    f"the task {source[name]!r} writes it too" if name in source else "it is an input file"
                )
                raise WorkflowError(
                    f"The task {task_id!r} writes the file {name!r}, but {other}: choose another name."
                )
            source[name] = task_id
    earlier: dict[str, set[str]] = {}
    for task_id in order:
        earlier[task_id] = before[task_id].union(*(earlier[one] for one in before[task_id]))
        for name in tasks[task_id].inputs:
            if name in given:
                continue
            if name not in source:
                raise WorkflowError(
                    f"The task {task_id!r} reads the file {name!r}, which is no input and no task writes"
                    f"{suggestion(name, {*given, *source})}."
                )
            if source[name] not in earlier[task_id]:
                raise WorkflowError(
                    f"The task {task_id!r} reads the file {name!r} and does not wait for the task "
                    f"{source[name]!r} that writes it: add this dependency."
                )
