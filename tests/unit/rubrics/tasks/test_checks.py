"""The predicates of the 24 checks against an artefact that was written by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from onward.errors import ConfigError
from onward.rubrics.check import Check
from onward.rubrics.tasks import (
    CHECKS,
    DIMENSIONS,
    HELD_OUT_FAMILIES,
    TRAINING_FAMILIES,
    describe,
    make_task,
)
from onward.rubrics.tasks.artefacts import Contact, Facts, number
from onward.rubrics.tasks.checks import conflict, require_known

TEN = "one two three four five six seven eight nine ten"
FACTS = Facts(
    items=6,
    deviations={"AB-0001": 0.06, "AB-0002": 0.3, "AB-0003": 0.01},
    values={"largest": 40.0, "average": 21.67, "open": 2.0},
    threshold="20",
    contacts=(Contact({}, {}),),
)


def row(number: int, day: str, amount: str, **more: Any) -> dict[str, Any]:
    return {
        "id": f"AB-000{number}", "name": "x", "date": day, "amount": amount, "tax": "1.00", "rate": "2.50",
        "owner": "Ann", "status": "open", "reason": "late", "email": f"p{number}@example.org",
    } | more  # fmt: skip


def written() -> dict[str, Any]:
    return {
        "title": "A report",
        "body": TEN,
        "sections": [
            {"name": "summary", "text": TEN},
            {"name": "background", "text": "The baseline of the year."},
            {"name": "analysis", "text": "Call +49** or write to a***@example.org"},
        ],
        "rows": [
            row(1, "2026-01-05", "EUR 40.00"),
            row(2, "2026-01-06", "EUR 30.00"),
            row(3, "2026-02-01", "EUR 20.00"),
            row(4, "2026-02-02", "EUR 10.00"),
            row(5, "2026-03-01", "EUR 5.50"),
        ],
        "totals": {"subtotal": 105.5, "tax": 5.0, "total": 110.5},
        "values": {"largest": 40.0, "average": 21.67, "open": 2},
        "kpi": {"name": "speed", "value": "12.5 h"},
        "flagged": ["AB-0002"],
        "citations": ["R1", "R3"],
        "actions": [
            {"action": "a", "owner": "Ann", "deadline": "2026-04-01", "next_step": "call"},
            {"action": "b", "owner": "Bob", "deadline": "2026-04-02", "next_step": "write"},
        ],
        "metadata": {"signoffs": [{"role": "manager", "name": "Ann", "date": "2026-03-02"}]},
    }


def change(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Sets the last but one of ``path`` to the last."""

    def made(artefact: Any) -> None:
        for step in path[:-2]:
            artefact = artefact[step]
        artefact[path[-2]] = path[-1]

    return made


def no_change(artefact: dict[str, Any]) -> None:
    return None


