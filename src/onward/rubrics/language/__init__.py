"""The language of rubrics: finite ones for small models, free ones for models that can write them."""

from onward.rubrics.language.criteria import (
    LEAST_CRITERIA,
    MOST_CRITERIA,
    WEIGHTS,
    Criterion,
    InvalidRubric,
    Rubric,
)
from onward.rubrics.language.writing import parse, schema_of, serialise

__all__ = [
    "LEAST_CRITERIA",
    "MOST_CRITERIA",
    "WEIGHTS",
    "Criterion",
    "InvalidRubric",
    "Rubric",
    "parse",
    "schema_of",
    "serialise",
]
