"""Operations that write records, reports, workbooks and programs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from onward.rubrics.gym.files import Requirement
from onward.rubrics.gym.files.cells import aggregate, iso_date, number
from onward.rubrics.gym.files.documents import figure_line
from onward.rubrics.gym.files.formats import read_json, table_of, write_json, write_workbook
from onward.rubrics.gym.parts import Task, WorkflowError
from onward.rubrics.gym.work.operation import Job, declare

Wanted = Iterator[Requirement]


def figures(job: Job) -> bytes:
    """A record of ``figures``: name → aggregate over the table."""
    rows = job.table()
    found = {name: round(aggregate(value, rows), 4) for name, value in job.given["figures"].items()}
    return write_json({"source": job.task.inputs[0], "figures": found})


def _figures(task: Task) -> Wanted:
    for name, value in task.arguments["figures"].items():
        yield Requirement.of(task.outputs[0], "figure", name=name, value=value, source=task.inputs[0])


declare("figures", figures, _figures)


def report(job: Job) -> bytes:
    """A Markdown report: figures with their sources, sections, next steps from a table with owner and due."""
    lines = [f"# {job.task.name}", "", "## Key figures"]
    known: dict[str, str] = {}
    for name in job.task.inputs:
        if name.endswith(".json") and "figures" in (record := read_json(job.files.read(name))):
            lines += [figure_line(key, value) for key, value in record["figures"].items()]
            known |= {key: f"{value:,.2f}".removesuffix(".00") for key, value in record["figures"].items()}
    lines += ["", "The figures come from " + ", ".join(f"[{name}]" for name in job.task.inputs) + "."]
    for title, text in job.given["sections"].items():
        try:
            body = text.format(**known)
        except KeyError as error:
            raise WorkflowError(
                f"The section {title!r} of {job.task.id!r} uses the figure {error.args[0]!r}, "
                "which no input has: add it to a task with the operation figures."
            ) from None
        lines += ["", f"## {title}", body]
    if "steps" in job.given:
        lines += ["", "## Next steps", "Each step below has one owner, who reports when it is done."]
        lines += _steps(job, **job.given["steps"])
    return ("\n".join(lines) + "\n").encode()


def _steps(job: Job, file: str, column: str, verb: str, most: int = 3) -> list[str]:
    return [
        f"- {verb} {row[column]} (owner: {row['owner'] or job.people[0].name}, due: {iso_date(row['due'])})"
        for row in table_of(job.files, file)[:most]
    ]


def _report(task: Task) -> Wanted:
    file, given = task.outputs[0], task.arguments
    for title in given["sections"]:
        yield Requirement.of(file, "section", title=title)
    for source in task.inputs:
        yield Requirement.of(file, "cites", source=source)
    for source, name in given.get("states", ()):
        yield Requirement.of(file, "states", source=source, name=name)
    yield Requirement.of(file, "at_most", limit=given["limit"])
    yield Requirement.of(file, "no_contacts")
    if "steps" in given:
        yield Requirement.of(file, "next_steps")


declare("report", report, _report)


def sign(job: Job) -> bytes:
    """A signature: ``role``, name and ``date``, with the SHA-256 of the document as it is stored."""
    document = job.task.inputs[0]
    return write_json({
        "document": document, "sha256": hashlib.sha256(job.files.read(document)).hexdigest(),
        "role": job.given["role"], "name": job.person(job.given["role"]), "date": job.given["date"],
    })  # fmt: skip


def _sign(task: Task) -> Wanted:
    yield Requirement.of(task.outputs[0], "signed", role=task.arguments["role"])
    yield Requirement.of(task.outputs[0], "seals", document=task.inputs[0])


declare("sign", sign, _sign)


def checklist(job: Job) -> bytes:
    """A list of ``items``, each done, with one of the input files as evidence."""
    inputs = job.task.inputs
    items = [
        {"item": text, "done": True, "evidence": inputs[place % len(inputs)]}
        for place, text in enumerate(job.given["items"])
    ]
    return write_json({"items": items})


def _checklist(task: Task) -> Wanted:
    yield Requirement.of(task.outputs[0], "all_done")
    yield Requirement.of(task.outputs[0], "evidence")


declare("checklist", checklist, _checklist)


def _cell(text: str) -> Any:
    try:
        return number(text)
    except WorkflowError:
        return text


def workbook(job: Job) -> bytes:
    """A workbook: a sheet for each table (``sheets``: title → column to add up), and one of the totals."""
    sheets: dict[str, list[list[Any]]] = {}
    totals: list[list[Any]] = [["total", "value"]]
    for place, (title, column) in enumerate(job.given["sheets"].items()):
        rows = job.table(place)
        sheets[title] = [list(rows[0]), *([_cell(cell) for cell in row.values()] for row in rows)]
        totals.append([f"{title}: {column}", round(aggregate(f"sum {column}", rows), 2)])
    return write_workbook({**sheets, "Totals": totals})


def _workbook(task: Task) -> Wanted:
    for title, column in task.arguments["sheets"].items():
        yield Requirement.of(task.outputs[0], "sheet", title=title)
        yield Requirement.of(task.outputs[0], "sheet_total", sheet=title, column=column)


declare("workbook", workbook, _workbook)


def script(job: Job) -> bytes:
    """A Python program: constants, and one function that returns ``formula`` over its parameters."""
    given = job.given
    constants = "".join(f"{name} = {value!r}\n" for name, value in given.get("constants", {}).items())
    parameters = ", ".join(name for name in given["case"] if name not in given.get("constants", {}))
    text = (
        f'"""{job.task.name}."""\n\n{constants}\n\ndef {given["function"]}({parameters}):\n'
        f'    """Returns {given["formula"]}."""\n    return {given["formula"]}\n'
    )
    return text.encode()


def _script(task: Task) -> Wanted:
    file, given = task.outputs[0], task.arguments
    yield Requirement.of(file, "function", name=given["function"])
    yield Requirement.of(file, "returns", formula=given["formula"], case=given["case"])
    yield Requirement.of(file, "docstring")
    for name, value in given.get("constants", {}).items():
        yield Requirement.of(file, "constant", name=name, value=value)


declare("script", script, _script)
