"""A workflow, criteria and one evaluation, for tests of the evaluation engine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from onward.rubrics.evaluation import (
    EvaluationResult,
    Evaluator,
    ValidationEngine,
    WorkflowRubric,
)


@dataclass
class Workflow:
    name: str = "airline"
    goal: str = "launch"
    tasks: dict[str, Any] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)
    messages: list[Any] = field(default_factory=list)


def criterion(name: str, value: Any, **more: Any) -> WorkflowRubric:
    def rule(workflow: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return WorkflowRubric(name=name, evaluator_function=rule, **more)


def evaluate(
    *criteria: WorkflowRubric, how: Any = "weighted_average", engine: ValidationEngine | None = None
) -> EvaluationResult:
    evaluator = Evaluator(name="g", aggregation=how, rubrics=criteria)
    run = (engine or ValidationEngine(1)).evaluate_timestep(
        Workflow(), 0, None, workflow_evaluators=[evaluator]
    )
    return asyncio.run(run)
