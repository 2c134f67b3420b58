"""Ground-truth rubrics: written by hand as YAML, one for each workflow, for people to read.

Each criterion is a check of an output file with a sentence. ``weighted_average`` adds the weights up, ``min``
takes the weakest criterion, ``staged`` has gates: a stage that fails ends the rubric.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from onward.rubrics.evaluation import Evaluator, WorkflowRubric
from onward.rubrics.gym.files import Requirement
from onward.rubrics.gym.graph import suggestion
from onward.rubrics.gym.loading import _Entry, read_entry
from onward.rubrics.gym.parts import WorkflowError
from onward.rubrics.gym.workflow import Workflow
from onward.rubrics.language.free import FunctionRule, Stage, StagedRubric

TRUTH = Path(__file__).with_name("truth")
FAILURES: dict[str, Literal["zero_category", "skip_remaining", "continue"]] = {
    "zero": "zero_category", "skip": "skip_remaining", "continue": "continue",
}  # fmt: skip


class CriterionEntry(_Entry):
    """One criterion: a named check of an output file, with arguments, weight and a sentence for people."""

    weight: float = Field(gt=0)
    file: str
    check: str
    arguments: dict[str, Any] = Field(default_factory=dict, alias="with")
    says: str = Field(min_length=8)

    @property
    def requirement(self) -> Requirement:
        """Check of the file. Raises WorkflowError for an unknown check."""
        return Requirement.of(self.file, self.check, **self.arguments)


class StageEntry(_Entry):
    """One stage of a staged rubric: it passes with ``pass_at`` points."""

    name: str
    required: bool = True
    pass_at: float = Field(default=0.0, ge=0)
    on_failure: Literal["zero", "skip", "continue"] = "continue"
    criteria: tuple[CriterionEntry, ...] = Field(min_length=1)


class GroundTruth(_Entry):
    """A ground-truth rubric as written."""

    workflow: str
    title: str
    level: Literal["simple", "medium", "complex"]
    why: str
    aggregation: Literal["weighted_average", "min", "staged"]
    criteria: tuple[CriterionEntry, ...] = ()
    stages: tuple[StageEntry, ...] = ()

    def every_criterion(self) -> tuple[CriterionEntry, ...]:
        """Returns the criteria, those of all stages included."""
        return self.criteria + tuple(one for stage in self.stages for one in stage.criteria)

    def evaluator(self) -> Evaluator | StagedRubric:
        """Returns the rubric in the form that ``ValidationEngine`` evaluates."""
        if self.aggregation == "staged":
            return _staged(self)
        rubrics = tuple(criterion_of(one.requirement, one.weight, one.says) for one in self.criteria)
        return Evaluator(
            name=f"truth:{self.workflow}",
            description=self.title,
            aggregation=self.aggregation,
            rubrics=rubrics,
        )


def holds(requirement: Requirement) -> Callable[[Workflow], bool]:
    """Returns the check of a requirement as a function of the workflow."""

    def judged(workflow: Workflow) -> bool:
        return workflow.remember(requirement, lambda: requirement.holds(workflow))

    return judged


def criterion_of(requirement: Requirement, weight: float, says: str = "") -> WorkflowRubric:
    """Returns a requirement as a criterion of the evaluation engine."""
    return WorkflowRubric(
        name=requirement.id, description=says or requirement.sentence, max_score=weight,
        evaluator_function=holds(requirement),
    )  # fmt: skip


def _staged(truth: GroundTruth) -> StagedRubric:
    stages = tuple(
        Stage(
            name=stage.name, is_required=stage.required, max_points=sum(one.weight for one in stage.criteria),
            min_score_to_pass=stage.pass_at, on_failure_action=FAILURES[stage.on_failure],
            rules=tuple(
                FunctionRule(
                    name=one.requirement.id, description=one.says, weight=one.weight,
                    function=holds(one.requirement),
                )
                for one in stage.criteria
            ),
        )
        for stage in truth.stages
    )  # fmt: skip
    return StagedRubric(
        category_name=f"truth:{truth.workflow}", rationale=truth.why,
        max_total_score=sum(one.weight for one in truth.every_criterion()), stages=stages,
    )  # fmt: skip


def read_truth(path: Path) -> GroundTruth:
    """Reads a ground-truth rubric. Raises WorkflowError with one sentence if it is not usable."""
    truth = read_entry(path, GroundTruth)
    if bool(truth.stages) != (truth.aggregation == "staged") or not truth.every_criterion():
        raise WorkflowError(
            f"The rubric {path} has the aggregation {truth.aggregation!r}: give stages for 'staged', "
            "and criteria for the others."
        )
    for one in truth.every_criterion():
        _ = one.requirement
    return truth


def truth_of(name: str) -> GroundTruth:
    """Returns the ground-truth rubric of a workflow. Raises WorkflowError if there is none."""
    names = sorted(path.stem for path in TRUTH.glob("*.yaml"))
    if name not in names:
        raise WorkflowError(f"There is no rubric for {name!r}{suggestion(name, names)}.")
    return read_truth(TRUTH / f"{name}.yaml")
