"""Real servers for integration tests: one nats-server per session, fresh streams per test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from engine_world import engine_world
from serving_world import World

from onward.bus import BUCKETS, STREAMS, Bus, NatsServer


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def nats_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NatsServer]:
    """A running server. It is shared: a test that kills or stops one takes ``own_server``."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def bare_bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    """A connection to a server without any stream."""
    bus = await Bus.connect(nats_server.url, token=nats_server.token, name="test")
    await _delete_all(bus)
    yield bus
    await _delete_all(bus)
    await bus.close()


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    """A connection with every declared stream and bucket, all empty and without consumers."""
    bus = await Bus.connect(nats_server.url, token=nats_server.token, name="test")
    for info in await bus.js.streams_info():
        declared = str(info.config.name).removeprefix("KV_") in {*STREAMS, *BUCKETS}
        if info.state.last_seq or info.state.consumer_count or not declared:
            await bus.js.delete_stream(str(info.config.name))
    await bus.ensure_streams(migrate=True)
    yield bus
    await bus.close()


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """A running server that only this test uses and may kill; after ``kill`` it does not come back."""
    server = NatsServer(tmp_path / "data")
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine_gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A gateway with a real engine child, which takes seconds to start: shared, with a server of its own."""
    folder = tmp_path_factory.mktemp("engine-gateway")
    server = NatsServer(folder / "nats")
    await server.start()
    async with engine_world(server, folder) as world:
        yield world
    await server.stop()


@pytest.fixture
async def world(bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    """A gateway with the scripted engine, and a client of it."""
    async with World(bus, tmp_path) as world:
        yield world


async def _delete_all(bus: Bus) -> None:
    for info in await bus.js.streams_info():
        await bus.js.delete_stream(str(info.config.name))
