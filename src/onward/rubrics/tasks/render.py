"""Files for people: inputs and artefacts as Markdown, CSV, JSON and Excel workbooks."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from xml.sax.saxutils import escape

from onward.files import make_folder, write_whole
from onward.rubrics.tasks.artefacts import Artefact
from onward.rubrics.tasks.inputs import TaskInput
from onward.rubrics.tasks.task import RubricTask

Rows = Sequence[Sequence[object]]


def markdown(artefact: Artefact) -> str:
    """Returns the artefact as a document: text, shown rows, figures, actions, approvals, annex."""
    shown, hidden = (
        [row for row in artefact["rows"] if bool(row.get("hidden")) == annex] for annex in (False, True)
    )
    parts = [f"# {artefact['title']}", artefact["body"]]
    parts += [f"## {one['name'].capitalize()}\n\n{one['text']}" for one in artefact["sections"]]
    parts += ["## Items\n\n" + _pipe_table(_cells(shown))]
    figures = [
        f"- {name}: {value}" for part in ("totals", "values") for name, value in artefact[part].items()
    ]
    figures.append(f"- {artefact['kpi']['name']}: {artefact['kpi']['value']}")
    figures.append(f"- flagged: {', '.join(artefact['flagged']) or 'none'}")
    figures.append("- sources: " + " ".join(f"[{name}]" for name in artefact["citations"]))
    parts += [
        "## Figures\n\n" + "\n".join(figures),
        "## Actions\n\n" + _pipe_table(_cells(artefact["actions"])),
    ]
    parts.append("## Approvals\n\n" + _pipe_table(_cells(artefact["metadata"].get("signoffs", []))))
    if hidden:
        parts.append("## Annex\n\n" + _pipe_table(_cells(hidden)))
    return "\n\n".join(parts) + "\n"


def csv_text(rows: Rows) -> str:
    """Returns rows as CSV, the first with the titles."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def workbook(sheets: Mapping[str, Rows]) -> bytes:
    """Returns an Excel workbook with one sheet per entry; numbers are numbers, all else is text."""
    names = list(sheets)
    files = {
        "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Override PartName="/xl/workbook.xml" ContentType="application/vnd.openxmlformats-officedocument.'
        'spreadsheetml.sheet.main+xml"/>'
        + "".join(
            f'<Override PartName="/xl/worksheets/sheet{at}.xml" ContentType="application/vnd.openxmlformats-'
            'officedocument.spreadsheetml.worksheet+xml"/>'
            for at in range(1, len(names) + 1)
        )
        + "</Types>",
        "_rels/.rels": _relations([("officeDocument", "xl/workbook.xml")]),
        "xl/_rels/workbook.xml.rels": _relations(
            [("worksheet", f"worksheets/sheet{at}.xml") for at in range(1, len(names) + 1)]
        ),
        "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>'
        + "".join(
            f'<sheet name="{escape(name[:31], {chr(34): "&quot;"})}" sheetId="{at}" r:id="rId{at}"/>'
            for at, name in enumerate(names, 1)
        )
        + "</sheets></workbook>",
    } | {f"xl/worksheets/sheet{at}.xml": _sheet(sheets[name]) for at, name in enumerate(names, 1)}
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            stamped = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            archive.writestr(stamped, '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>' + text)
    return data.getvalue()


def write_files(task: RubricTask, artefact: Artefact, folder: Path) -> list[Path]:
    """Writes the inputs of a task and one artefact into ``folder`` and returns the files."""
    make_folder(folder)
    rows = _cells(artefact["rows"])
    sheets = {"items": rows, "actions": _cells(artefact["actions"])}
    contents: dict[str, bytes] = {
        "brief.md": (task.brief + "\n").encode(),
        "artefact.md": markdown(artefact).encode(),
        "artefact.json": (json.dumps(artefact, indent=1) + "\n").encode(),
        "artefact.csv": csv_text(rows).encode(),
        "artefact.xlsx": workbook(sheets),
    }
    for resource in task.resources:
        contents[f"{resource.id} {resource.name}.{'csv' if resource.rows else 'md'}"] = resource_text(
            resource
        ).encode()
    for name, data in contents.items():
        write_whole(folder / name, data)
    return [folder / name for name in contents]


def resource_text(resource: TaskInput) -> str:
    """Returns a resource as text: CSV for a table, else its document."""
    return csv_text([resource.columns, *resource.rows]) if resource.rows else resource.text + "\n"


_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML document can have."""


def _relations(targets: Iterable[tuple[str, str]]) -> str:
    inner = "".join(
        f'<Relationship Id="rId{at}" Type="{_OFFICE}/{kind}" Target="{target}"/>'
        for at, (kind, target) in enumerate(targets, 1)
    )
    schema = "http://schemas.openxmlformats.org/package/2006/relationships"
    return f'<Relationships xmlns="{schema}">{inner}</Relationships>'


def _sheet(rows: Rows) -> str:
    lines = "".join(f"<row>{''.join(map(_cell, row))}</row>" for row in rows)
    return f'<worksheet xmlns="{_MAIN}"><sheetData>{lines}</sheetData></worksheet>'


def _cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
        return f"<c><v>{value}</v></c>"
    text = escape(_NO_XML.sub("\ufffd", str(value)))
    return f'<c t="inlineStr"><is><t xml:space="preserve">{text}</t></is></c>'


def _cells(rows: Sequence[Mapping[str, object]]) -> list[list[object]]:
    titles = [name for name in (rows[0] if rows else {}) if name != "hidden"]
    return [list(titles), *([row.get(name, "") for name in titles] for row in rows)]


def _pipe_table(cells: Sequence[Sequence[object]]) -> str:
    head, *rest = [
        " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in row) for row in cells
    ]
    rule = " | ".join("---" for _ in cells[0])
    return "\n".join(f"| {line} |" for line in (head, rule, *rest))
