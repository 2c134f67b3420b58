"""A gateway that is killed with tasks in hand: what it answered a moment before is recorded, and once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from gateway_child import gateway, kept, recorded
from serving_world import World

from onward.bus import Bus, NatsServer, Outbox
from onward.capture.collecting.quarantine import Quarantine, QuarantineKeys
from onward.clock import SystemClock
from onward.config import load
from onward.serving.http import gateway as gateway_module
from onward.serving.recording.recording import Journal
from onward.warehouse import Objects

SECRET = "ghp_" + "aB3dE5fG7hJ9" * 3


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[Bus]:
    bus = await Bus.connect(server.url, token=server.token, name="test")
    await bus.ensure_streams()
    yield bus
    await bus.close()


async def test_killed_with_tasks_in_hand(server, bus, tmp_path):
    async with gateway(server, tmp_path) as child:
        for number in range(20):
            await child.ask(f"s{number}", f"task {number}")
        assert (await child.close("s0")).status_code == 200
        await kept(tmp_path, *(f"task {number}" for number in range(1, 20)))
    async with gateway(server, tmp_path):
        found = await recorded(bus, 20)
    assert sorted(item.session_id for item in found) == sorted(f"s{number}" for number in range(20))
    assert len({item.trajectory_id for item in found}) == 20
    outcomes = {item.session_id: item.metadata.outcome for item in found}
    assert outcomes["s0"] is not None and not any(outcomes[f"s{number}"] for number in range(1, 20))


async def die_at(point: str, server: NatsServer, folder: Path, text: str, *, unclean: bool = False) -> str:
    """A gateway with one task in its journal that dies while it records this; the task's trajectory id."""
    async with gateway(server, folder, crash_at=point, unclean=unclean) as child:
        name = await child.ask("s", text)
        await kept(folder, text.replace(SECRET, "<GITHUB_TOKEN:1>"))
        with pytest.raises(httpx.HTTPError):
            await child.close("s")
        assert await asyncio.wait_for(child.process.wait(), 30) == 137
    return name


def left_open(folder: Path) -> list[dict]:
    journal = Journal(folder / "data" / "outbox" / "gateway-open.db")
    try:
        return journal.read()
    finally:
        journal.close()


async def nothing_open(folder: Path) -> None:
    async with asyncio.timeout(60):
        while left_open(folder):
            await asyncio.sleep(0.05)


async def test_killed_between_the_outbox_and_the_journal_is_one_trajectory(server, bus, tmp_path):
    name = await die_at("capture.recorded", server, tmp_path, "the one task")
    assert [item["trajectory_id"] for item in left_open(tmp_path)] == [name]
    async with gateway(server, tmp_path):
        await recorded(bus, 1)
        await nothing_open(tmp_path)
        outbox = Outbox(tmp_path / "data" / "outbox" / "gateway.db")
        async with asyncio.timeout(60):
            while outbox.pending():
                await asyncio.sleep(0.05)
        assert [receipt.msg_id for receipt in outbox.receipts()] == [name]
        outbox.close()
    (found,) = await recorded(bus, 1)
    assert found.trajectory_id == name
    outcome = found.metadata.outcome
    assert outcome is not None and outcome.status == "failed", (
        "the one that was closed, not the one left open"
    )


@pytest.mark.parametrize("point, has_secret", [("capture.holding", False), ("capture.held", True)])
async def test_killed_around_the_quarantine_is_one_held_body(server, bus, tmp_path, point, has_secret):
    """Before it is held there is only what the journal has, redacted; after it, the raw body stays."""
    name = await die_at(point, server, tmp_path, f"use {SECRET}", unclean=True)
    async with gateway(server, tmp_path, unclean=True):
        await nothing_open(tmp_path)
    settings = load(environ={}, overrides={"data_dir": str(tmp_path / "data")})
    quarantine = Quarantine(
        Objects.open(tmp_path / "objects"), QuarantineKeys.from_settings(settings), SystemClock()
    )
    (held,) = await quarantine.list_held()
    assert (held.trajectory_id, held.reason) == (name, "unclean")
    _, message = await quarantine.open(held.held_id)
    assert json.loads(message.data)["trajectory_id"] == name
    assert (SECRET.encode() in message.data) == has_secret
    assert (await bus.js.stream_info("RL_TRAJECTORIES")).state.last_seq == 0


async def test_a_living_gateway_takes_over_what_a_killed_one_had_in_hand(server, bus, tmp_path, monkeypatch):
    monkeypatch.setattr(gateway_module, "ADOPT_SECONDS", 0.2)
    async with gateway(server, tmp_path) as killed, World(bus, tmp_path) as living:
        assert living.gateway.place.name == "gateway-2"
        await living.ask("theirs", "a task of the living one")
        names = [await killed.ask(f"s{number}", f"task {number}") for number in range(5)]
        assert (await killed.close("s0")).status_code == 200
        await kept(tmp_path, *(f"task {number}" for number in range(1, 5)))
        killed.process.kill()
        found = await recorded(bus, 5)
        assert sorted(item.trajectory_id for item in found) == sorted(names)
        outcomes = {item.session_id: item.metadata.outcome for item in found}
        assert outcomes["s0"] is not None and not any(outcomes[f"s{number}"] for number in range(1, 5))
        late = await living.client.post("/sessions/s1/close", json={"status": "failed"})
        assert late.status_code in (404, 503), "a close that comes too late is never confirmed"
        assert (await bus.js.stream_info("RL_TRAJECTORIES")).state.last_seq == 5
