"""Files of rubric writers: a checkpoint folder each, under ``rubrics/<job>/<attempt>/`` in the object store.

A copy on this machine is verified each time before it is used: hashes, manifest, signature.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from pathlib import Path
from typing import Any

from onward.config import Settings
from onward.contracts.buckets import ReleasedWriter, WriterVersion
from onward.errors import NotFoundError, TamperedError
from onward.ids import new_id
from onward.training import checkpoints, signatures
from onward.training.signatures import Trust
from onward.training.writers.rule import verdict
from onward.warehouse import Objects

WRITER = checkpoints.Form(
    digest=checkpoints.whole_digest, plain=checkpoints.ADAPTER.plain | frozenset({".jinja"})
)
"""A whole model folder, whose chat template is a text file."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
NO_BASE = "none"
"""Digest of the base in the manifest of a writer: it is a model of its own."""


class WriterFiles:
    """Stores the files of writers, and fetches them into the data folder."""

    def __init__(self, objects: Objects, settings: Settings) -> None:
        self._objects, self._settings = objects, settings
        self._trust = Trust.from_settings(settings)
        self.folder = settings.data_dir / "models" / "writers"

    async def store(self, folder: Path, job_id: str, attempt: int) -> tuple[str, checkpoints.Manifest, str]:
        """Writes the manifest of the writer in ``folder`` and uploads it. Returns the prefix, the manifest
        and the SHA-256 of its bytes. Repeatable. Raises TamperedError for files that ``fetch`` would refuse,
        NotFoundError without a key that is required."""
        manifest = await asyncio.to_thread(
            checkpoints.write_manifest, folder, job_id=job_id, epoch=attempt, base_digest=NO_BASE, form=WRITER
        )
        await asyncio.to_thread(checkpoints.verify, folder, form=WRITER)
        key = signatures.needed_key(self._settings)
        if key is not None:
            checkpoints.sign(folder, key)
        prefix = f"rubrics/{job_id}/{attempt}"
        await checkpoints.upload_to(self._objects, folder, prefix)
        return prefix, manifest, checkpoints.sha256_file(folder / checkpoints.MANIFEST)

    async def store_judged(
        self, folder: Path, job_id: str, attempt: int, figures: dict[str, Any]
    ) -> dict[str, Any]:
        """Stores the writer as ``store`` does. Returns the facts of its version (``Writers.record``), with
        the verdict of the rule on the figures of its validation."""
        prefix, manifest, sha256 = await self.store(folder, job_id, attempt)
        judged = verdict(figures, self._settings.rubrics)
        return {
            "attempt": attempt,
            "object_prefix": prefix,
            "manifest_sha256": sha256,
            "digest": manifest.adapter_digest,
            "passed": judged.passed,
            "why": judged.why,
            "evidence": figures,
        }

    async def fetch(self, writer: WriterVersion | ReleasedWriter) -> Path:
        """Returns a verified copy of a writer. Raises TamperedError if its files are not those that were
        recorded, or are gone, and ObjectError. Two processes may fetch the same writer at once."""
        if _DIGEST.fullmatch(writer.digest) is None:
            raise TamperedError(
                f"The digest in the record of rubric writer {writer.version} is no SHA-256: promote another "
                f"version with 'onward rubrics promote'."
            )
        folder = self.folder / writer.digest
        while True:
            if folder.exists() and await self._is_whole(folder, writer):
                return folder
            if await self._download(writer, folder):
                return folder

    async def _is_whole(self, folder: Path, writer: WriterVersion | ReleasedWriter) -> bool:
        """Checks a copy, and sets a damaged one aside."""
        try:
            await asyncio.to_thread(self._check, folder, writer)
            return True
        except (TamperedError, FileNotFoundError):  # not found: another process has set it aside meanwhile
            aside = folder.with_name(f".tampered-{writer.digest[:16]}-{new_id()[:8]}")
            with contextlib.suppress(FileNotFoundError):
                folder.rename(aside)
            return False

    def _check(self, folder: Path, writer: WriterVersion | ReleasedWriter) -> None:
        self._refuse_other(checkpoints.verify(folder, self._trust, form=WRITER), writer)

    @staticmethod
    def _refuse_other(manifest: checkpoints.Manifest, writer: WriterVersion | ReleasedWriter) -> None:
        if manifest.adapter_digest != writer.digest:
            raise TamperedError(
                f"The files have digest {manifest.adapter_digest[:12]}, and {writer.digest[:12]} is recorded."
            )

    async def _download(self, writer: WriterVersion | ReleasedWriter, folder: Path) -> bool:
        """Downloads a verified copy. Returns False if another process was quicker."""
        partial = folder.with_name(f".{writer.digest[:16]}-{new_id()[:8]}")
        partial.parent.mkdir(parents=True, exist_ok=True)
        try:
            manifest = await checkpoints.fetch(
                self._objects,
                writer.object_prefix,
                partial,
                manifest_sha256=writer.manifest_sha256,
                trust=self._trust,
                form=WRITER,
            )
            self._refuse_other(manifest, writer)
            try:
                partial.rename(folder)
            except OSError:
                if not folder.exists():
                    raise
                return False
            return True
        except (TamperedError, NotFoundError) as error:
            raise TamperedError(
                f"Rubric writer {writer.version} is refused, since its stored files are not those that were "
                f"recorded: {error} Go back with 'onward rubrics rollback', or promote another version."
            ) from None
        finally:
            for leftover in (partial, checkpoints.partial_of(partial)):
                await asyncio.to_thread(shutil.rmtree, leftover, True)
