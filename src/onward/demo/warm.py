"""Cycle 0: the warm start runs in a child process; this side draws its progress and keeps its result."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from onward.children import child_environment
from onward.config import Settings
from onward.demo.display import Stages
from onward.errors import OnwardError
from onward.training import checkpoints
from onward.warehouse import Objects


@dataclass(frozen=True)
class Warmed:
    """The first policy: an adapter in ``folder``, and what was measured while it was made."""

    folder: Path
    adapter_digest: str
    job_id: str
    raw_success: float | None
    """Sampled success before the warm start; None where the base model can still be tested."""
    figures: dict[str, float] = field(default_factory=dict)

    async def store(self, objects: Objects) -> str:
        """Upload and commit; returns the object prefix. Repeatable."""
        manifest = checkpoints.verify(self.folder)
        prefix = await checkpoints.upload(objects, self.folder, job_id=self.job_id, epoch=manifest.epoch)
        body = (self.folder / checkpoints.MANIFEST).read_bytes()
        return (await checkpoints.commit(objects, body, manifest, prefix)).object_prefix


async def warm_up(model: str, settings: Settings, seed: int, stages: Stages) -> Warmed:
    """Make v0. Raises OnwardError with the child's own sentence when it fails."""
    raise NotImplementedError
