"""Criteria, evaluators and preferences of the engine: frozen models with the names of Manager Agent Gym.

A change makes a new object, so weights of an earlier time step cannot change later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator, model_validator

from onward.errors import OnwardError
from onward.rubrics.language.code_rules import check_code
from onward.rubrics.language.free import StagedRubric


class EvaluationError(OnwardError):
    """An evaluation that cannot be made, or one with an error under ``strict``."""


class RunCondition(StrEnum):
    """The time at which a criterion is evaluated."""

    EACH_TIMESTEP = "each_timestep"
    ON_COMPLETION = "on_completion"
    BOTH = "both"


class ContextItem(StrEnum):
    """Something beside the workflow that a criterion may require."""

    MANAGER_ACTIONS = "manager_actions"
    COMMUNICATIONS_BY_SENDER = "communications_by_sender"
    COMMUNICATIONS_BY_THREAD = "communications_by_thread"
    PREFERENCE_HISTORY = "preference_history"
    STAKEHOLDER_PROFILE = "stakeholder_profile"
    RESOURCES_BY_TASK = "resources_by_task"
    AGENT_TOOL_USAGE_BY_TASK = "agent_tool_usage_by_task"
    AGENT_PUBLIC_STATES = "agent_public_states"


Aggregation = Literal["weighted_average", "mean", "min", "max", "product", "harmonic_mean"]


class _Frozen(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, populate_by_name=True
    )


class WorkflowRubric(_Frozen):
    """One criterion: a function, the text of one for the sandbox, or a judge's prompt."""

    name: str = Field(min_length=1)
    description: str = ""
    max_score: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    weight: float | None = Field(default=None, allow_inf_nan=False)
    """Weight in a weighted average, negative for a fault; ``max_score`` if None."""
    evaluator_function: Callable[..., Any] | None = None
    evaluator_code: str | None = Field(
        default=None, validation_alias=AliasChoices("evaluator_code", "stringified_evaluator_function")
    )
    llm_prompt: str | None = None
    llm_model: str = "o3"
    run_condition: RunCondition = RunCondition.EACH_TIMESTEP
    required_context: frozenset[ContextItem] = frozenset()
    clamp: bool = False
    """True: a score outside of 0 to ``max_score`` is moved into it; otherwise it is an error."""

    @property
    def share(self) -> float:
        """Weight in a weighted average."""
        return self.max_score if self.weight is None else self.weight

    @model_validator(mode="after")
    def _one_way(self) -> WorkflowRubric:
        ways = {
            "evaluator_function": self.evaluator_function,
            "evaluator_code": self.evaluator_code,
            "llm_prompt": self.llm_prompt,
        }
        given = [name for name, value in ways.items() if value is not None]
        if len(given) != 1:
            raise EvaluationError(
                f"The criterion {self.name!r} has {' and '.join(given) or 'no way to be evaluated'}: give "
                f"exactly one of {', '.join(ways)}."
            )
        if self.evaluator_code is not None:
            check_code(self.evaluator_code, f"The code of the criterion {self.name!r}")
        return self


class Evaluator(_Frozen):
    """Criteria whose scores are aggregated to one."""

    name: str = Field(min_length=1)
    description: str = ""
    aggregation: Aggregation | Callable[[Sequence[float]], float] = "weighted_average"
    rubrics: tuple[WorkflowRubric, ...] = Field(
        default=(), validation_alias=AliasChoices("rubrics", "criteria")
    )
    metadata: dict[str, Any] = Field(default_factory=dict)

    @property
    def criteria(self) -> tuple[WorkflowRubric, ...]:
        return self.rubrics

    @property
    def strategy(self) -> str:
        """Name of the aggregation."""
        if isinstance(self.aggregation, str):
            return self.aggregation
        return getattr(self.aggregation, "__name__", type(self.aggregation).__name__)

    @model_validator(mode="after")
    def _weights_are_used(self) -> Evaluator:
        if not self.rubrics:
            return self
        negative = [one.name for one in self.rubrics if one.share < 0]
        if negative and self.aggregation != "weighted_average":
            raise EvaluationError(
                f"The criterion {negative[0]!r} has a negative weight, and {self.name!r} is aggregated by "
                f"{self.strategy}: use weighted_average."
            )
        if self.aggregation == "weighted_average" and all(one.share <= 0 for one in self.rubrics):
            raise EvaluationError(f"No criterion of {self.name!r} has a positive weight: give one.")
        return self


