"""A gateway in front of a real engine child with a tiny random model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from serving_world import World

from onward.bus import Bus, NatsServer
from onward.clock import SystemClock
from onward.config import Settings
from onward.lm.tiny import build_tiny
from onward.serving.engines.local import EngineProcess

CORPUS = ["Add 2 and 3.", "What is the capital?", '{"tool_name": "response", "tool_args": {"text": "5"}}']


@asynccontextmanager
async def engine_world(server: NatsServer, folder: Path) -> AsyncIterator[World]:
    """Runs both until the block ends. ``gpt-4o`` is an alias of what serves."""
    model = build_tiny(folder / "model", CORPUS, vocab=300, hidden=32, layers=2, max_positions=4096)
    settings = Settings.model_validate(
        {"data_dir": folder / "engine", "model": {"threads": 1, "max_context": 4096, "base": "tiny"}}
    )
    process = EngineProcess(settings, clock=SystemClock(), folder=model)
    bus = await Bus.connect(server.url, token=server.token, name="clients")
    try:
        await bus.ensure_streams(migrate=True)
        await process.start()
        async with World(bus, folder, engine=process.engine, aliases={"gpt-4o": "onward"}) as world:
            yield world
    finally:
        await process.stop()
        await bus.close()
