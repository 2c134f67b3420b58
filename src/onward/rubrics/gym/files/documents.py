"""Checks of JSON records, Markdown texts, workbooks and Python programs."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable
from typing import Any

from onward.rubrics.gym.files.cells import aggregate, evaluate, evaluate_tree, is_iso_date
from onward.rubrics.gym.files.check import Arguments, Files, declare
from onward.rubrics.gym.files.formats import (
    read_json,
    read_workbook,
    sections,
    table_of,
    words,
    write_json,
    write_workbook,
)
from onward.rubrics.gym.parts import WorkflowError

TOLERANCE = 0.0051
MIN_SECTION = 8
"""Words below which a section counts as missing."""

# JSON records.

Data = dict[str, Any]


def _record(
    name: str,
    dimension: str,
    sentence: str,
    holds: Callable[[Data, Arguments, Files], bool],
    spoil: Callable[[Data, Arguments], Data],
    *arguments: str,
) -> None:
    declare(
        name, dimension, sentence,
        lambda content, given, files: holds(read_json(content), given, files),
        lambda content, given, files: write_json(spoil(read_json(content), given)),
        *arguments,
    )  # fmt: skip


def _figure(data: Data, given: Arguments, files: Files) -> bool:
    expected = aggregate(given["value"], table_of(files, given["source"]))
    return abs(float(data["figures"][given["name"]]) - expected) < TOLERANCE


def _one_more(data: Data, given: Arguments) -> Data:
    name = given["name"]
    return {**data, "figures": {**data["figures"], name: round(data["figures"][name] + 1, 4)}}


_record("figure", "accuracy", "the figure {name} is {value} over {source}", _figure, _one_more,
        "name", "value", "source")  # fmt: skip
_record("signed", "compliance", "a named {role} has signed, with the date",
        lambda data, given, files: (
            data["role"] == given["role"] and bool(data["name"].strip()) and is_iso_date(data["date"])
        ),
        lambda data, given: {**data, "name": ""}, "role")  # fmt: skip
_record("seals", "traceability", "the signature belongs to {document} as it is stored",
        lambda data, given, files: (
            data["document"] == given["document"]
            and data["sha256"] == hashlib.sha256(files.read(given["document"])).hexdigest()
        ),
        lambda data, given: {**data, "sha256": data["sha256"][::-1]}, "document")  # fmt: skip


def _change_item(data: Data, **changes: Any) -> Data:
    return {**data, "items": [{**data["items"][0], **changes}, *data["items"][1:]]}


def _has_evidence(data: Data, given: Arguments, files: Files) -> bool:
    return bool(data["items"]) and all(files.read(item["evidence"]) for item in data["items"])


_record("all_done", "compliance", "every item of the list is done",
        lambda data, given, files: bool(data["items"]) and all(one["done"] is True for one in data["items"]),
        lambda data, given: _change_item(data, done=False))  # fmt: skip
_record("evidence", "traceability", "every item of the list names a file that exists",
        _has_evidence, lambda data, given: _change_item(data, evidence="to-follow.md"))  # fmt: skip

# Markdown texts.


def _text(
    name: str,
    dimension: str,
    sentence: str,
    holds: Callable[[str, Arguments, Files], bool],
    spoil: Callable[[str, Arguments], str],
    *arguments: str,
    order: int = 0,
) -> None:
    declare(
        name, dimension, sentence,
        lambda content, given, files: holds(content.decode(), given, files),
        lambda content, given, files: spoil(content.decode(), given).encode(),
        *arguments, order=order,
    )  # fmt: skip


CONTACT = re.compile(r"[\w.+-]+@[\w-]+\.\w+|\+\d[\d ]{7,}\d")
STEP = re.compile(r"^- (.+) \(owner: (.*), due: (.*)\)$", re.MULTILINE)
FILLER = "In addition, all of the above was noted once more for the record. "


def figure_line(name: str, value: float) -> str:
    """Returns the line of a report that states a figure."""
    return f"- {name.replace('_', ' ')}: {value:,.2f}".removesuffix(".00")


def _states(text: str, given: Arguments, files: Files) -> bool:
    value = read_json(files.read(given["source"]))["figures"][given["name"]]
    return figure_line(given["name"], value) in text.splitlines()


def _misstate(text: str, given: Arguments) -> str:
    start = f"- {given['name'].replace('_', ' ')}: "
    return "\n".join(line + "7" if line.startswith(start) else line for line in text.split("\n"))


_text("section", "completeness", "the section {title} is there and says something",
      lambda text, given, files: words(sections(text).get(given["title"], "")) >= MIN_SECTION,
      lambda text, given: text.replace(f"## {given['title']}\n", "## Other notes\n", 1), "title")  # fmt: skip
_text("states", "accuracy", "the text states the figure {name} as {source} has it", _states, _misstate,
      "name", "source")  # fmt: skip
_text("cites", "traceability", "the text names its source {source}",
      lambda text, given, files: f"[{given['source']}]" in text,
      lambda text, given: text.replace(f"[{given['source']}]", "(source on request)"), "source")  # fmt: skip
_text("at_most", "brevity", "the text has at most {limit} words",
      lambda text, given, files: words(text) <= given["limit"],
      lambda text, given: text + FILLER * (given["limit"] // 12 + 2) + "\n", "limit", order=5)  # fmt: skip
_text("no_contacts", "compliance", "the text shows no e-mail address and no telephone number",
      lambda text, given, files: CONTACT.search(text) is None,
      lambda text, given: text + "Contact: anna.berg" + "@example.org\n", order=4)  # fmt: skip


def _steps_complete(text: str, given: Arguments, files: Files) -> bool:
    steps = STEP.findall(text)
    return bool(steps) and all(owner.strip() and is_iso_date(due) for _, owner, due in steps)


_text("next_steps", "actionability", "each next step has an owner and a date", _steps_complete,
      lambda text, given: re.sub(r"\(owner: [^,]*,", "(owner: ,", text, count=1))  # fmt: skip

# Workbooks.


def _total_holds(content: bytes, given: Arguments, files: Files) -> bool:
    sheets = read_workbook(content)
    original = [name for name in sheets if name in (given["sheet"], f"{given['sheet']} (copy)")]
    stated = next(row[1] for row in sheets["Totals"] if row[0] == f"{given['sheet']}: {given['column']}")
    header, *body = sheets[original[0]]
    place = header.index(given["column"])
    return abs(float(stated) - sum(float(row[place]) for row in body)) < TOLERANCE


def _rename_sheet(content: bytes, given: Arguments, files: Files) -> bytes:
    sheets = read_workbook(content)
    title = given["title"]
    return write_workbook(
        {f"{name} (copy)" if name == title else name: rows for name, rows in sheets.items()}
    )


def _wrong_total(content: bytes, given: Arguments, files: Files) -> bytes:
    sheets = read_workbook(content)
    label = f"{given['sheet']}: {given['column']}"
    sheets["Totals"] = [[row[0], row[1] + 1] if row[0] == label else row for row in sheets["Totals"]]
    return write_workbook(sheets)


declare("sheet", "completeness", "the sheet {title} is there",
        lambda content, given, files: given["title"] in read_workbook(content),
        _rename_sheet, "title")  # fmt: skip
declare("sheet_total", "accuracy", "the total of {column} in {sheet} is the sum of its rows",
        _total_holds, _wrong_total, "sheet", "column")  # fmt: skip

# Python programs: read, never run.


def _program(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise WorkflowError("The program cannot be read: write it in Python.") from None


def _function(text: str) -> ast.FunctionDef:
    for node in _program(text):
        if isinstance(node, ast.FunctionDef):
            return node
    raise WorkflowError("The program has no function: define one.")


def _returns(text: str, given: Arguments, files: Files) -> bool:
    """Evaluates the last expression of the first function on one case, by the arithmetic interpreter."""
    result = _function(text).body[-1]
    if not isinstance(result, ast.Return) or result.value is None:
        return False
    got = evaluate_tree(result.value, given["case"])
    return abs(got - evaluate(given["formula"], given["case"])) < TOLERANCE


def _constant(text: str, given: Arguments, files: Files) -> bool:
    for node in _program(text):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)) if (
                name == given["name"]
            ):
                return value == given["value"]
    return False


_text("function", "completeness", "the program has the function {name}",
      lambda text, given, files: _function(text).name == given["name"],
      lambda text, given: text.replace(f"def {given['name']}(", "def draft("), "name")  # fmt: skip
_text("returns", "accuracy", "the function computes {formula}", _returns,
      lambda text, given: re.sub(r"(?m)^    return (.+)$", r"    return \1 + 1", text),
      "formula", "case")  # fmt: skip
_text("constant", "accuracy", "the constant {name} is {value}", _constant,
      lambda text, given: re.sub(
          rf"(?m)^{given['name']} = .+$", f"{given['name']} = {given['value'] + 1}", text
      ), "name", "value")  # fmt: skip
_text("docstring", "traceability", "the function says what it computes",
      lambda text, given, files: bool(ast.get_docstring(_function(text))),
      lambda text, given: re.sub(r'(?m)^    """.*?"""\n', "", text))  # fmt: skip
