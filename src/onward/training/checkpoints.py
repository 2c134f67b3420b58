"""Checkpoints: a folder of safetensors with a manifest of SHA-256 sums, committed once.

Invariants: the adapter digest is computed from the files alone, so equal files have the same digest wherever
they were made. A job's result is the attempt named by its create-only COMMIT object, never the newest folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from onward.contracts.buckets import Piece
from onward.errors import ConflictError, NotFoundError, TamperedError
from onward.files import remove_drafts, write_whole
from onward.ids import check_id
from onward.warehouse import Objects

MANIFEST = "manifest.json"
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
MAX_HEADER_BYTES = 8 << 20
MAX_TENSORS = 50_000


class Manifest(BaseModel):
    """Contents of a checkpoint folder. ``files`` maps each file name to its SHA-256."""

    model_config = ConfigDict(extra="allow")

    files: dict[str, str]
    adapter_digest: str
    base_digest: str
    job_id: str
    epoch: int = Field(ge=0)
    start_digest: str | None = None
    metrics: dict[str, Any] = Field(default_factory=dict)


class Commit(Piece):
    """Content of ``jobs/<job_id>/COMMIT``: the attempt that is the job's result."""

    job_id: str
    epoch: int
    manifest_sha256: str
    """SHA-256 of the manifest's bytes; ``fetch`` refuses another manifest under the same prefix."""
    object_prefix: str
    adapter_digest: str


def adapter_digest(folder: Path) -> str:
    """Computes a policy's name: SHA-256 over the sorted (file name, SHA-256) pairs of its adapter files."""
    lines = "".join(f"{name}:{_sha256_file(folder / name)}\n" for name in sorted(ADAPTER_FILES))
    return hashlib.sha256(lines.encode()).hexdigest()