CASES: list[tuple[Check, Callable[[dict[str, Any]], None], bool]] = [
    (Check("has_section", "summary"), no_change, True),
    (Check("has_section", "summary"), change("sections", 0, "text", "one two three"), False),
    (Check("has_section", "risks"), no_change, False),
    (Check("min_words", "20"), no_change, False),
    (Check("min_words", "20"), change("body", f"{TEN} {TEN}"), True),
    (Check("min_words", "20"), change("body", f"{TEN} {TEN[:-4]} 12 13"), False),  # numbers are no words
    (Check("max_words", "120"), no_change, True),
    (Check("max_words", "120"), change("body", "word " * 121), False),
    (Check("order_before", "background<analysis"), no_change, True),
    (Check("order_before", "background<analysis"), change("sections", 1, "name", "other"), False),
    (Check("order_before", "background<analysis"), lambda a: a["sections"].reverse(), False),
    (Check("contains_term", "baseline"), no_change, True),
    (Check("contains_term", "baseline"), change("sections", 1, "text", "Baselines only."), False),
    (Check("contains_term", "baseline"), change("title", "BASELINE"), True),
    (Check("forbids_term", "asap"), no_change, True),
    (Check("forbids_term", "asap"), change("body", "Do it ASAP."), False),
    (Check("forbids_term", "asap"), change("body", "Asapath."), True),
    (Check("sum_matches", "subtotal"), no_change, True),
    (Check("sum_matches", "tax"), no_change, True),
    (Check("sum_matches", "total"), no_change, True),
    (Check("sum_matches", "total"), change("totals", "total", 110.504), True),
    (Check("sum_matches", "total"), change("totals", "total", 110.51), False),
    (Check("sum_matches", "subtotal"), change("rows", 0, "amount", "none"), False),
    (Check("sum_matches", "subtotal"), change("rows", 4, "hidden", True), True),
    (Check("row_count", "all"), no_change, False),  # five of six
    (Check("row_count", "top5"), no_change, True),
    (Check("row_count", "top5"), change("rows", 0, "hidden", True), False),
    (Check("row_count", "flagged"), lambda a: a.update(rows=a["rows"][:1]), True),
    (Check("no_duplicates", "id"), no_change, True),
    (Check("no_duplicates", "id"), change("rows", 4, "id", "ab-0001"), False),
    (Check("no_duplicates", "email"), change("rows", 4, "id", "AB-0001"), True),
    (Check("sorted_by", "date"), no_change, True),
    (Check("sorted_by", "date"), change("rows", 0, "date", "05.01.2026"), True),
    (Check("sorted_by", "date"), change("rows", 0, "date", "2026-04-01"), False),
    (Check("sorted_by", "date"), change("rows", 0, "date", "soon"), False),
    (Check("sorted_by", "amount"), no_change, True),
    (Check("sorted_by", "amount"), change("rows", 4, "amount", "EUR 41.00"), False),
    (Check("sorted_by", "id"), change("rows", 1, "id", "ab 1"), True),
    (Check("sorted_by", "id"), change("rows", 0, "id", "AB-0009"), False),
    (Check("date_iso"), no_change, True),
    (Check("date_iso"), change("rows", 0, "date", "2026-1-05"), False),
    (Check("currency_fmt"), no_change, True),
    (Check("currency_fmt"), change("rows", 0, "amount", "EUR 1,234.50"), True),
    (Check("currency_fmt"), change("rows", 0, "amount", "EUR 1234.50"), False),
    (Check("currency_fmt"), change("rows", 0, "amount", "1,234.50 EUR"), False),
    (Check("unit_present", "h"), no_change, True),
    (Check("unit_present", "h"), change("kpi", "value", "12.5"), False),
    (Check("unit_present", "kg"), no_change, False),
    (Check("cites_resource", "1"), no_change, True),
    (Check("cites_resource", "2"), no_change, False),
    (Check("each_row_has", "owner"), no_change, True),
    (Check("each_row_has", "reason"), change("rows", 2, "reason", " "), False),
    (Check("each_row_has", "status"), change("rows", 2, "status", "-"), False),
    (Check("value_equals_input", "largest"), no_change, True),
    (Check("value_equals_input", "average"), change("values", "average", 21.68), False),
    (Check("value_equals_input", "open"), change("values", {}), False),
    (Check("threshold_flagged", "20"), no_change, True),
    (Check("threshold_flagged", "5"), no_change, False),
    (Check("threshold_flagged", "5"), change("flagged", ["AB-0002", "AB-0001"]), True),
    (Check("owner_assigned"), no_change, True),
    (Check("owner_assigned"), change("actions", 1, "owner", ""), False),
    (Check("owner_assigned"), change("actions", []), False),
    (Check("deadline_present"), change("actions", 0, "deadline", ""), False),
    (Check("deadline_present"), no_change, True),
    (Check("next_step_present"), no_change, True),
    (Check("next_step_present"), change("actions", 0, "next_step", "-"), False),
    (Check("signoff_present", "manager"), no_change, True),
    (Check("signoff_present", "legal counsel"), no_change, False),
    (Check("signoff_present", "manager"), change("metadata", "signoffs", 0, "name", ""), False),
    (Check("signoff_present", "manager"), change("metadata", "signoffs", 0, "date", ""), False),
    (Check("pii_masked", "phone"), no_change, True),
    (Check("pii_masked", "phone"), change("body", "Call +493012345678"), False),
    (Check("pii_masked", "iban"), no_change, True),
    (Check("pii_masked", "iban"), change("title", "DE" + "99" + "1234567890123456"), False),
    (Check("pii_masked", "email"), no_change, False),  # the rows show addresses
    (
        Check("pii_masked", "email"),
        lambda a: [one.update(email="p***@example.org") for one in a["rows"]],
        True,
    ),
    (Check("rounding", "2"), no_change, True),
    (Check("rounding", "2"), change("rows", 0, "rate", "2.5"), False),
    (Check("rounding", "0"), no_change, False),
    (Check("rounding", "0"), lambda a: [one.update(rate="3") for one in a["rows"]], True),
    (Check("id_format"), no_change, True),
    # What a person would refuse, or accept.
    (Check("max_words", "120"), change("body", "слово " * 121), False),
    (Check("min_words", "20"), change("body", "élan 你好 " * 10), True),
    (Check("has_section", "summary"), change("sections", 0, "text", TEN[4:]), False),  # nine words
    (Check("no_duplicates", "id"), change("rows", 4, "id", " AB-0001 "), False),
    (Check("no_duplicates", "id"), change("rows", 4, "id", ""), False),
    (Check("no_duplicates", "id"), change("rows", []), False),
    (Check("sorted_by", "date"), change("rows", []), False),
    (Check("date_iso"), change("rows", []), False),
    (Check("date_iso"), change("rows", 0, "date", "2026-13-45"), False),
    (Check("date_iso"), change("rows", 0, "date", "٢٠٢٦-٠١-٠٥"), False),
    (Check("currency_fmt"), change("rows", 0, "amount", "EUR ٤٠.٠٠"), False),
    (Check("id_format"), change("rows", 3, "id", "AB-٠٠٠٤"), False),
    (Check("each_row_has", "owner"), change("rows", 2, "owner", None), False),
    (Check("each_row_has", "owner"), change("rows", 2, "owner", "N/A"), False),
    (Check("each_row_has", "owner"), change("rows", []), False),
    (Check("owner_assigned"), change("actions", 1, "owner", "TBD"), False),
    (Check("owner_assigned"), change("actions", 1, "owner", None), False),
    (Check("signoff_present", "manager"), change("metadata", "signoffs", 0, "name", " "), False),
    (Check("signoff_present", "manager"), change("metadata", "signoffs", 0, "date", "-"), False),
    (Check("unit_present", "h"), change("kpi", "value", "unknown h"), False),
    (Check("unit_present", "h"), change("kpi", "value", "-1,250.5 h"), True),
    (Check("cites_resource", "1"), change("citations", "R12 has it"), False),
    (Check("cites_resource", "1"), change("citations", ["R12"]), False),
    (Check("sum_matches", "total"), change("totals", "total", 10**400), False),
    (Check("value_equals_input", "open"), change("values", "open", True), False),
    (Check("pii_masked", "phone"), change("body", "Call +49 30 123 45 67"), False),
    (Check("pii_masked", "phone"), change("body", "Call 0049 (30) 1234567"), False),
    (Check("pii_masked", "phone"), change("body", "EUR 1,000.50 and 2,000.00 on 2026-01-05"), True),
    (Check("pii_masked", "phone"), change("actions", 0, "next_step", "call +493012345678"), False),
    (Check("pii_masked", "phone"), change("kpi", "value", "+493012345678"), False),
    (Check("pii_masked", "iban"), change("title", "DE99 1234 5678 " + "9012 3456 78"), False),
    (Check("pii_masked", "iban"), change("title", "Order AB12 of 2026"), True),
    (Check("pii_masked", "email"), lambda a: a.update(rows=[], body="x.y+z@example.org"), False),
    (Check("pii_masked", "email"), lambda a: a.update(rows=[]), True),
    (Check("id_format"), change("rows", 3, "id", "AB-004"), False),
]


