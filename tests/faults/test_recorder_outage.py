"""Outages that agents must not feel: NATS away for ten minutes, a full disk. Faults 8 and 9 of the list."""

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from onward import Recorder
from onward.bus import Bus, NatsServer
from onward.capture.recorder.delivery import Delivery
from onward.clock import ManualClock
from onward.contracts import Trajectory, decode, subjects
from onward.errors import OutboxFullError

STREAM = "RL_TRAJECTORIES"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    await server.start()
    bus = await Bus.connect(server.url, token=server.token)
    await bus.ensure_streams(migrate=True)
    await bus.close()
    yield server
    await server.stop()


def record(recorder: Recorder, name: str, size: int = 8000) -> None:
    with recorder.task("x", session_id=name) as task:
        task.turn(observation="o" * size, action="a")


async def sessions(server: NatsServer) -> list[str]:
    bus = await Bus.connect(server.url, token=server.token)
    info = await bus.js.stream_info(STREAM)
    found = []
    for sequence in range(1, info.state.last_seq + 1):
        found.append(decode((await bus.js.get_msg(STREAM, seq=sequence)).data or b"", Trajectory).session_id)
    await bus.close()
    return found


async def test_ten_minutes_without_nats_disturb_no_agent_and_then_all_arrives_in_order(server, tmp_path):
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    recorder = Recorder(tmp_path / "o.db", clock=clock, known_secrets=[])
    delivery = Delivery(recorder._outbox, server.url, server.token, None, clock)
    running = asyncio.create_task(delivery.run())

    async def until(done) -> None:
        async with asyncio.timeout(60):
            while not done():
                await clock.advance(0.25)
                await asyncio.sleep(0.01)

    await asyncio.to_thread(record, recorder, "before")
    await until(lambda: not recorder.pending())
    client = delivery._bus
    assert client is not None and not delivery.is_offline

    await server.stop()
    start = clock.monotonic()
    for number in range(60):
        await asyncio.to_thread(record, recorder, f"away-{number}")
        await clock.advance(10.0)
        assert recorder.pending() == number + 1
    assert clock.monotonic() - start == 600.0
    assert recorder.stats().recorded == 61 and recorder.stats().failed == 0
    assert delivery.is_offline and not running.done()

    await server.start()
    await until(lambda: not recorder.pending())
    assert delivery._bus is client and not client.nc.is_closed, "the client is still the same, and alive"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    recorder.close()
    assert await sessions(server) == ["before", *(f"away-{number}" for number in range(60))]


async def test_a_full_disk_is_an_error_and_an_alert_and_what_is_there_stays(server, tmp_path):
    watcher = await Bus.connect(server.url, token=server.token)
    alerts = await watcher.nc.subscribe(subjects.ALERT)
    await watcher.nc.flush()
    recorder = Recorder(tmp_path / "o.db", nats_url=server.url, nats_token=server.token, known_secrets=[])
    await asyncio.to_thread(record, recorder, "first")
    assert await asyncio.to_thread(recorder.flush, 20.0)
    writer = recorder._outbox._file.writer
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count={pages + 2}")
    with pytest.raises(OutboxFullError, match="disk"):
        await asyncio.to_thread(record, recorder, "too-much", 60_000)
    alert = json.loads((await alerts.next_msg(timeout=10)).data)
    assert (alert["kind"], alert["severity"]) == ("outbox_full", "critical")
    assert "make room" in alert["message"]
    assert recorder.stats().failed == 1
    with sqlite3.connect(tmp_path / "o.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    writer.execute("PRAGMA max_page_count=1000000")
    await asyncio.to_thread(record, recorder, "second", 60_000)
    assert await asyncio.to_thread(recorder.flush, 20.0)
    recorder.close()
    await watcher.close()
    assert await sessions(server) == ["first", "second"]


async def test_a_full_disk_while_nats_is_away_keeps_every_row_and_drains_afterwards(server, tmp_path):
    await server.stop()
    recorder = Recorder(tmp_path / "o.db", nats_url=server.url, nats_token=server.token, known_secrets=[])
    recorder._outbox._file.writer.execute("PRAGMA max_page_count=100")
    told = []
    with pytest.raises(OutboxFullError):
        for number in range(1000):
            await asyncio.to_thread(record, recorder, f"s{number}")
            told.append(f"s{number}")
    assert len(told) > 10 and recorder.pending() == len(told)
    await server.start()
    assert await asyncio.to_thread(recorder.flush, 30.0)
    recorder.close()
    assert await sessions(server) == told


async def test_an_agent_that_starts_and_ends_without_nats_is_not_kept_waiting(tmp_path):
    recorder = Recorder(tmp_path / "o.db", nats_url="nats://127.0.0.1:9", known_secrets=[])
    await asyncio.to_thread(record, recorder, "s")
    async with asyncio.timeout(30):
        while not recorder._drainer or not recorder._drainer.is_offline:
            await asyncio.sleep(0.05)
    began = time.monotonic()
    await asyncio.to_thread(recorder.close, 600.0)
    assert time.monotonic() - began < 60, "it does not wait for a server that is not there"
