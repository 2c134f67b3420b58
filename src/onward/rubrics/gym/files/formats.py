"""Formats of files: tables (csv, xlsx), JSON, Markdown and Python, each from bytes and back.

Writing is deterministic: the same data gives the same bytes, so that a digest names a content.
"""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from onward.rubrics.gym.files.cells import Row
from onward.rubrics.gym.parts import WorkflowError


def read_table(content: bytes) -> list[Row]:
    """Returns the rows of a csv file. Raises WorkflowError if it is not one."""
    try:
        rows = list(csv.DictReader(io.StringIO(content.decode("utf-8")), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise WorkflowError(f"The table cannot be read ({error}): write it as csv in UTF-8.") from None
    if any(None in row or None in row.values() for row in rows):
        raise WorkflowError(
            "A row of the table does not have as many cells as the header: write one for each."
        )
    return rows


def write_table(rows: Sequence[Mapping[str, str]], columns: Iterable[str] | None = None) -> bytes:
    """Returns ``rows`` as csv. ``columns`` is the header of a table that may have no rows."""
    names = list(columns if columns is not None else rows[0] if rows else ())
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def read_json(content: bytes) -> dict[str, Any]:
    """Returns a JSON object. Raises WorkflowError if the file has none."""
    try:
        data = json.loads(content)
    except ValueError as error:
        raise WorkflowError(f"The file is no JSON ({error}): write an object.") from None
    if not isinstance(data, dict):
        raise WorkflowError("The JSON file has no object at its top: write one.")
    return data


def write_json(data: Mapping[str, Any]) -> bytes:
    """Returns ``data`` as JSON, indented."""
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


_HEADING = re.compile(r"^##? (.+)$", re.MULTILINE)


def sections(text: str) -> dict[str, str]:
    """Returns the headings of a Markdown text with the text below each."""
    parts = _HEADING.split(text)
    return {title.strip(): body.strip() for title, body in zip(parts[1::2], parts[2::2], strict=True)}


def words(text: str) -> int:
    """Returns the number of words in ``text``."""
    return len(re.findall(r"[^\W_]+(?:[-'.,/][^\W_]+)*", text))


Sheets = dict[str, list[list[Any]]]
_FIXED = (1980, 1, 1, 0, 0, 0)
_MODIFIED = re.compile(rb"(<dcterms:(created|modified)[^>]*>)[^<]*")


def write_workbook(sheets: Sheets) -> bytes:
    """Returns sheets as xlsx, without the time of writing in it. Needs the extra ``rubrics``."""
    from openpyxl import Workbook

    book = Workbook()
    if book.active is not None:
        book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    raw, out = io.BytesIO(), io.BytesIO()
    book.save(raw)
    with zipfile.ZipFile(raw) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "docProps/core.xml":
                content = _MODIFIED.sub(rb"\g<1>2026-01-01T00:00:00Z", content)
            target.writestr(zipfile.ZipInfo(name, _FIXED), content)
    return out.getvalue()


def read_workbook(content: bytes) -> Sheets:
    """Returns the sheets of an xlsx file. Needs the extra ``rubrics``. Raises WorkflowError if it is none."""
    from openpyxl import load_workbook

    try:
        book = load_workbook(io.BytesIO(content), read_only=True, data_only=True)
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise WorkflowError(f"The workbook cannot be read ({error}): write it as xlsx.") from None
    return {
        sheet.title: [list(row) for row in sheet.iter_rows(values_only=True)] for sheet in book.worksheets
    }


class Files(Protocol):
    """Files by name, such as those of a workflow."""

    def read(self, name: str) -> bytes: ...


def table_of(files: Files, name: str) -> list[Row]:
    """Returns the rows of a csv file, or of the first sheet of an xlsx file."""
    if not name.endswith(".xlsx"):
        return read_table(files.read(name))
    header, *body = next(iter(read_workbook(files.read(name)).values()))
    return [{str(key): str(cell) for key, cell in zip(header, row, strict=True)} for row in body]