@pytest.mark.parametrize(("check", "changed", "expected"), CASES)
def test_a_predicate_reads_the_artefact(
    check: Check, changed: Callable[[dict[str, Any]], None], expected: bool
) -> None:
    artefact: Any = copy.deepcopy(written())
    changed(artefact)
    assert CHECKS[check.name].holds(artefact, check.arg, FACTS) is expected


def test_every_check_has_a_true_and_a_false_case() -> None:
    assert {(check.name, expected) for check, _, expected in CASES} == {
        (name, expected) for name in CHECKS for expected in (True, False)
    }


def test_the_limit_of_words_counts_body_and_sections() -> None:
    artefact: Any = written()
    sections = 10 + 5 + 5  # "+49**" has no letter
    artefact["body"] = "word " * (120 - sections)
    assert CHECKS["max_words"].holds(artefact, "120", FACTS)
    artefact["body"] += "word"
    assert not CHECKS["max_words"].holds(artefact, "120", FACTS)


READERS = {
    "title": {"contains_term", "forbids_term", "pii_masked"},
    "body": {"min_words", "max_words", "contains_term", "forbids_term", "pii_masked"},
    "sections": {
        "has_section", "max_words", "order_before", "contains_term", "forbids_term", "pii_masked",
    },
    "rows": {
        "sum_matches", "row_count", "no_duplicates", "sorted_by", "date_iso", "currency_fmt", "id_format",
        "rounding", "each_row_has",
    },
    "totals": {"sum_matches"},
    "values": {"value_equals_input"},
    "kpi": {"unit_present"},
    "flagged": {"threshold_flagged"},
    "citations": {"cites_resource"},
    "actions": {"owner_assigned", "deadline_present", "next_step_present"},
    "metadata": {"signoff_present"},
}  # fmt: skip
"""Part of an artefact → the checks that read it."""