def write_manifest(
    folder: Path,
    *,
    job_id: str,
    epoch: int,
    base_digest: str,
    start_digest: str | None = None,
    metrics: dict[str, Any] | None = None,
) -> Manifest:
    """Writes ``manifest.json`` over every file of ``folder`` and returns the manifest. Drafts of an attempt
    that was killed are removed first."""
    remove_drafts(folder)
    files = {path.name: _sha256_file(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    manifest = Manifest(
        files=files,
        adapter_digest=adapter_digest(folder),
        base_digest=base_digest,
        job_id=job_id,
        epoch=epoch,
        start_digest=start_digest,
        metrics=metrics or {},
    )
    text = json.dumps(manifest.model_dump(mode="json"), sort_keys=True, indent=1)
    write_whole(folder / MANIFEST, text.encode())
    return manifest


def verify(folder: Path) -> Manifest:
    """Checks every file of ``folder`` against its manifest. Raises TamperedError on any difference.

    Only safetensors, JSON, .md and .png files are accepted. The content of the first two is checked: a pickle
    or zip under such a name is refused, and so is a safetensors header with wrong sizes.
    """
    path = folder / MANIFEST
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise TamperedError(
            f"{folder.name} has no {MANIFEST}: a model without one is never loaded."
        ) from None
    except ValueError:
        raise TamperedError(
            f"The manifest of {folder.name} is not readable: it must not be loaded."
        ) from None
    present = {entry.name for entry in folder.iterdir()} - {MANIFEST}
    if present != set(manifest.files):
        raise TamperedError(
            f"{folder.name} holds {sorted(present)} but its manifest lists {sorted(manifest.files)}: "
            f"it must not be loaded."
        )
    for name, expected in manifest.files.items():
        if _sha256_file(folder / name) != expected:
            raise TamperedError(
                f"{name} in {folder.name} does not match its manifest: it must not be loaded."
            )
        _check_content(folder / name)
    if adapter_digest(folder) != manifest.adapter_digest:
        raise TamperedError(
            f"The digest of {folder.name} does not match its manifest: it must not be loaded."
        )
    return manifest


async def upload(objects: Objects, folder: Path, *, job_id: str, epoch: int) -> str:
    """Stores the checkpoint under ``checkpoints/<job_id>/<epoch>`` and returns that prefix. Repeatable."""
    check_id(job_id, "job id")
    prefix = f"checkpoints/{job_id}/{epoch}"
    names = sorted(path.name for path in folder.iterdir())
    names.remove(MANIFEST)
    for name in [*names, MANIFEST]:  # the manifest last: its presence means that all other files are stored
        await objects.put(f"{prefix}/{name}", folder / name)
    return prefix


async def commit(objects: Objects, manifest_bytes: bytes, manifest: Manifest, prefix: str) -> Commit:
    """Creates ``jobs/<job_id>/COMMIT``. The first attempt wins; the winner is returned either way."""
    record = Commit(
        job_id=manifest.job_id,
        epoch=manifest.epoch,
        manifest_sha256=hashlib.sha256(manifest_bytes).hexdigest(),
        object_prefix=prefix,
        adapter_digest=manifest.adapter_digest,
    )
    try:
        await objects.put(commit_key(manifest.job_id), record.model_dump_json().encode(), create_only=True)
    except ConflictError:
        return await read_commit(objects, manifest.job_id)
    return record


async def store(objects: Objects, folder: Path, manifest: Manifest) -> Commit:
    """Uploads and commits the checkpoint in ``folder``. Repeatable."""
    prefix = await upload(objects, folder, job_id=manifest.job_id, epoch=manifest.epoch)
    return await commit(objects, (folder / MANIFEST).read_bytes(), manifest, prefix)


async def read_commit(objects: Objects, job_id: str) -> Commit:
    return Commit.model_validate_json(await objects.get(commit_key(job_id)))


def commit_key(job_id: str) -> str:
    return f"jobs/{check_id(job_id, 'job id')}/COMMIT"


async def read_manifest(objects: Objects, prefix: str, *, manifest_sha256: str | None = None) -> Manifest:
    """Reads a stored checkpoint's manifest and checks that each of its files is stored, but no content.

    ``manifest_sha256`` as in ``fetch``. Raises NotFoundError, TamperedError, ObjectError.
    """
    body = await objects.get(f"{prefix}/{MANIFEST}")
    if manifest_sha256 not in (None, hashlib.sha256(body).hexdigest()):
        raise _other_manifest(prefix)
    manifest = _parse_manifest(body, prefix)
    for name in sorted(manifest.files):
        if not await objects.exists(f"{prefix}/{name}"):
            raise NotFoundError(f"{name} of {prefix} is not in {objects.where}: it was deleted there.")
    return manifest


def _parse_manifest(body: bytes, prefix: str) -> Manifest:
    try:
        return Manifest.model_validate_json(body)
    except ValueError:
        raise TamperedError(f"The manifest of {prefix} is not readable: it must not be loaded.") from None


def refuse_other_base(manifest: Manifest, base_digest: str) -> None:
    """Raises TamperedError for an adapter of another base model than ``base_digest``, which is served."""
    if manifest.base_digest != base_digest:
        raise TamperedError(
            f"Adapter {manifest.adapter_digest[:12]} was trained on base {manifest.base_digest[:12]}, but "
            f"{base_digest[:12]} is served: it must not be loaded."
        )


def _other_manifest(prefix: str) -> TamperedError:
    return TamperedError(
        f"The manifest of {prefix} is not the one that was committed: it must not be loaded."
    )


async def fetch(
    objects: Objects, prefix: str, folder: Path, *, manifest_sha256: str | None = None
) -> Manifest:
    """Downloads the checkpoint at ``prefix`` into ``folder`` (absent before) and verifies it.

    ``manifest_sha256`` is the manifest's digest in the commit; None for a checkpoint that was never
    committed. Raises TamperedError.
    """
    partial = partial_of(folder)
    partial.mkdir(parents=True, exist_ok=True)
    path = partial / MANIFEST
    try:
        await objects.get_file(f"{prefix}/{MANIFEST}", path)
    except NotFoundError:
        raise TamperedError(f"{prefix} has no {MANIFEST}: a model without one is never loaded.") from None
    if manifest_sha256 is not None and _sha256_file(path) != manifest_sha256:
        raise _other_manifest(prefix)
    for name in _parse_manifest(path.read_bytes(), prefix).files:  # not of a list of the store, which may lag
        if "/" in name:
            raise TamperedError(f"The manifest of {prefix} names {name!r}: it must not be loaded.")
        await objects.get_file(f"{prefix}/{name}", partial / name)
    manifest = verify(partial)
    if not folder.exists():
        partial.rename(folder)
    return manifest


def partial_of(folder: Path) -> Path:
    """Returns the folder in which ``fetch`` collects the files of ``folder`` before they are verified."""
    return folder.with_name(folder.name + ".partial")


def _sha256_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_content(path: Path) -> None:
    if path.suffix == ".json":
        try:
            json.loads(path.read_bytes())
        except ValueError:
            raise TamperedError(f"{path.name} is not JSON: it must not be loaded.") from None
    elif path.suffix == ".safetensors":
        read_header(path)
    elif path.suffix not in {".md", ".png"}:
        raise TamperedError(f"{path.name} is neither safetensors nor JSON: it must not be loaded.")


def read_header(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """Returns the tensors' entries in a safetensors file, and the position at which their data begins.

    Raises TamperedError unless the tensors are contiguous, inside the file, and as large as shape times
    dtype. Called before any library parses the file.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else MAX_HEADER_BYTES + 1
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise TamperedError(f"{path.name} is not safetensors (its header is too long): refused.")
        try:
            header = json.loads(file.read(length), object_pairs_hook=_no_duplicates)
        except ValueError:
            raise TamperedError(
                f"{path.name} is not safetensors (its header is not JSON): refused."
            ) from None
    if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
        raise TamperedError(f"{path.name} is not safetensors (its header is no table): refused.")
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise TamperedError(f"{path.name} lists {len(header)} tensors: at most {MAX_TENSORS} are accepted.")
    spans = []
    for name, entry in header.items():
        width = _DTYPE_BYTES.get(str(entry.get("dtype")))
        offsets, shape = _whole_numbers(entry.get("data_offsets")), _whole_numbers(entry.get("shape"))
        if width is None or shape is None or offsets is None or len(offsets) != 2:
            raise TamperedError(f"Tensor {name!r} in {path.name} is not described as it must be: refused.")
        begin, end = offsets
        if end - begin != math.prod(shape) * width:
            raise TamperedError(f"Tensor {name!r} in {path.name} lies about its size: refused.")
        spans.append((begin, end))
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise TamperedError(f"The tensors in {path.name} overlap or leave gaps: refused.")
        position = end
    if position != size - 8 - length:
        raise TamperedError(f"{path.name} is longer or shorter than its header says: refused.")
    return header, 8 + length


def _whole_numbers(value: Any) -> list[int] | None:
    """Returns ``value`` if it is a list of at most 16 integers from 0 to 2^48 − 1, else None."""
    good = isinstance(value, list) and len(value) <= 16
    return value if good and all(type(number) is int and 0 <= number < 1 << 48 for number in value) else None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


_DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
