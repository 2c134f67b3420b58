"""The api on a real bus, with the intake of a trainer that starts no job: jobs stay queued."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from onward.api import service
from onward.bus import Bus, consume
from onward.clock import SystemClock
from onward.config import Settings
from onward.context import Context
from onward.contracts import subjects
from onward.http.app import local_key
from onward.telemetry.alerts import Alerts
from onward.telemetry.metrics import Metrics
from onward.training.role.trainer import Trainer
from onward.warehouse import Objects

CONFIG: dict[str, Any] = {
    "algorithm": "ppo",
    "base_model": "tiny",
    "dataset": {"source": "nats_stream", "stream_name": "RL_TRAJECTORIES", "sample_size": 5000},
    "hyperparameters": {"learning_rate": 1e-5, "batch_size": 32, "epochs": 3},
}


@dataclass(frozen=True)
class TrainingService:
    ctx: Context
    client: httpx.AsyncClient
    trainer: Trainer

    @property
    def url(self) -> str:
        return self.ctx.endpoints["api_url"]

    @property
    def key(self) -> str:
        return local_key(self.ctx.settings.run_dir)


@asynccontextmanager
async def training_service(
    bus: Bus, folder: Path, *, takes: bool = True, **settings: Any
) -> AsyncIterator[TrainingService]:
    """``takes``: whether a trainer takes the requests."""
    given: dict[str, Any] = {"data_dir": folder / "data", "model": {"base": "tiny"}, **settings}
    given["http"] = {"api_port": 0, **given.get("http", {})}
    metrics, clock = Metrics(), SystemClock()
    ctx = Context(
        settings=Settings.model_validate(given),
        clock=clock,
        bus=bus,
        warehouse=None,  # type: ignore[arg-type]
        objects=Objects.open(folder / "objects"),
        metrics=metrics,
        alerts=Alerts(bus, clock, metrics),
    )
    ctx.settings.run_dir.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(ctx)
    tasks = [asyncio.create_task(service.run(ctx))]
    if takes:
        await bus.serve(subjects.TRAINING_STATUS_REQUEST, trainer.answer_status, queue="trainer")
        for durable, subject, handler in (
            ("trainer", subjects.TRAINING_REQUEST, trainer.handle_requests),
            ("trainer-control", subjects.TRAINING_CONTROL, trainer.handle_control),
            ("trainer-rubrics", subjects.TRAINING_RUBRICS, trainer.handle_rubrics),
        ):
            intake = consume(
                bus, stream="RL_TRAINING", durable=durable, subject=subject, handler=handler, clock=clock
            )
            tasks.append(asyncio.create_task(intake))
    try:
        async with asyncio.timeout(20):
            while "api_url" not in ctx.endpoints:
                await asyncio.sleep(0.01)
                if tasks[0].done():
                    tasks[0].result()
        async with httpx.AsyncClient(base_url=ctx.endpoints["api_url"], timeout=30) as client:
            yield TrainingService(ctx, client, trainer)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