@pytest.mark.parametrize("form", [None, 3, [3], {"a": 1}, "text"])
def test_no_check_is_satisfied_by_a_part_in_another_form(form: Any) -> None:
    for family in (*TRAINING_FAMILIES, *HELD_OUT_FAMILIES):
        task = make_task(family, 6)
        for part, readers in READERS.items():
            if part in ("title", "body") and form == "text":
                continue
            replaced: Any = {**task.compliant, part: form}
            holding = {
                check.name for check, holds in zip(task.active, task.bits(replaced), strict=True) if holds
            }
            assert not holding & readers, (family, part)


@pytest.mark.parametrize("text", ["1" * 200_000, "a." * 200_000, "a@" * 200_000, "+1 " * 100_000])
def test_an_enormous_text_is_read_in_linear_time(text: str) -> None:
    """A quadratic reader would need hours."""
    for name, arg in (("max_words", "120"), *(("pii_masked", kind) for kind in ("email", "iban", "phone"))):
        artefact: Any = written() | {"body": text}
        assert CHECKS[name].holds(artefact, arg, FACTS) in (True, False)


def test_there_are_24_checks_and_every_dimension_has_some() -> None:
    assert len(CHECKS) == 24
    assert {kind.dimension for kind in CHECKS.values()} == set(DIMENSIONS)
    assert sum(len(kind.args) for kind in CHECKS.values()) == 70
    assert describe(Check("min_words", "50")) == "Has the body 50 words or more?"


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("EUR 1,234.50", 1234.5),
        ("1.234,50 €", 1234.5),
        ("1234.50", 1234.5),
        ("-3", -3.0),
        (7, 7.0),
        ("1,234", 1234.0),
    ],
)
def test_amounts_are_read_in_common_formats(cell: object, value: float) -> None:
    assert number(cell) == value


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (Check("sorted_by", "id"), Check("sorted_by", "date"), "reads one part"),
        (Check("min_words", "100"), Check("max_words", "120"), "no room"),
        (Check("pii_masked", "email"), Check("no_duplicates", "email"), "masked"),
        (Check("date_iso"), Check("date_iso"), "the same check"),
        (Check("has_section", "risks"), Check("has_section", "scope"), None),
        (Check("pii_masked", "email"), Check("no_duplicates", "id"), None),
    ],
)
def test_checks_that_change_each_other_are_kept_apart(one: Check, other: Check, reason: str | None) -> None:
    found = conflict(one, other), conflict(other, one)
    assert found == (None, None) if reason is None else all(reason in str(why) for why in found)


def test_an_unknown_check_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="There is no check 'sum_match': did you mean 'sum_matches'"):
        require_known(Check("sum_match", "total"))
    with pytest.raises(ConfigError, match="rounding has no argument '3': give one of '0', '2'"):
        require_known(Check("rounding", "3"))
