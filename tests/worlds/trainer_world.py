"""The trainer role in memory: buckets, clock, published events; a job's attempt is what the test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from unreadable_alone import NoStandIns

from onward import config
from onward.bus import Entry
from onward.clock import ManualClock
from onward.contracts import TrainingRequest, encode
from onward.errors import BusError, ConflictError
from onward.telemetry.metrics import Metrics
from onward.training.role import trainer as service
from onward.training.role.job_table import JobRecord
from onward.warehouse import Objects


class Bucket:
    """Compare-and-set in memory; while ``away`` every call fails as it does after its deadline."""

    def __init__(self) -> None:
        self.data: dict[str, tuple[bytes, int]] = {}
        self.name, self.bus = "rl_jobs", SimpleNamespace(unreadable=NoStandIns())
        self.away = False

    def _check(self) -> None:
        if self.away:
            raise BusError("NATS is away.")

    async def get(self, key: str) -> Entry | None:
        self._check()
        return Entry(key, *self.data[key]) if key in self.data else None

    async def keys(self, prefix: str = "") -> list[str]:
        self._check()
        return sorted(key for key in self.data if key.startswith(prefix))

    async def entries(self, prefix: str = "") -> list[Entry]:
        return [Entry(key, *self.data[key]) for key in await self.keys(prefix)]

    async def create(self, key: str, value: bytes) -> int:
        if key in self.data:
            raise ConflictError("It exists.")
        self.data[key] = (value, 1)
        return 1

    async def update(self, key: str, value: bytes, revision: int, *, deadline: float = 30.0) -> int:
        self._check()
        if self.data[key][1] != revision:
            raise ConflictError("It changed.")
        self.data[key] = (value, revision + 1)
        return revision + 1


class World:
    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock = ManualClock()
        self.buckets: dict[str, Bucket] = {}
        self.request: Any = None
        self.alerts: list[str] = []
        self.alert_texts: list[str] = []
        self.published: dict[str, dict[str, Any]] = {}
        self.settings = config.load(environ={}, overrides={"data_dir": folder, **settings})
        self.ctx: Any = SimpleNamespace(
            settings=self.settings,
            clock=self.clock,
            bus=SimpleNamespace(bucket=self.bucket, publish=self._publish),
            objects=Objects.open(folder / "objects"),
            metrics=Metrics(),
            base_model=None,
            alerts=SimpleNamespace(raise_=self._alert),
        )

    def bucket(self, name: str) -> Bucket:
        return self.buckets.setdefault(name, Bucket())

    async def _publish(
        self, subject: str, data: bytes, *, msg_id: str, deadline: float | None = None
    ) -> None:
        self.published.setdefault(msg_id, json.loads(data))

    async def _alert(self, kind: str, message: str, severity: str = "warning", **facts: Any) -> None:
        self.alerts.append(kind)
        self.alert_texts.append(f"{severity}: {message} {facts}")

    @property
    def job(self) -> JobRecord:
        return JobRecord.model_validate_json(self.bucket("rl_jobs").data["job.job-1"][0])

    @asynccontextmanager
    async def trainer(self, attempt: Callable[..., Any]) -> AsyncIterator[asyncio.Task[None]]:
        trainer = service.Trainer(self.ctx)
        trainer._attempt = attempt  # type: ignore[method-assign]
        task = asyncio.create_task(trainer.run_jobs())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def world_with_a_job(folder: Path, **settings: Any) -> World:
    """A world with ``job-1`` in the queue: an ordinary job on logged work."""
    made = World(folder, **settings)
    request = asked(None, "reinforce", source="clickhouse")
    await service.Trainer(made.ctx).table.register(request)
    made.request = SimpleNamespace(data=encode(request))
    return made


def asked(environment: dict[str, Any] | None, algorithm: str = "rloo", **dataset: Any) -> TrainingRequest:
    return TrainingRequest.model_validate(
        {
            "training_job_id": "job-1",
            "timestamp": "2026-01-01T00:00:00Z",
            "requester": "tests",
            "trigger_reason": "manual",
            "training_config": {
                "algorithm": algorithm,
                "base_model": "smollm2",
                "dataset": {
                    "source": "local",
                    "sample_size": 96,
                    **({} if environment is None else {"environment": environment}),
                    **dataset,
                },
                "hyperparameters": {"learning_rate": 1e-2, "batch_size": 16, "epochs": 1},
            },
        }
    )
