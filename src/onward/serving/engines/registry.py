"""Adapters by digest: fetched from the object store, verified, stored under ``models/adapters``.

Nothing unverified ever has its final name: a download is checked in a folder of its own and then renamed. A
cached adapter is checked again at each use, because files can change after they were written.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import uuid
from pathlib import Path

from onward.bus import Bus, read_document
from onward.contracts.buckets import ModelEntry
from onward.errors import NotFoundError, TamperedError
from onward.ids import model_key
from onward.training import checkpoints
from onward.training.checkpoints import Manifest
from onward.training.signatures import Trust
from onward.warehouse import Objects

_DIGEST = re.compile(r"[0-9a-f]{64}")
_FORBIDDEN = ("auto_map", "auto_mapping", "trust_remote_code")
"""Keys with which a configuration asks a library to import code."""


def verify_adapter(folder: Path, digest: str, trust: Trust | None = None) -> Manifest:
    """Checks the files against the manifest, the manifest against ``digest`` and its signature by ``trust``,
    and the configuration. Raises TamperedError. The gateway calls it before it offers an adapter, the engine
    before it loads one: with the digest of the gateway and no key."""
    manifest = checkpoints.verify(folder, trust)
    if manifest.adapter_digest != digest:
        raise TamperedError(
            f"The adapter in {folder.name} has digest {manifest.adapter_digest[:12]}, but {digest[:12]} was "
            f"asked for: it must not be loaded."
        )
    for path in folder.iterdir():
        if path.is_symlink() or not path.is_file():
            raise TamperedError(f"{path.name} in {folder.name} is not a plain file: it must not be loaded.")
    config = json.loads((folder / "adapter_config.json").read_bytes())
    if not isinstance(config, dict) or any(config.get(name) for name in _FORBIDDEN):
        raise TamperedError(
            f"The configuration of {folder.name} asks for code to be run: it must not be loaded."
        )
    return manifest


class AdapterRegistry:
    """Finds an adapter's files: ``rl_models`` names their location, ``Objects`` stores them."""

    def __init__(self, bus: Bus, objects: Objects, models_dir: Path, trust: Trust | None = None) -> None:
        self._bus, self._objects, self._trust = bus, objects, trust
        self.folder = models_dir / "adapters"

    async def fetch(self, model_id: str, digest: str) -> Path:
        """Returns a folder of verified files. Raises TamperedError, NotFoundError, ObjectError, BusError."""
        if _DIGEST.fullmatch(digest) is None:
            raise TamperedError(f"{digest[:20]!r} is not a SHA-256 digest: it must not be loaded.")
        folder = self.folder / digest
        if folder.exists():
            try:
                await asyncio.to_thread(verify_adapter, folder, digest, self._trust)
                return folder
            except TamperedError:
                await asyncio.to_thread(self._set_aside, folder)
        prefix, manifest_sha256 = await self._stored(model_id, digest)
        return await self._download(prefix, manifest_sha256, digest, folder)

    async def cached(self, digest: str) -> Path:
        """Works like ``fetch`` but without the object store, for a start while everything else is away."""
        folder = self.folder / digest
        if not folder.exists():
            raise NotFoundError(f"Adapter {digest[:12]} is not on this machine.")
        await asyncio.to_thread(verify_adapter, folder, digest, self._trust)
        return folder

    async def _stored(self, model_id: str, digest: str) -> tuple[str, str | None]:
        """Returns the location in the object store, and the hash of the committed manifest, or None."""
        record = await read_document(self._bus, ModelEntry, model_key(model_id))
        if record is None:
            raise NotFoundError(f"Model {model_id!r} is not registered in rl_models: release it first.")
        if record.adapter_digest != digest:
            raise TamperedError(
                f"Model {model_id} is registered with digest {str(record.adapter_digest)[:12]}, "
                f"but {digest[:12]} was asked for: it must not be loaded."
            )
        prefix = record.object_prefix.strip("/")
        if ".." in prefix.split("/"):
            raise TamperedError(
                f"Model {model_id} is registered under a path that leaves the store: refused."
            )
        return prefix, record.manifest_sha256

    async def _download(self, prefix: str, manifest_sha256: str | None, digest: str, folder: Path) -> Path:
        partial = folder.with_name(f".{digest[:16]}-{uuid.uuid4().hex[:8]}")
        try:
            await checkpoints.fetch(
                self._objects, prefix, partial, manifest_sha256=manifest_sha256, trust=self._trust
            )
            await asyncio.to_thread(verify_adapter, partial, digest, self._trust)
            if not folder.exists():
                partial.rename(folder)
            return folder
        finally:
            for leftover in (partial, partial.with_name(partial.name + ".partial")):
                await asyncio.to_thread(shutil.rmtree, leftover, True)

    def _set_aside(self, folder: Path) -> None:
        """Moves a changed copy aside for inspection; it never gets its name back."""
        folder.rename(folder.with_name(f".tampered-{folder.name[:16]}-{uuid.uuid4().hex[:8]}"))
