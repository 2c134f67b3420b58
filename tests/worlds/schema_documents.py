"""Hypothesis strategies that make documents from a JSON Schema, for the few keywords our schemas use.

``published`` finds the schemas that PMOVES publishes, when that folder is beside the repository.
"""

from __future__ import annotations

import copy
import json
import string
from datetime import datetime
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker

FOLDER = Path(__file__).parents[3] / "shared" / "upstream-schemas"

PLAIN_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(-1e300, 1e300) | PLAIN_TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(PLAIN_TEXT, inner, max_size=2),
    max_leaves=4,
)
OUR_NAMES = (
    *("sampling", "checks", "task_type", "group_id", "outcome", "release", "raw_total", "model_digest"),
    *("release_id", "supersedes", "environment", "event", "reason", "engine"),
)
IDS = st.uuids().map(str) | st.uuids().map("manual-{}".format)
ID_FIELDS = {
    "trajectory_id",
    "reward_id",
    "training_job_id",
    "deployment_id",
    "feedback_id",
    "outcome_id",
    "release_id",
    "supersedes",
    "generation_id",
    "continues",
    "signal",
}


def published(name: str) -> dict[str, Any]:
    """A published schema, with its draft-4 ``exclusiveMinimum: true`` read as 0."""
    schema = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    pending = [schema]
    while pending:
        part = pending.pop()
        if part.get("exclusiveMinimum") is True:
            part["exclusiveMinimum"] = 0
        pending.extend(value for value in part.values() if isinstance(value, dict))
    return schema


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=FormatChecker(["date-time"]))


def timestamps(canonical: bool) -> st.SearchStrategy[str]:
    """RFC 3339 date-times: as Onward writes them, or any offset, any number of digits, either case."""
    if canonical:
        return st.datetimes().map(lambda moment: moment.isoformat(timespec="milliseconds") + "Z")
    local = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1)).map(lambda t: t.isoformat()[:19])
    digits = st.just("") | st.text(string.digits, min_size=1, max_size=12).map(".{}".format)
    hours = st.builds("{}{:02}:{:02}".format, st.sampled_from("+-"), st.integers(0, 23), st.integers(0, 59))
    text = st.builds("{}{}{}".format, local, digits, st.just("Z") | hours)
    return text | text.map(str.lower)


def documents(schema: dict[str, Any], *, canonical_times: bool = False) -> st.SearchStrategy[Any]:
    """Documents valid under ``schema``; ids and session ids are kept within Onward's id rules."""
    times = timestamps(canonical_times)

    def of(part: Any, name: str = "") -> st.SearchStrategy[Any]:
        if part is True or part == {}:
            return ANY_JSON
        if "$ref" in part:
            return of(schema["$defs"][part["$ref"].removeprefix("#/$defs/")], name)
        for union in ("oneOf", "anyOf"):
            if union in part:
                return st.one_of([of(member, name) for member in part[union]])
        if "enum" in part:
            return st.sampled_from(part["enum"])
        kind = part.get("type")
        if isinstance(kind, list):
            return st.one_of([of({**part, "type": one}, name) for one in kind])
        if kind == "object":
            return objects(part)
        if kind == "array":
            return st.lists(of(part["items"]), min_size=part.get("minItems", 0), max_size=3)
        return scalar(part, kind, name)

    def scalar(part: dict[str, Any], kind: str | None, name: str) -> st.SearchStrategy[Any]:
        if kind == "string":
            if part.get("format") == "date-time":
                return times
            if name in ID_FIELDS:
                return IDS
            return PLAIN_TEXT.filter(bool) if name == "session_id" else PLAIN_TEXT
        low = part.get("minimum", part.get("exclusiveMinimum", -1e300))
        high = part.get("maximum", 1e300)
        if kind == "integer":
            whole = st.integers(int(low), 2**70)
            return whole | st.integers(int(low), 2**40).map(float)
        if kind == "number":
            floats = st.floats(low, high, exclude_min="exclusiveMinimum" in part)
            edges = [
                n
                for n in (1, 0, int(high))
                if low <= n <= high and not (n == 0 and "exclusiveMinimum" in part)
            ]
            return floats | st.sampled_from(edges)
        return {"boolean": st.booleans(), "null": st.none()}[str(kind)]

    def objects(part: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
        known = {name: of(value, name) for name, value in part.get("properties", {}).items()}
        required = {name: known[name] for name in part.get("required", [])}
        optional = {name: value for name, value in known.items() if name not in required}
        base = st.fixed_dictionaries(required, optional=optional)
        more = part.get("additionalProperties", True)
        if more is False:
            return base
        names = PLAIN_TEXT | st.sampled_from(OUR_NAMES)
        extra = st.dictionaries(names.filter(lambda name: name not in known), of(more), max_size=2)
        return st.builds(lambda first, rest: {**rest, **first}, base, extra)

    return of(copy.deepcopy(schema))
