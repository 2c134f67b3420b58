"""Rubrics jobs in memory whose child writes small files and reports given figures."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from trainer_world import World

from onward.contracts.buckets import ReleasedWriter
from onward.training.job import rubrics
from onward.training.role.rubrics_attempt import RubricsAttempt
from onward.training.writers import WriterFiles, Writers
from onward.training.writers.record import state_of

GAIN = {"mean": 0.2, "low": 0.1, "high": 0.3}
V1, V2, V3 = (f"rubric-writer-v{number}" for number in (1, 2, 3))


async def nothing(*_: Any) -> None:
    return None


class Jobs:
    """Rubrics jobs whose child is this object: it writes small files and reports given figures."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.world = World(folder, rubrics=settings)
        self.writers = Writers(self.world.ctx.bus, self.world.clock)  # type: ignore[arg-type]
        self.files = WriterFiles(self.world.ctx.objects, self.world.settings)
        self.compared_with: list[str | None] = []
        self.meanwhile: Callable[[], Awaitable[Any]] = nothing

    async def run(self, job_id: str, *, attempt: int = 1, **figures: Any) -> dict[str, Any]:
        """Runs one attempt and returns the metrics of its job."""
        asked = {
            "kind": "rubrics", "training_job_id": job_id, "timestamp": "2026-01-05T13:00:00Z",
            "requester": "tests", "algorithm": "rloo",
        }  # fmt: skip
        lease = SimpleNamespace(record=SimpleNamespace(job_id=job_id, attempt=attempt, request=asked))
        one = RubricsAttempt(self.world.ctx, lease, SimpleNamespace(announce=nothing))  # type: ignore[arg-type]

        async def compute(folder: Path, made: dict[str, Any]) -> dict[str, Any]:
            where = folder / rubrics.RUN / "writer"
            where.mkdir(parents=True, exist_ok=True)
            number = float(sum(job_id.encode()))  # the weights of each job are its own
            save_file({"w": np.array([number], dtype=np.float32)}, where / "model.safetensors")
            (where / "writer.json").write_text('{"base": null}')
            (where / "chat_template.jinja").write_text("{{ messages }}")
            released = folder / rubrics.RELEASED
            name = json.loads(released.read_text())["version"] if released.exists() else None
            self.compared_with.append(name)
            found = {"skill": 0.25, "invalid": 0.0, "degenerate": 0.0, "skill_gain": GAIN}
            found |= {} if name is None else {"released": name, "versus_released": GAIN}
            await self.meanwhile()
            return {"metrics": {**found, **figures}, "seconds": 1.0, **made}

        one._compute = compute  # type: ignore[method-assign]
        return (await one.run_rubrics())["metrics"]

    async def states(self) -> dict[str, str]:
        pointer = await self.writers.released()
        return {one.version: state_of(one, pointer) for one in await self.writers.all()}

    async def pointer(self) -> ReleasedWriter:
        found = await self.writers.released()
        assert found is not None
        return found

    async def roll_back(self) -> ReleasedWriter:
        now, before = await self.writers.target_of_rollback()
        return await self.writers.roll_back(now.version, before, by="ada", why="too long")
