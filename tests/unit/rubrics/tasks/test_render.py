"""Inputs and artefacts as files that people open."""

from __future__ import annotations

import csv
import json
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from onward.rubrics.tasks import make_task
from onward.rubrics.tasks.render import markdown, workbook, write_files

SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def read_sheet(path: Path, number: int) -> list[list[str]]:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            ElementTree.fromstring(archive.read(name))
        rows = ElementTree.fromstring(archive.read(f"xl/worksheets/sheet{number}.xml")).iter(f"{SHEET}row")
        return [["".join(cell.itertext()) for cell in row] for row in rows]


def test_a_task_is_written_as_files_of_each_kind(tmp_path: Path) -> None:
    task = make_task("invoice_po_reconciliation", 2)
    files = write_files(task, task.compliant, tmp_path / "out")
    assert [path.name for path in files] == [
        "brief.md", "artefact.md", "artefact.json", "artefact.csv", "artefact.xlsx",
        "R1 invoices.csv", "R2 purchase orders.csv", "R3 payment policy.md",
    ]  # fmt: skip
    assert json.loads(files[2].read_text()) == task.compliant
    rows = list(csv.DictReader(files[3].open()))
    assert [row["id"] for row in rows] == [row["id"] for row in task.compliant["rows"]]
    sheet = read_sheet(files[4], 1)
    assert [row[0] for row in sheet[1:]] == [row["id"] for row in rows]
    assert sheet[1][3] == rows[0]["amount"]
    assert len(read_sheet(files[4], 2)) == 1 + len(task.compliant["actions"])
    assert len(list(csv.reader(files[5].open()))) == 1 + task.facts.items
    assert "is flagged" in files[7].read_text()


def test_a_hidden_row_is_in_the_annex_alone() -> None:
    task = make_task("lab_sample_log", 1)
    place = [check.name for check in task.active].index("row_count")
    built = task.build(np.arange(11) != place)
    text, last = markdown(built), built["rows"][-1]["id"]
    shown, _, annex = text.partition("## Annex")
    assert last in annex and f"| {last}" not in shown
    assert "## Annex" not in markdown(task.compliant)


def test_a_workbook_keeps_numbers_and_escapes_text(tmp_path: Path) -> None:
    path = tmp_path / "book.xlsx"
    sheets = {"a & b": [["name", "value"], ["<x> & y", 2.5]], "empty": []}
    path.write_bytes(workbook(sheets))
    assert path.read_bytes() == workbook(sheets)
    assert read_sheet(path, 1) == [["name", "value"], ["<x> & y", "2.5"]]
    assert read_sheet(path, 2) == []
    with zipfile.ZipFile(path) as archive:
        assert b"<c><v>2.5</v></c>" in archive.read("xl/worksheets/sheet1.xml")
        names = [
            one.get("name")
            for one in ElementTree.fromstring(archive.read("xl/workbook.xml")).iter(f"{SHEET}sheet")
        ]
    assert names == ["a & b", "empty"]


def test_a_workbook_with_any_cell_can_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "book.xlsx"
    path.write_bytes(workbook({"a": [["bell \x07 and \ud800"], [float("nan")], [float("-inf")], [True]]}))
    assert read_sheet(path, 1) == [["bell \ufffd and \ufffd"], ["nan"], ["-inf"], ["True"]]


def test_a_line_break_in_a_cell_leaves_the_table_whole() -> None:
    task = make_task("lab_sample_log", 1)
    rows = [{**row, "name": "two\nlines | bar"} for row in task.compliant["rows"]]
    text = markdown({**task.compliant, "rows": rows})
    assert text.count("| two lines \\| bar |") == len(rows)
