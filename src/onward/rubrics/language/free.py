"""Free rubrics: stages of code rules, judge rules and functions, for models and people that can write them.

Every rule of consistency is checked when a rubric is made, so a rubric whose points cannot be reached does
not exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.json_schema import SkipJsonSchema

from onward.rubrics.language.code_rules import check_code
from onward.rubrics.language.criteria import InvalidRubric
from onward.rubrics.language.writing import read_json

_CLOSE = 1e-9
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""A finite number; no text and no bool."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class CodeRule(_Frozen):
    """A rule in Python: ``code`` defines ``evaluate(artefact)`` with a result from 0 to ``weight``."""

    type: Literal["code"] = "code"
    name: str = Field(min_length=1)
    description: str = ""
    weight: _Number = Field(gt=0)
    code: str

    @model_validator(mode="after")
    def _compiles(self) -> CodeRule:
        check_code(self.code, f"The code rule {self.name!r}")
        return self


class JudgeRule(_Frozen):
    """A rule for a language model, which gives 0 to ``weight``."""

    type: Literal["llm_judge"] = "llm_judge"
    name: str = Field(min_length=1)
    description: str = ""
    weight: _Number = Field(gt=0)
    judge_prompt: str = Field(min_length=1)
    expectation: str = ""


class FunctionRule(_Frozen):
    """A function of this program, for rubrics that are written in Python. No text can state one."""

    type: Literal["function"] = "function"
    name: str = Field(min_length=1)
    description: str = ""
    weight: _Number = Field(gt=0)
    function: Callable[[Any], Any]


Rule = CodeRule | JudgeRule | FunctionRule
_AnyRule = Annotated[CodeRule | JudgeRule | SkipJsonSchema[FunctionRule], Field(discriminator="type")]


class Stage(_Frozen):
    """Rules that are scored together. A required stage below ``min_score_to_pass`` is a failed gate."""

    name: str = Field(min_length=1)
    description: str = ""
    is_required: bool = True
    max_points: _Number = Field(gt=0)
    min_score_to_pass: _Number = Field(default=0.0, ge=0)
    rules: tuple[_AnyRule, ...] = Field(min_length=1)
    on_failure_action: Literal["skip_remaining", "zero_category", "continue"] = "skip_remaining"
    on_failure_score: _Number = 0.0
    keep_partial: bool = False
    """True: a failed gate keeps its own points under ``skip_remaining``."""

    @model_validator(mode="after")
    def _consistent(self) -> Stage:
        total = math.fsum(rule.weight for rule in self.rules)
        if abs(total - self.max_points) > _CLOSE:
            raise InvalidRubric(
                f"The weights of the rules of the stage {self.name!r} sum to {total:g}, and its max_points "
                f"is {self.max_points:g}: make them equal."
            )
        if self.min_score_to_pass > self.max_points:
            raise InvalidRubric(
                f"The stage {self.name!r} needs {self.min_score_to_pass:g} points to pass and has "
                f"{self.max_points:g}: lower min_score_to_pass."
            )
        _check_names([rule.name for rule in self.rules], f"rules in the stage {self.name!r}")
        return self


class StagedRubric(_Frozen):
    """A free rubric: stages in order, whose points sum to ``max_total_score``."""

    category_name: str = Field(min_length=1)
    rationale: str = ""
    max_total_score: _Number = Field(gt=0)
    stages: tuple[Stage, ...] = Field(min_length=1)

    @property
    def name(self) -> str:
        return self.category_name

    @model_validator(mode="after")
    def _consistent(self) -> StagedRubric:
        total = math.fsum(stage.max_points for stage in self.stages)
        if abs(total - self.max_total_score) > _CLOSE:
            raise InvalidRubric(
                f"The points of the stages of {self.name!r} sum to {total:g}, and max_total_score is "
                f"{self.max_total_score:g}: make them equal."
            )
        for stage in self.stages:
            if not 0 <= stage.on_failure_score <= self.max_total_score:
                raise InvalidRubric(
                    f"The stage {stage.name!r} has the on_failure_score {stage.on_failure_score:g}: use 0 to "
                    f"{self.max_total_score:g}."
                )
        _check_names([stage.name for stage in self.stages], f"stages in {self.name!r}")
        return self


def parse_free(text: str) -> StagedRubric:
    """Returns the free rubric that a text states. Raises InvalidRubric with the reason."""
    value = read_json(text)
    try:
        return StagedRubric.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the rubric"
        raise InvalidRubric(f"{place} of the free rubric is invalid: {first['msg']}.") from None


def _check_names(names: list[str], what: str) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidRubric(f"Two {what} have the name {repeated[0]!r}: give each its own name.")
