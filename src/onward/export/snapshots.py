"""Export of a frozen dataset to a file or a folder. Rows that differ from their hashes are never exported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onward import extras
from onward.errors import TamperedError
from onward.export import writers
from onward.export.run import EXTRA
from onward.files import write_whole
from onward.training.data import snapshots
from onward.warehouse import Objects

FORMATS: dict[str, str] = {
    "jsonl": "the rows byte for byte, as 'onward train --data' reads them",
    "parquet": "one row of typed columns each, the whole row beside them",
    "datasets": "a folder for datasets.load_from_disk",
}
_NEEDS = {"parquet": "pyarrow", "datasets": "datasets"}
COLUMNS: dict[str, str] = {
    "trajectory_id": "string",
    "session_id": "string",
    "task_type": "string",
    "group_key": "string",
    "outcome": "float64",
    "success": "bool",
    "unparsable": "bool",
    "raw_total": "float64",
    "staleness": "int32",
    "answers": "int32",
    "sampled_tokens": "int64",
    "row": "string",
}
"""Column → its type. ``row`` is the whole row as JSON text: token ids, log-probs, messages."""


async def export(objects: Objects, name: str, form: str, out: Path) -> int:
    """Writes the rows of a snapshot; returns their number. Raises TamperedError for rows that are not as they
    were stored, ObjectError."""
    faults = await snapshots.verify(objects, name)
    if faults:
        raise TamperedError(
            f"Dataset {name[:12]} is not as it was stored ({faults[0]}): 'onward datasets rebuild "
            f"{name[:12]}' brings the rows back if the source still has them."
        )
    description = await snapshots.load(objects, name)
    body = await snapshots.rows(objects, description)
    if hashlib.sha256(body).hexdigest() != description["rows_sha256"]:
        raise TamperedError(f"Dataset {name[:12]} was changed while it was exported: nothing was written.")
    lines = body.splitlines()
    if form == "jsonl":
        write_whole(out, body, 0o600)
        return len(lines)
    write = writers.parquet if form == "parquet" else writers.dataset
    with write(out, COLUMNS) as put:
        for line in lines:
            put(columns(line.decode(), json.loads(line)))
    return len(lines)


def check_extra(form: str) -> None:
    """Raises MissingExtraError if the library that writes ``form`` is not installed."""
    module = _NEEDS.get(form)
    if module is not None:
        extras.require(EXTRA, module, f"The format {form!r}")


def columns(text: str, line: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of one row."""
    calls = line.get("calls", ())
    direct = {name: line.get(name) for name in COLUMNS if name not in ("answers", "sampled_tokens", "row")}
    messages = [one for one in line.get("messages", ()) if one["role"] == "assistant"]
    return direct | {
        "answers": len(calls) or len(messages),
        "sampled_tokens": sum(len(call["token_ids"]) for call in calls),
        "row": text,
    }
