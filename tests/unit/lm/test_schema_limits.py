"""Schemas that take minutes to compile are refused before that, by the name of the keyword."""

from __future__ import annotations

from typing import Any

import pytest

from onward.lm.constrained import GrammarError, schema_source
from onward.lm.schema_limits import beyond_limits


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "integer", "multipleOf": 99999989}, "'multipleOf' 99999989, but at most 1000"),
        ({"type": "number", "multipleOf": 9.973}, "'multipleOf' 9.973, but at most 1000"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "least common multiple of more than 10000"),
        ({"properties": {"const": {"multipleOf": 1009}}}, "'multipleOf' 1009"),
        ({"multipleOf": float("nan")}, "or no number"),
        ({"minimum": 1e300}, "'minimum' of 10.20 or more"),
        ({"maximum": 1e-300}, "'maximum' 1e-300, but at most 20 digits"),
        ({"prefixItems": [{"minimum": -(10**18) - at} for at in range(120)]}, "bounds of 2280 digits"),
        ({"type": "string", "maxLength": 4097}, "'maxLength' 4097, but at most 4096"),
        ({"type": "array", "minItems": 10**9}, "'minItems' 1000000000"),
        ({"type": "string", "pattern": "^a{2,5000}$"}, "pattern with 5000 repeats"),
        ({"patternProperties": {"a{99999999999}": {}}}, "pattern with 99999999999 repeats"),
        (nested(40), "deeper than 32 levels"),
        (nested(100_000), "deeper than 32 levels"),
        ({"description": "x" * 65_536}, "longer than 65536 bytes"),
        ({"enum": [0] * 40_000}, "longer than 65536 bytes"),
    ],
)
def test_a_schema_that_would_stop_the_engine_is_refused_by_name(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(GrammarError, match=named) as caught:
        schema_source(schema, "The schema", "tools")
    assert caught.value.part == "tools" and len(str(caught.value)) < 200


def test_usual_schemas_are_within_the_limits() -> None:
    usual = {
        "type": "object",
        "properties": {
            "price": {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 99999.99},
            "step": {"type": "integer", "multipleOf": 15, "exclusiveMinimum": -(2**63)},
            "text": {"type": "string", "maxLength": 4096, "pattern": "^[a-z]{1,64}$"},
            "flag": {"const": True},
        },
    }
    assert beyond_limits(usual) == "" and beyond_limits(nested(15)) == ""
