"""Checkpoints: a folder of safetensors with a manifest of SHA-256 sums, committed once.

Invariants: the adapter digest is computed from the files alone, so equal files have the same digest wherever
they were made. A job's result is the attempt named by its create-only COMMIT object, never the newest folder.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, Field

from onward.contracts.buckets import Piece
from onward.errors import ConflictError, NotFoundError, TamperedError
from onward.files import remove_drafts, write_whole
from onward.ids import check_id
from onward.lm.weight_files import read_header
from onward.training import signatures
from onward.training.signatures import Trust
from onward.warehouse import Objects

MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
_SIGNED_BESIDE = frozenset({MANIFEST, SIGNATURE})


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
    return _digest_over(folder, ADAPTER_FILES)


def whole_digest(folder: Path) -> str:
    """Computes the same over every file of a folder beside its manifest and signature."""
    return _digest_over(folder, {path.name for path in folder.iterdir()} - _SIGNED_BESIDE)


def _digest_over(folder: Path, names: Iterable[str]) -> str:
    lines = "".join(f"{name}:{sha256_file(folder / name)}\n" for name in sorted(names))
    return hashlib.sha256(lines.encode()).hexdigest()


@dataclass(frozen=True)
class Form:
    """Parts of a checkpoint that depend on the kind of policy."""

    digest: Callable[[Path], str] = adapter_digest
    """Computes the policy's name from its folder."""
    plain: frozenset[str] = frozenset({".md", ".png"})
    """Suffixes of files whose content is not checked: they are read by people, or are text alone."""


ADAPTER = Form()


