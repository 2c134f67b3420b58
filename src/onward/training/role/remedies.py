"""Differences of the next attempt, by the code of the error that ended the last one.

OOM: half the batch. CONVERGENCE: half the learning rate. DATA: the frozen rows are validated again, and bad
ones dropped and counted; likewise UNKNOWN, which a bad row may cause. A change of numbers or rows starts the
training anew, since its steps are other ones; otherwise an attempt continues from the saved state.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from onward.files import write_whole
from onward.training.data import dataset, frozen
from onward.training.job import steps
from onward.training.role.job_table import JobRecord
from onward.training.spec.request import JobSpec

SPEC = "spec.json"
LEAST_RATE = 1e-9
"""Learning rate below which halving it again is no remedy."""
_OWN_RUN = ("state", "kept", steps.FOLDER)
"""Folders of a run with certain numbers on certain rows."""
NO_ROWS = "It has no frozen rows to validate again."
TokenIds = list[Annotated[int, Field(ge=0)]]


@dataclass(frozen=True)
class Remedy:
    """A change of the next attempt. ``fields`` are those of the job's record."""

    sentence: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


async def find(code: str, record: JobRecord, folder: Path) -> Remedy | str:
    """Returns the remedy for an attempt that ended with ``code``, or a sentence why there is none. ``folder``
    is the job's."""
    ended = f"Attempt {record.attempt} ended with {code}"
    if code in ("DATA", "UNKNOWN"):
        if not (folder / frozen.MARKER).is_file():
            return NO_ROWS if code == "DATA" else Remedy()
        found = await asyncio.to_thread(_validated, folder, ended)
        return found if code == "DATA" or isinstance(found, Remedy) else Remedy()
    if code not in ("OOM", "CONVERGENCE"):
        return Remedy()
    try:
        spec = JobSpec.model_validate_json((folder / SPEC).read_bytes())
    except (OSError, ValidationError):
        return Remedy()  # it ended before its numbers were written
    if code == "OOM":
        half = max(1, spec.batch_rows // 2)
        if half == spec.batch_rows:
            return "The batch is 1 and cannot be halved."
        sentence = f"{ended}: the batch is {half} instead of {spec.batch_rows}, and micro-batches are halved."
        return Remedy(sentence, {"batch_halvings": record.batch_halvings + 1})
    half_rate = spec.learning_rate / 2
    if half_rate < LEAST_RATE:
        return f"The learning rate is {spec.learning_rate:g}: halving it again would not help."
    sentence = f"{ended}: the learning rate is {half_rate:g} instead of {spec.learning_rate:g}."
    return Remedy(sentence, {"rate_halvings": record.rate_halvings + 1})


def adjusted(spec: JobSpec, record: JobRecord) -> JobSpec:
    """Returns the spec with the numbers that earlier attempts of the job made necessary."""
    share = 2**record.batch_halvings
    plan = spec.environment
    return spec.model_copy(
        update={
            "batch_rows": max(1, spec.batch_rows // share),
            "micro_batch_tokens": max(1, spec.micro_batch_tokens // share),
            "learning_rate": spec.learning_rate / 2**record.rate_halvings,
            "environment": plan
            and plan.model_copy(update={"concurrency": max(1, plan.concurrency // share)}),
        }
    )


def write_spec(folder: Path, spec: JobSpec) -> None:
    """Writes ``spec.json``. The state of an attempt with other numbers is removed first."""
    path = folder / SPEC
    try:
        before = JobSpec.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        before = spec
    if (before.batch_rows, before.learning_rate) != (spec.batch_rows, spec.learning_rate):
        _start_anew(folder)
    write_whole(path, spec.model_dump_json(indent=1).encode())


def _start_anew(folder: Path) -> None:
    for name in _OWN_RUN:
        shutil.rmtree(folder / name, ignore_errors=True)


class _Call(BaseModel):
    """A sampled answer of a row, as far as a child needs it."""

    prompt_ids: TokenIds | None
    token_ids: TokenIds
    logprobs: list[FiniteFloat] | None


class _Row(BaseModel):
    """A row of the dataset, as far as a child needs it."""

    trajectory_id: str
    task_type: str
    group_key: str | None
    outcome: FiniteFloat | None
    raw_total: FiniteFloat | None
    success: bool | None
    unparsable: bool
    calls: list[_Call] = Field(default_factory=list)
    messages: list[dict[str, Any]] = Field(default_factory=list)


def _is_good(row: bytes) -> bool:
    try:
        return bool(_Row.model_validate_json(row, strict=False).trajectory_id)
    except ValidationError:
        return False


def _validated(folder: Path, ended: str) -> Remedy | str:
    """Validates the frozen rows again. Rows that are not those that were frozen are frozen anew; of others,
    the bad ones are dropped."""
    marker, path = folder / frozen.MARKER, folder / dataset.FILE
    try:
        made = json.loads(marker.read_bytes())
        if made.get("dataset_sha256") is None:
            return NO_ROWS
        body = path.read_bytes() if path.is_file() else b""
    except (OSError, ValueError):
        return "The frozen rows cannot be read."
    if hashlib.sha256(body).hexdigest() != made.get("dataset_sha256"):
        marker.unlink()
        _start_anew(folder)
        return Remedy(f"{ended}: the rows on disk were damaged, and are frozen anew.")
    rows = body.splitlines(keepends=True)
    good = [row for row in rows if _is_good(row)]
    bad = len(rows) - len(good)
    if not bad:
        return f"All {len(rows)} rows were validated again, and none is bad."
    if not good:
        return f"All {len(rows)} rows are bad."
    body = b"".join(good)
    _start_anew(folder)
    write_whole(path, body)
    excluded = made.get("excluded") or {}
    made |= {
        "dataset_sha256": hashlib.sha256(body).hexdigest(),
        "samples": len(good),
        "snapshot": None,  # the next attempt stores one of these rows
        "part_of": made.get("snapshot") or made.get("part_of"),
        "excluded": {**excluded, "bad_row": excluded.get("bad_row", 0) + bad},
    }
    write_whole(marker, json.dumps(made).encode())
    return Remedy(
        f"{ended}: {bad} of {len(rows)} rows were bad, and are left out.",
        {"samples": len(good), "dataset_sha256": made["dataset_sha256"]},
    )
