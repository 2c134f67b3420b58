"""An adapter is served only when the store holds what the registered model's commit says."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onward.bus import Entry
from onward.errors import TamperedError
from onward.serving.engines.registry import AdapterRegistry
from onward.training import checkpoints
from onward.warehouse import Objects


async def registered(tmp_path: Path, **changes: Any) -> tuple[AdapterRegistry, Objects, str, str]:
    """(registry, store, digest, prefix) of model ``v.1`` with its commit's hash in its record."""
    made = tmp_path / "made"
    made.mkdir()
    (made / "adapter_config.json").write_text("{}")
    (made / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    manifest = checkpoints.write_manifest(made, job_id="j", epoch=1, base_digest="base")
    objects = Objects.open(tmp_path / "objects")
    prefix = await checkpoints.upload(objects, made, job_id="j", epoch=1)
    record = {
        "adapter_digest": manifest.adapter_digest,
        "object_prefix": prefix,
        "manifest_sha256": hashlib.sha256((made / "manifest.json").read_bytes()).hexdigest(),
        **changes,
    }

    async def get(key: str) -> Any:
        return Entry(key, json.dumps(record).encode(), 1) if key == "v_1" else None

    bus: Any = SimpleNamespace(bucket=lambda name: SimpleNamespace(get=get))
    return AdapterRegistry(bus, objects, tmp_path / "models"), objects, manifest.adapter_digest, prefix


@pytest.mark.parametrize("changes", [{}, {"manifest_sha256": None}], ids=["committed", "first model"])
async def test_a_checkpoint_is_fetched_under_its_digest(tmp_path: Path, changes: dict[str, Any]) -> None:
    registry, _, digest, _ = await registered(tmp_path, **changes)
    folder = await registry.fetch("v.1", digest)
    assert folder == tmp_path / "models" / "adapters" / digest
    assert await registry.cached(digest) == folder


async def test_a_manifest_that_was_changed_after_the_commit_is_refused(tmp_path: Path) -> None:
    registry, objects, digest, prefix = await registered(tmp_path)
    manifest = json.loads(await objects.get(f"{prefix}/manifest.json"))
    changed = {**manifest, "base_digest": "another base"}  # every file still matches it
    await objects.put(f"{prefix}/manifest.json", json.dumps(changed).encode())
    with pytest.raises(TamperedError, match="not the one that was committed"):
        await registry.fetch("v.1", digest)
    assert not any((tmp_path / "models" / "adapters").iterdir())