def write_manifest(
    folder: Path,
    *,
    job_id: str,
    epoch: int,
    base_digest: str,
    start_digest: str | None = None,
    metrics: dict[str, Any] | None = None,
    form: Form = ADAPTER,
) -> Manifest:
    """Writes ``manifest.json`` over every file of ``folder`` and returns the manifest. Drafts of an attempt
    that was killed are removed first, and the signature of an earlier manifest."""
    remove_drafts(folder)
    (folder / SIGNATURE).unlink(missing_ok=True)
    files = {path.name: sha256_file(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    manifest = Manifest(
        files=files,
        adapter_digest=form.digest(folder),
        base_digest=base_digest,
        job_id=job_id,
        epoch=epoch,
        start_digest=start_digest,
        metrics=metrics or {},
    )
    text = json.dumps(manifest.model_dump(mode="json"), sort_keys=True, indent=1)
    write_whole(folder / MANIFEST, text.encode())
    return manifest


def sign(folder: Path, key: Ed25519PrivateKey) -> None:
    """Writes the signature of the manifest in ``folder``. The same key and manifest give the same bytes."""
    write_whole(folder / SIGNATURE, signatures.sign(key, (folder / MANIFEST).read_bytes()))


def verify(folder: Path, trust: Trust | None = None, *, form: Form = ADAPTER) -> Manifest:
    """Checks every file of ``folder`` against its manifest, and the manifest against its signature by
    ``trust`` (None: not at all). Raises TamperedError on any difference.

    Only safetensors, JSON and the plain files of ``form`` are accepted. The content of the first two is
    checked: a pickle or zip under such a name is refused, and so is a safetensors header with wrong sizes.
    """
    try:
        body = (folder / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise TamperedError(
            f"{folder.name} has no {MANIFEST}: a model without one is never loaded."
        ) from None
    if trust is not None:
        signature = folder / SIGNATURE
        trust.check(body, signature.read_bytes() if signature.is_file() else None, folder.name)
    manifest = _parse_manifest(body, folder.name)
    present = {entry.name for entry in folder.iterdir()} - _SIGNED_BESIDE
    if present != set(manifest.files):
        raise TamperedError(
            f"{folder.name} holds {sorted(present)} but its manifest lists {sorted(manifest.files)}: "
            f"it must not be loaded."
        )
    for name, expected in manifest.files.items():
        if not (folder / name).is_file() or sha256_file(folder / name) != expected:
            raise TamperedError(
                f"{name} in {folder.name} does not match its manifest: it must not be loaded."
            )
        _check_content(folder / name, form)
    if form.digest(folder) != manifest.adapter_digest:
        raise TamperedError(
            f"The digest of {folder.name} does not match its manifest: it must not be loaded."
        )
    return manifest


async def upload(objects: Objects, folder: Path, *, job_id: str, epoch: int) -> str:
    """Stores the checkpoint under ``checkpoints/<job_id>/<epoch>`` and returns that prefix. Repeatable."""
    check_id(job_id, "job id")
    prefix = f"checkpoints/{job_id}/{epoch}"
    await upload_to(objects, folder, prefix)
    return prefix


async def upload_to(objects: Objects, folder: Path, prefix: str) -> None:
    """Stores the checkpoint in ``folder`` under ``prefix``. Repeatable."""
    names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)
    for name in [*names, MANIFEST]:  # the manifest last: its presence means that all other files are stored
        await objects.put(f"{prefix}/{name}", folder / name)


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


async def store(
    objects: Objects, folder: Path, manifest: Manifest, key: Ed25519PrivateKey | None = None
) -> Commit:
    """Signs (with a ``key``), uploads and commits the checkpoint in ``folder``. Repeatable."""
    if key is not None:
        sign(folder, key)
    prefix = await upload(objects, folder, job_id=manifest.job_id, epoch=manifest.epoch)
    return await commit(objects, (folder / MANIFEST).read_bytes(), manifest, prefix)


async def sign_stored(objects: Objects, job_id: str, key: Ed25519PrivateKey) -> Commit:
    """Signs the committed checkpoint of a job where it is stored, after a check of every file against it.

    Raises NotFoundError for a job without a checkpoint, TamperedError for one that was changed.
    """
    found = await read_commit(objects, job_id)
    with tempfile.TemporaryDirectory(prefix="onward-sign-") as scratch:
        folder = Path(scratch) / "checkpoint"
        await fetch(objects, found.object_prefix, folder, manifest_sha256=found.manifest_sha256)
        sign(folder, key)
        await objects.put(f"{found.object_prefix}/{SIGNATURE}", folder / SIGNATURE)
    return found


async def read_commit(objects: Objects, job_id: str) -> Commit:
    return Commit.model_validate_json(await objects.get(commit_key(job_id)))


def commit_key(job_id: str) -> str:
    return f"jobs/{check_id(job_id, 'job id')}/COMMIT"


async def read_manifest(
    objects: Objects, prefix: str, *, manifest_sha256: str | None = None, trust: Trust | None = None
) -> Manifest:
    """Reads a stored checkpoint's manifest and checks that each of its files is stored, but no content.

    ``manifest_sha256`` and ``trust`` as in ``fetch``. Raises NotFoundError, TamperedError, ObjectError.
    """
    body = await objects.get(f"{prefix}/{MANIFEST}")
    if manifest_sha256 not in (None, hashlib.sha256(body).hexdigest()):
        raise _other_manifest(prefix)
    if trust is not None:
        trust.check(body, await _stored_signature(objects, prefix), prefix)
    manifest = _parse_manifest(body, prefix)
    for name in sorted(manifest.files):
        if not await objects.exists(f"{prefix}/{name}"):
            raise NotFoundError(f"{name} of {prefix} is not in {objects.where}: it was deleted there.")
    return manifest


async def _stored_signature(objects: Objects, prefix: str) -> bytes | None:
    try:
        return await objects.get(f"{prefix}/{SIGNATURE}")
    except NotFoundError:
        return None


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
    objects: Objects,
    prefix: str,
    folder: Path,
    *,
    manifest_sha256: str | None = None,
    trust: Trust | None = None,
    form: Form = ADAPTER,
) -> Manifest:
    """Downloads the checkpoint at ``prefix`` into ``folder`` (absent before) and verifies it.

    ``manifest_sha256`` is the manifest's digest in the commit; None for a checkpoint that was never
    committed. ``trust`` verifies the signature before any file is downloaded; None does not. Raises
    TamperedError.
    """
    partial = partial_of(folder)
    partial.mkdir(parents=True, exist_ok=True)
    path = partial / MANIFEST
    try:
        await objects.get_file(f"{prefix}/{MANIFEST}", path)
    except NotFoundError:
        raise TamperedError(f"{prefix} has no {MANIFEST}: a model without one is never loaded.") from None
    if manifest_sha256 is not None and sha256_file(path) != manifest_sha256:
        raise _other_manifest(prefix)
    signature = await _stored_signature(objects, prefix)
    (partial / SIGNATURE).unlink(missing_ok=True)  # of an attempt that was killed
    if signature is not None:
        write_whole(partial / SIGNATURE, signature)
    if trust is not None:
        trust.check(path.read_bytes(), signature, prefix)
    for name in _parse_manifest(path.read_bytes(), prefix).files:  # not of a list of the store, which may lag
        if "/" in name:
            raise TamperedError(f"The manifest of {prefix} names {name!r}: it must not be loaded.")
        await objects.get_file(f"{prefix}/{name}", partial / name)
    manifest = verify(partial, trust, form=form)
    if not folder.exists():
        partial.rename(folder)
    return manifest


def partial_of(folder: Path) -> Path:
    """Returns the folder in which ``fetch`` collects the files of ``folder`` before they are verified."""
    return folder.with_name(folder.name + ".partial")


def sha256_file(path: Path) -> str:
    """Returns the SHA-256 of a file, without reading it whole into memory."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_content(path: Path, form: Form) -> None:
    if path.suffix == ".json":
        try:
            json.loads(path.read_bytes())
        except ValueError:
            raise TamperedError(f"{path.name} is not JSON: it must not be loaded.") from None
    elif path.suffix == ".safetensors":
        read_header(path)
    elif path.suffix not in form.plain:
        raise TamperedError(f"{path.name} is neither safetensors nor JSON: it must not be loaded.")
