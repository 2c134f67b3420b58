"""Workers: deterministic functions that do tasks, with a knob for their quality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onward.rubrics.gym.files import Requirement
from onward.rubrics.gym.parts import Agent, Task
from onward.rubrics.gym.work import Job, operation_of, requirements_of
from onward.rubrics.gym.workflow import Workflow


@dataclass(frozen=True)
class Worker:
    """Does tasks. Each requirement is satisfied with probability ``skill``, by ``seed`` alone.

    ``skill`` None takes that of the agent. ``decided`` fixes single requirements.
    """

    skill: float | None = None
    seed: int = 0
    decided: Mapping[Requirement, bool] = field(default_factory=dict)

    def satisfies(self, requirement: Requirement, workflow: Workflow, skill: float) -> bool:
        """Returns whether it meets ``requirement`` in this workflow."""
        if requirement in self.decided:
            return self.decided[requirement]
        return requirement.chance(self.seed, workflow.seed, workflow.name) < skill

    def __call__(self, task: Task, agent: Agent, workflow: Workflow) -> dict[str, bytes]:
        """Returns the output files of ``task``, with a fault for each requirement that is not met."""
        operation = operation_of(task)
        content = operation.run(Job(task, workflow, tuple(workflow.agents.values())))
        skill = agent.skill if self.skill is None else self.skill
        for requirement in sorted(operation.requires(task), key=lambda one: one.kind.order):
            if not self.satisfies(requirement, workflow, skill):
                content = requirement.spoil(content, workflow)
        return {task.outputs[0]: content}


def requirements(workflow: Workflow) -> tuple[Requirement, ...]:
    """Returns the requirements on every file of ``workflow``, in the order of its tasks."""
    return tuple(dict.fromkeys(one for task in workflow.leaves() for one in requirements_of(task)))


def satisfied(workflow: Workflow) -> dict[Requirement, bool]:
    """Returns which requirements the files of ``workflow`` satisfy now, by their checks."""
    return {one: one.holds(workflow) for one in requirements(workflow)}
