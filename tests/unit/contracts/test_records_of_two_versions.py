"""Records of two versions: what a next version adds is read, stays when this version changes the record, and
is there when the next version reads it again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from stored_documents import RECORDS

from onward.contracts import canonical_json
from onward.contracts.buckets import Desired, OptOutCount, Piece, RescoreRequest

KINDS = {kind: json.loads(text) for kind, text in RECORDS.items() if kind is not RescoreRequest}
COUNTED = {"counts", "probes", "sessions", "e_values", "windows", "rates", "step_rates"}
"""Fields that map names to values: their keys are data, not fields."""


def of_next_version(value: Any, name: str = "") -> Any:
    """The same document with a field more in every object, as a next version writes it."""
    if isinstance(value, list):
        return [of_next_version(item, name) for item in value]
    if not isinstance(value, dict):
        return value
    inside = {key: of_next_version(item, key) for key, item in value.items()}
    return inside if name in COUNTED | {"baselines"} else inside | {"added_by_next": {"deep": [1, None]}}


def contains(whole: Any, part: Any) -> bool:
    """Whether ``part`` is in ``whole``, which may have more fields: defaults of fields that were absent."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            name in whole and contains(whole[name], value) for name, value in part.items()
        )
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(contains, whole, part))
    return whole == part


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_a_next_version_added_is_still_there_after_this_version_changed_the_record(kind):
    stored = of_next_version(KINDS[kind])
    document = kind.load(canonical_json(stored))
    known = {name: getattr(document, name) for name in document.model_fields_set & kind.model_fields.keys()}
    written = json.loads(document.model_copy(update=known).dump())
    assert contains(written, stored)
    assert kind.load(canonical_json(written)) == document, "the next version reads what it wrote"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_record_that_is_built_anew_takes_over_what_a_next_version_added(kind):
    before = kind.load(canonical_json(of_next_version(KINDS[kind])))
    anew = kind.load(canonical_json(KINDS[kind]))
    kept = json.loads(anew.with_unknown_fields(before).dump())
    assert kept["added_by_next"] == {"deep": [1, None]}
    for name in set(KINDS[kind]) & kind.model_fields.keys():
        if isinstance(getattr(anew, name), Piece):
            assert kept[name]["added_by_next"] == {"deep": [1, None]}


def test_routes_that_change_keep_what_a_next_version_added_to_each_arm():
    before = Desired.load(canonical_json(of_next_version(KINDS[Desired])))
    after = Desired.load(canonical_json(KINDS[Desired])).with_unknown_fields(before)
    assert [arm["added_by_next"]["deep"] for arm in json.loads(after.dump())["arms"]] == [[1, None]] * 2
    assert after == before


def test_a_field_of_this_version_is_never_taken_from_the_record_before():
    assert OptOutCount(count=4).with_unknown_fields(OptOutCount(count=3, recent=[1])) == OptOutCount(count=4)
