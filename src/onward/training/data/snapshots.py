"""Snapshots of frozen datasets in the object store, with the provenance of every row.

``datasets/rows/<sha256>.jsonl`` has the rows, ``datasets/<id>.json`` their description: request, source,
filters, sampling, redaction rules and, for each row, ids and hashes. Invariants: both names are SHA-256 sums
of the content, so a change of either is found, and the description is written last. Nothing in it depends on
the time of writing: an attempt that is repeated stores the same snapshot.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.config import Settings
from onward.contracts import TrainingRequest, canonical_json
from onward.errors import ConflictError, NotFoundError, TamperedError
from onward.training.data.admission import AdmissionRules
from onward.training.data.dataset import Dataset
from onward.warehouse import Objects

if TYPE_CHECKING:
    from onward.training.data.selection import Mix
    from onward.training.data.sources import Reading, Wanted

PREFIX = "datasets"
ROWS = f"{PREFIX}/rows"
FORMAT = 1
Description = dict[str, Any]


def open_store(settings: Settings, objects: Objects) -> Objects:
    """Returns the store of datasets; ``objects`` is that of checkpoints, which may be the same."""
    place = settings.objects.trajectories_url
    return objects if place in (None, "", settings.objects_at) else Objects.open(str(place))


def describe(
    asked: TrainingRequest,
    wanted: Wanted,
    reading: Reading,
    rules: AdmissionRules,
    mix: Mix | None,
    made: Dataset,
    *,
    redaction: str,
) -> Description:
    """Returns the description of a dataset: all that is needed to make it again. ``redaction`` is the version
    of the redaction rules."""
    config = asked.training_config
    return {
        "format": FORMAT,
        "job_id": asked.training_job_id,
        "requested_at": asked.model_dump(mode="json")["timestamp"],
        "algorithm": config.algorithm,
        "dataset": config.dataset.model_dump(mode="json", exclude_none=True),
        "source": reading.place,
        "policies": None if wanted.digests is None else {one: n for n, one in enumerate(wanted.digests)},
        "text_is_enough": rules.text_is_enough,
        "dense": rules.dense,
        "sampling": _sampling(mix, made),
        "redaction": {
            "rules": redaction,
            "rows": sorted({str(one["identity"]).partition(":")[0] for one in made.members} - {""}),
        },
        "samples": made.samples,
        "rows_sha256": made.sha256,
        "excluded": dict(sorted(made.excluded.items())),
        "notes": list(made.notes),
        "members": list(made.members),
    }


def _sampling(mix: Mix | None, made: Dataset) -> dict[str, Any]:
    if mix is None:
        return {"strategy": "newest"}
    return {
        "strategy": "balanced" if mix.shares is None else "domain_mix",
        "seed": mix.seed,
        "strata": {name: asdict(one) for name, one in (made.strata or {}).items()},
    }


async def store(objects: Objects, description: Description, rows: Path) -> str:
    """Stores rows and description; returns the id. A repeat changes nothing. Raises ObjectError."""
    await _create(objects, _rows_key(description["rows_sha256"]), rows)
    body = canonical_json(description)
    name = hashlib.sha256(body).hexdigest()
    await _create(objects, f"{PREFIX}/{name}.json", body)
    return name


async def store_part(objects: Objects, name: str, rows: Path, excluded: Mapping[str, int]) -> str:
    """Stores ``rows``, some of those of snapshot ``name``, as a snapshot of its own that names the whole one
    in ``part_of``; returns its id. Raises TamperedError, NotFoundError, ObjectError."""
    whole, body = await load(objects, name), rows.read_bytes()
    kept = {hashlib.sha256(line).hexdigest() for line in body.splitlines(keepends=True)}
    members = [one for one in whole["members"] if one["sha256"] in kept]
    part = {
        "part_of": name,
        "samples": len(members),
        "rows_sha256": hashlib.sha256(body).hexdigest(),
        "excluded": dict(sorted(excluded.items())),
        "members": members,
    }
    return await store(objects, whole | part, rows)


async def _create(objects: Objects, key: str, data: bytes | Path) -> None:
    with suppress(ConflictError):  # the same content, from an earlier attempt
        await objects.put(key, data, create_only=True)


async def ids(objects: Objects) -> list[str]:
    """Returns the ids of all snapshots, sorted. Raises ObjectError."""
    keys = await objects.list(PREFIX)
    names = [key.removeprefix(f"{PREFIX}/") for key in keys]
    return sorted(name.removesuffix(".json") for name in names if "/" not in name and name.endswith(".json"))


async def find(objects: Objects, prefix: str) -> str:
    """Returns the one id that begins with ``prefix``. Raises NotFoundError, ObjectError."""
    found = [name for name in await ids(objects) if prefix and name.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    how = "begins no id of a dataset" if not found else f"begins {len(found)} ids of datasets"
    raise NotFoundError(f"{prefix[:64]!r} {how}: 'onward datasets list' shows them.")


async def load(objects: Objects, name: str) -> Description:
    """Returns the description of a snapshot. Raises TamperedError if it is not the one that its id names,
    NotFoundError, ObjectError."""
    body = await objects.get(f"{PREFIX}/{name}.json")
    if hashlib.sha256(body).hexdigest() != name:
        raise TamperedError(
            f"The description of dataset {name[:12]} was changed after it was stored, so its rows cannot be "
            f"checked: do not train on it, and bring it back from a backup."
        )
    return json.loads(body)


async def rows(objects: Objects, description: Description) -> bytes:
    """Returns the stored rows, unchecked. Raises NotFoundError, ObjectError."""
    return await objects.get(_rows_key(description["rows_sha256"]))


async def put_rows_back(objects: Objects, description: Description, body: bytes) -> None:
    """Replaces rows that are lost or damaged by equal ones. Raises TamperedError for others, ObjectError."""
    if hashlib.sha256(body).hexdigest() != description["rows_sha256"]:
        raise TamperedError("The rows are not those of the dataset, so nothing was stored: rebuild them.")
    await objects.put(_rows_key(description["rows_sha256"]), body)


async def verify(objects: Objects, name: str) -> list[str]:
    """Compares the stored rows with their hashes; returns one sentence for each row that was changed, added
    or lost. Raises TamperedError for a changed description, NotFoundError, ObjectError."""
    description = await load(objects, name)
    try:
        body = await rows(objects, description)
    except NotFoundError:
        return [f"All {description['samples']} rows are lost: their file does not exist."]
    if hashlib.sha256(body).hexdigest() == description["rows_sha256"]:
        return []
    return compare(description["members"], body) or ["The rows are as stored, and their order is not."]


def compare(members: list[Mapping[str, Any]], body: bytes) -> list[str]:
    """Returns one sentence for each row in ``body`` that differs from the description's ``members``."""
    lines = body.splitlines(keepends=True)
    wanted = {one["sha256"] for one in members}
    found = {hashlib.sha256(line).hexdigest() for line in lines}
    places = {one["trajectory_id"]: place for place, one in enumerate(members, 1)}
    lost = {one["trajectory_id"] for one in members if one["sha256"] not in found}
    faults: list[str] = []
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        about, digest = _id_of(line), hashlib.sha256(line).hexdigest()
        if digest in wanted:
            if digest in seen:
                faults.append(f"Row {number}, trajectory {about}, is a repetition.")
            seen.add(digest)
            continue
        if about in lost:
            lost.discard(about)
            faults.append(f"Row {number}, trajectory {about}, was changed.")
        elif number <= len(members) and about is None:
            about = members[number - 1]["trajectory_id"]
            lost.discard(about)
            faults.append(f"Row {number}, trajectory {about}, was damaged: it is no JSON object any more.")
        else:
            faults.append(f"Row {number} was added: trajectory {about or '?'} is no row of this dataset.")
    return faults + [f"Row {places[about]}, trajectory {about}, is lost." for about in sorted(lost)]


def _id_of(line: bytes) -> str | None:
    try:
        return str(json.loads(line)["trajectory_id"])
    except (ValueError, KeyError, TypeError):
        return None


def _rows_key(sha256: str) -> str:
    return f"{ROWS}/{sha256}.jsonl"
