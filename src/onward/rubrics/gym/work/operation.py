"""Operations: the functions that do a task, each with the requirements that its output has to satisfy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from onward.rubrics.gym.files import Files, Requirement
from onward.rubrics.gym.files.cells import Row
from onward.rubrics.gym.files.formats import table_of
from onward.rubrics.gym.graph import suggestion
from onward.rubrics.gym.parts import Agent, Task, WorkflowError


@dataclass(frozen=True)
class Job:
    """A task in work: its arguments, the files that it may read, and who works on it."""

    task: Task
    files: Files
    people: tuple[Agent, ...] = ()
    """Agents of the workflow: owners of steps, and signatories."""

    @property
    def given(self) -> dict[str, Any]:
        """Arguments of the task."""
        return self.task.arguments

    def table(self, place: int = 0) -> list[Row]:
        """Returns the rows of an input file."""
        return table_of(self.files, self.task.inputs[place])

    def person(self, role: str) -> str:
        """Returns the name of the first agent with ``role``. Raises WorkflowError if there is none."""
        for one in self.people:
            if one.role == role:
                return one.name
        raise WorkflowError(
            f"The task {self.task.id!r} needs a {role}, and the workflow has none: add an agent."
        )


Run = Callable[[Job], bytes]
Requires = Callable[[Task], Iterable[Requirement]]


@dataclass(frozen=True)
class Operation:
    """A function of a worker, with its requirements."""

    name: str
    run: Run
    requires: Requires


OPERATIONS: dict[str, Operation] = {}
"""Name → operation. The modules ``on_tables`` and ``on_documents`` fill it."""


def declare(name: str, run: Run, requires: Requires) -> None:
    """Adds an operation to ``OPERATIONS``."""
    OPERATIONS[name] = Operation(name, run, requires)


def operation_of(task: Task) -> Operation:
    """Returns the operation of ``task``. Raises WorkflowError for an unknown one."""
    if task.operation not in OPERATIONS:
        raise WorkflowError(
            f"The task {task.id!r} has the operation {task.operation!r}, which no worker knows"
            f"{suggestion(task.operation, OPERATIONS)}: use one of {', '.join(OPERATIONS)}."
        )
    return OPERATIONS[task.operation]


def requirements_of(task: Task) -> tuple[Requirement, ...]:
    """Returns the requirements on the files of ``task``; none for a task without an operation."""
    return tuple(operation_of(task).requires(task)) if task.operation else ()