class Preference(_Frozen):
    """A stakeholder's preference: a weight, and the evaluator that measures it."""

    name: str = Field(min_length=1)
    weight: float = Field(ge=0, le=1, allow_inf_nan=False)
    description: str = ""
    evaluator: Evaluator | StagedRubric | None = None


class PreferenceWeights(_Frozen):
    """Preferences at a time step; their weights are scaled to sum to 1, and all-zero ones made equal."""

    preferences: tuple[Preference, ...] = ()
    timestep: int = 0

    @field_validator("preferences")
    @classmethod
    def _scaled(cls, given: tuple[Preference, ...]) -> tuple[Preference, ...]:
        names = [one.name for one in given]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise EvaluationError(f"Two preferences have the name {repeated[0]!r}: give each its own name.")
        total = math.fsum(one.weight for one in given)
        return tuple(
            one.model_copy(update={"weight": one.weight / total if total > 0 else 1 / len(given)})
            for one in given
        )

    def weight_of(self, name: str) -> float:
        """Returns the weight of a preference; 0 if there is none of this name."""
        return next((one.weight for one in self.preferences if one.name == name), 0.0)


class PreferenceWeightUpdateRequest(_Frozen):
    """A change of weights at a time step."""

    timestep: int = Field(ge=0)
    changes: dict[str, Annotated[float, Field(allow_inf_nan=False)]]
    mode: Literal["delta", "multiplier", "absolute"] = "delta"
    normalize: bool = True
    clamp_zero: bool = True
    missing: Literal["error", "ignore", "create_zero"] = "error"
    """Treatment of a name that no preference has. ``create_zero``: a new one that begins at 0."""
    redistribution: Literal["proportional", "uniform"] = "proportional"
    """``proportional``: every weight is divided by their sum. ``uniform``: the surplus is taken from the
    unchanged weights in equal parts first."""


def updated(weights: PreferenceWeights, request: PreferenceWeightUpdateRequest) -> PreferenceWeights:
    """Returns the weights after a change; ``weights`` stays as it is. Raises EvaluationError."""
    found = {one.name: one for one in weights.preferences}
    unknown = [name for name in request.changes if name not in found]
    if unknown and request.missing == "error":
        raise EvaluationError(
            f"No preference has the name {unknown[0]!r}: use one of {', '.join(found)}, or "
            f"missing = 'ignore'."
        )
    if request.missing == "create_zero":
        found |= {name: Preference(name=name, weight=0.0) for name in unknown}
    values = {name: one.weight for name, one in found.items()}
    changes = {name: change for name, change in request.changes.items() if name in values}
    for name, change in changes.items():
        before = values[name]
        values[name] = {"delta": before + change, "multiplier": before * change, "absolute": change}[
            request.mode
        ]
    if request.clamp_zero:
        values = {name: max(0.0, value) for name, value in values.items()}
    if request.normalize:
        values = _normalized(values, changes, request.redistribution)
    wrong = [name for name, value in values.items() if not 0 <= value <= 1]
    if wrong:
        raise EvaluationError(
            f"The weight of {wrong[0]!r} would be {values[wrong[0]]:g}: a weight lies in 0 to 1. Use "
            f"clamp_zero and normalize."
        )
    return PreferenceWeights(
        preferences=tuple(one.model_copy(update={"weight": values[name]}) for name, one in found.items()),
        timestep=request.timestep,
    )


def _normalized(values: dict[str, float], changes: dict[str, float], way: str) -> dict[str, float]:
    unchanged = [name for name in values if name not in changes]
    if way == "uniform" and unchanged:
        surplus = (math.fsum(values.values()) - 1) / len(unchanged)
        values = {
            name: max(0.0, value - surplus) if name in unchanged else value for name, value in values.items()
        }
    total = math.fsum(values.values())
    if total <= 0:
        return dict.fromkeys(values, 1 / len(values)) if values else {}
    return {name: value / total for name, value in values.items()}
