"""Checks of files, one by one, on contents written by hand; and the small interpreter of expressions."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from onward.rubrics.gym.files import CHECKS, Requirement
from onward.rubrics.gym.files.cells import aggregate, evaluate, is_iso_date, iso_date, matches
from onward.rubrics.gym.files.formats import write_workbook
from onward.rubrics.gym.parts import WorkflowError


class Folder:
    def __init__(self, **files: str | bytes) -> None:
        self.files = {name.replace("__", "."): text.encode() if isinstance(text, str) else text
                      for name, text in files.items()}  # fmt: skip

    def read(self, name: str) -> bytes:
        if name not in self.files:
            raise WorkflowError("missing")
        return self.files[name]


SOURCE = "id,kind,net\nA,x,10\nB,y,20\nC,x,30\n"
SHEETS = write_workbook({"Rows": [["id", "net"], ["A", 10.0], ["B", 5.5]], "Totals": [["total", "value"],
                         ["Rows: net", 15.5]]})  # fmt: skip
WRONG_SHEETS = write_workbook({"Other": [["id", "net"], ["A", 10.0]], "Totals": [["Rows: net", 15.0]]})
PROGRAM = 'RATE = 0.1\n\n\ndef fee(x):\n    """Returns the fee."""\n    return x * (1 - RATE)\n'
SEAL = {"document": "s.csv", "sha256": hashlib.sha256(SOURCE.encode()).hexdigest()}
SIGNED = {"role": "lawyer", "name": "Ada", "date": "2026-02-03"}
DONE = {"items": [{"item": "a", "done": True, "evidence": "s.csv"}]}
TEXT = (
    "# T\n\n## Risk\none two three four five six seven eight\n- net: 60\n[s.csv]\n"
    "- Go (owner: Ada, due: 2026-01-02)\n"
)

CASES: list[tuple[str, str, dict[str, Any], Any, Any]] = [
    ("unique", "f.csv", {"column": "id"}, "id\nA\nB\n", "id\nA\nA\n"),
    ("iso_dates", "f.csv", {"column": "d"}, "d\n2026-02-28\n", "d\n2026-02-30\n"),
    ("filled", "f.csv", {"column": "o"}, "o,p\nA,1\n", "o,p\n ,1\n"),
    ("two_decimals", "f.csv", {"column": "n"}, "n\n1.50\n", "n\n1.5\n"),
    ("masked", "f.csv", {"column": "m"}, "m\na***@x.org\n", "m\nada@x.org\n"),
    ("sorted_by", "f.csv", {"column": "n"}, "n\n10\n9\n9\n", "n\n9\n10\n"),
    ("keeps_all", "f.csv", {"column": "id", "source": "s.csv", "where": "kind == x"},
     "id\nC\nA\n", "id\nA\n"),
    ("only", "f.csv", {"source": "s.csv", "where": "net > 15"}, "net\n20\n", "net\n20\n15\n"),
    ("row_count", "f.csv", {"rows": 2, "source": "s.csv"}, "id\nA\nB\n", "id\nA\nB\nC\n"),
    ("row_count", "f.csv", {"rows": 9, "source": "s.csv"}, "id\nA\nB\nC\n", "id\nA\nB\n"),
    ("computed", "f.csv", {"column": "t", "formula": "a * b"}, "a,b,t\n2,3,6.00\n", "a,b,t\n2,3,6.01\n"),
    ("looked_up", "f.csv", {"column": "net", "key": "id", "source": "s.csv"},
     "id,net\nB,20\n", "id,net\nB,21\n"),
    ("flagged", "f.csv", {"column": "f", "where": "n > 1"}, "n,f\n2,yes\n1,no\n", "n,f\n2,no\n1,no\n"),
    ("group_sums", "f.csv", {"column": "sum", "by": "kind", "value": "sum net", "source": "s.csv"},
     "kind,sum\nx,40\n", "kind,sum\nx,41\n"),
    ("in_order", "f.csv", {}, "start,end\n2026-01-01,2026-01-03\n2026-01-03,2026-01-04\n",
     "start,end\n2026-01-01,2026-01-03\n2026-01-02,2026-01-04\n"),
    ("ends_by", "f.csv", {"date": "2026-01-04"}, "start,end\n2026-01-01,2026-01-04\n",
     "start,end\n2026-01-01,2026-01-05\n"),
    ("figure", "f.json", {"name": "t", "value": "sum net", "source": "s.csv"}, {"figures": {"t": 60}},
     {"figures": {"t": 61}}),
    ("signed", "f.json", {"role": "lawyer"}, SIGNED, {**SIGNED, "name": " "}),
    ("signed", "f.json", {"role": "lawyer"}, SIGNED, {**SIGNED, "role": "clerk"}),
    ("seals", "f.json", {"document": "s.csv"}, SEAL, {**SEAL, "sha256": "0" * 64}),
    ("all_done", "f.json", {}, DONE, {"items": [{"done": "yes"}]}),
    ("evidence", "f.json", {}, DONE, {"items": [{"evidence": "later.md"}]}),
    ("section", "f.md", {"title": "Risk"}, TEXT, TEXT.replace("Risk", "Risks")),
    ("section", "f.md", {"title": "Risk"}, TEXT, "## Risk\nnone\n"),
    ("states", "f.md", {"name": "net", "source": "n.json"}, TEXT, TEXT.replace("net: 60", "net: 600")),
    ("cites", "f.md", {"source": "s.csv"}, TEXT, TEXT.replace("[s.csv]", "s.csv")),
    ("at_most", "f.md", {"limit": 3}, "one two three", "one two three four"),
    ("no_contacts", "f.md", {}, "Write to us.", "Write to ada" + "@example.org."),
    ("no_contacts", "f.md", {}, "Order 2026-01-02, 12 000 pieces.", "Call +43 660 1234567."),
    ("next_steps", "f.md", {}, TEXT, TEXT.replace("Ada", "")),
    ("next_steps", "f.md", {}, TEXT, "No steps."),
    ("sheet", "f.xlsx", {"title": "Rows"}, SHEETS, WRONG_SHEETS),
    ("sheet_total", "f.xlsx", {"sheet": "Rows", "column": "net"}, SHEETS, write_workbook(
        {"Rows": [["id", "net"], ["A", 10.0]], "Totals": [["Rows: net", 15.5]]})),
    ("function", "f.py", {"name": "fee"}, PROGRAM, PROGRAM.replace("fee", "cost")),
    ("returns", "f.py", {"formula": "x - x * RATE", "case": {"x": 20, "RATE": 0.1}}, PROGRAM,
     PROGRAM.replace("1 - RATE", "1 + RATE")),
    ("constant", "f.py", {"name": "RATE", "value": 0.1}, PROGRAM, PROGRAM.replace("0.1", "0.2")),
    ("docstring", "f.py", {}, PROGRAM, "def fee(x):\n    return x\n"),
]  # fmt: skip


def content(value: Any) -> str | bytes:
    return value if isinstance(value, str | bytes) else json.dumps(value)


@pytest.mark.parametrize(("check", "file", "given", "good", "bad"), CASES, ids=lambda value: str(value)[:20])
def test_a_check_holds_for_the_good_file_alone(
    check: str, file: str, given: dict[str, Any], good: Any, bad: Any
) -> None:
    requirement = Requirement.of(file, check, **given)
    others = {"s__csv": SOURCE, "n__json": json.dumps({"figures": {"net": 60.0}})}
    key = file.replace(".", "__")
    assert requirement.holds(Folder(**others, **{key: content(good)}))
    assert not requirement.holds(Folder(**others, **{key: content(bad)}))
    for damaged in (b"", b"\xff\xfe", b"{", b"a,b\n1\n", b"def"):
        assert isinstance(requirement.holds(Folder(**others, **{key: damaged})), bool)
    assert not requirement.holds(Folder(**others))


def test_every_check_has_a_case_and_a_sentence() -> None:
    assert {case[0] for case in CASES} == set(CHECKS)
    one = Requirement.of("a.csv", "unique", column="id")
    assert (one.id, one.sentence) == ("unique(a.csv, id)", "a.csv: no id appears twice")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("a + 2 * b", 8.0), ("(a - b) / 4", -0.25), ("max(0, a - b)", 0.0), ("-a", -2.0), ("abs(a - b)", 1.0)],
)
def test_arithmetic_is_pythons(expression: str, expected: float) -> None:
    assert evaluate(expression, {"a": "2", "b": 3}) == expected


@pytest.mark.parametrize(
    "expression",
    ["__import__('os')", "a.real", "a ** 9", "a[0]", "lambda: 1", "c", "'x' * 3", "a if b else a", "max",
     "a +", "a / (b - 3)", "True", "(a := 3)", "max(a, key=b)"],
)  # fmt: skip
def test_anything_else_is_refused(expression: str) -> None:
    with pytest.raises(WorkflowError):
        evaluate(expression, {"a": 2.0, "b": 3.0})


def test_conditions_compare_numbers_as_numbers_and_dates_in_either_form() -> None:
    row = {"n": "9", "d": "03/01/2026", "k": "x", "m": "10"}
    assert matches("n < 10 and k == x", row)
    assert matches("n < m", row)
    assert matches("d < 2026-01-04", row)
    assert not matches("d == 2026-03-01", row)
    assert matches("", row)
    for wrong in ("n", "z == 1", "n <> 3"):
        with pytest.raises(WorkflowError, match="column op value"):
            matches(wrong, row)


def test_aggregates_by_hand() -> None:
    rows = [{"k": "x", "n": "1"}, {"k": "y", "n": "2"}, {"k": "x", "n": "6"}]
    found = {text: aggregate(text, rows) for text in (
        "count", "count if k == x", "share if k == x", "sum n", "sum 2 * n if k == x", "mean n", "min n",
        "max n", "sum n if k == z", "mean n if k == z",
    )}  # fmt: skip
    assert list(found.values()) == pytest.approx([3, 2, 2 / 3, 9, 14, 3, 1, 6, 0, 0])
    with pytest.raises(WorkflowError, match="aggregate 'median n' is unknown"):
        aggregate("median n", rows)


def test_dates() -> None:
    assert iso_date("05/12/2026") == "2026-12-05"
    assert iso_date("2026-12-05") == "2026-12-05"
    assert [is_iso_date(text) for text in ("2026-02-29", "2024-02-29", "2024-2-9", "")] == [
        False, True, False, False,
    ]  # fmt: skip
