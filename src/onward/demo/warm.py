"""Cycle 0: the warm start in a child process. This module displays its progress and stores its result."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from onward import children
from onward.config import Settings
from onward.demo.display import Stages
from onward.errors import OnwardError
from onward.processes import COMPUTING
from onward.progress import PART, Bar
from onward.serving import base_models
from onward.training import checkpoints
from onward.training.spec.recipes import for_model
from onward.warehouse import Objects


@dataclass(frozen=True)
class WarmStart:
    """The first policy: an adapter in ``folder``, and the figures measured during the warm start."""

    folder: Path
    adapter_digest: str
    job_id: str
    raw_success: float | None
    """Sampled success before the warm start; None if the base model can still be tested."""
    figures: dict[str, float] = field(default_factory=dict)
    by_kind: dict[str, float] = field(default_factory=dict)
    """Sampled success on training templates per kind of task."""

    async def store(self, objects: Objects, key: Ed25519PrivateKey | None = None) -> str:
        """Signs (with a ``key``), uploads and commits the adapter; returns the object prefix. Repeatable."""
        manifest = checkpoints.verify(self.folder)
        return (await checkpoints.store(objects, self.folder, manifest, key)).object_prefix


async def warm_up(model: str, settings: Settings, seed: int, stages: Stages) -> WarmStart:
    """Trains v0 in the data folder. Raises OnwardError, with the child's own message, when it fails."""
    out = settings.data_dir / "warm-up"
    models = settings.data_dir / "models"
    base = models / model if model == base_models.TINY else base_models.resolve(model, models)
    recipe = for_model(model)
    threads = settings.model.threads or os.cpu_count() or 1
    log = settings.data_dir / "logs" / "warm-up.log"
    title = f"Warm start of {Path(model).name}"
    with stages.stage("warm start", title, total=recipe.warm_up.max_steps) as stage:
        child = await children.start(
            "onward.training.warm_start.warmup", "--json",
            "--model", model, "--out", str(out), "--base", str(base),
            "--seed", str(seed), "--threads", str(threads), "--plan", json.dumps(asdict(recipe.warm_up)),
            log=log, environment={"OMP_NUM_THREADS": str(threads)}, passed=COMPUTING,
        )  # fmt: skip
        try:
            done = await _follow(child, stage)
        finally:
            await children.end(child)
    if done is None:
        raise OnwardError(f"The warm start ended without a result: see {log}.")
    manifest = checkpoints.verify(Path(done["adapter_folder"]))
    return WarmStart(
        folder=Path(done["adapter_folder"]),
        adapter_digest=manifest.adapter_digest,
        job_id=manifest.job_id,
        raw_success=done.get("raw_success"),
        figures={
            "demonstrations": recipe.warm_up.demonstrations,
            "steps": done["steps"],
            "sampled_success": done["success"],
            "mixed_groups": done["mixed_share"],
            "seconds": done["seconds"],
        },
        by_kind=done["by_kind"],
    )


async def _follow(child: asyncio.subprocess.Process, stage: Bar) -> dict[str, Any] | None:
    success = ""
    done: dict[str, Any] | None = None
    async for event in children.events(child):
        match event["event"]:
            case "progress":
                note = f"{success}loss {event['loss']:.2f}"
                stage.update(event["step"], total=event["total_steps"], note=note)
            case "check":
                success = f"success {event['success']:.2f}{PART}"
            case "failed":
                raise OnwardError(event["message"])
            case "done":
                done = event
    await child.wait()
    return done
