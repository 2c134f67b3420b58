"""A gateway with its admin API and the real releaser role; a first model serves, a checkpoint is stored."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from peft_folders import write_adapter, write_base
from release_stream import RELEASE
from release_world import FakeSuite
from serving_world import World, eventually, make_adapter

from onward.bus import Bus
from onward.release import admin_requests, releaser
from onward.release.record import ReleaseRecord, Releases
from onward.release.releaser import install_initial
from onward.training import checkpoints

STORE = "s3://pmoves-models/rl-checkpoints/"
FIRST = "agent-zero-rl-v0"


@asynccontextmanager
async def admin_world(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **release_settings: Any
) -> AsyncIterator[World]:
    """``agent-zero-rl-v0`` serves, and the store has a checkpoint under the key ``...``."""
    monkeypatch.setattr(releaser, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(releaser, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(admin_requests, "POLL_SECONDS", 0.05)
    suite = FakeSuite({}, {})
    monkeypatch.setattr("onward.release.validation.suite.EngineSuite", lambda ctx: suite)
    async with World(bus, tmp_path) as world:
        base = write_base(tmp_path / "qwen2.5-32b-instruct")
        checkpoint = write_adapter(tmp_path / "made", 0.5)
        shutil.copytree(checkpoint, tmp_path / "objects" / "...")
        settings = world.settings
        model = settings.model.model_copy(update={"base": str(base)})
        release = settings.release.model_copy(update=RELEASE | release_settings)
        objects = settings.objects.model_copy(update={"models_url": STORE})
        validation = settings.validation.model_copy(update={"suites": ["desk"], "regression": "point"})
        changed = settings.model_copy(
            update={"model": model, "release": release, "objects": objects, "validation": validation}
        )
        world.ctx = dataclasses.replace(world.ctx, settings=changed)
        role = asyncio.create_task(releaser.run(world.ctx))
        try:
            manifest = make_adapter(tmp_path / "first", 1.0)
            prefix = await checkpoints.upload(
                world.ctx.objects, tmp_path / "first", job_id=manifest.job_id, epoch=1
            )
            await install_initial(world.ctx, manifest.adapter_digest, prefix, training_job_id="warm-1")
            await eventually(lambda: serves(world, FIRST))
            yield world
        finally:
            role.cancel()
            await asyncio.gather(role, return_exceptions=True)


async def serves(world: World, model_id: str) -> bool:
    return world.gateway.state.serving().current.model_id == model_id


async def newest(world: World) -> ReleaseRecord:
    bus = world.bus
    return (await Releases(bus, world.clock).all())[-1]


async def in_state(world: World, *states: str) -> ReleaseRecord:
    async def there() -> ReleaseRecord | None:
        record = await newest(world)
        return record if str(record.state) in states else None

    return await eventually(there)
