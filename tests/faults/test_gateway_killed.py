"""A gateway that is killed with tasks in hand: what it answered a moment before is recorded, and once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import httpx

from onward.bus import Bus, NatsServer
from onward.contracts import Trajectory, decode

TESTS = Path(__file__).parents[1] / "integration"
GATEWAY = """
import asyncio, os, sys
from pathlib import Path
from onward.bus import Bus
from serving_world import World

async def main():
    bus = await Bus.connect(os.environ["BUS"], token=os.environ["TOKEN"], name="killed")
    async with World(bus, Path(sys.argv[1])) as world:
        print(world.gateway.server.url, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def gateway(server: NatsServer, folder: Path) -> tuple[asyncio.subprocess.Process, httpx.AsyncClient]:
    environment = {**os.environ, "BUS": server.url, "TOKEN": server.token, "PYTHONPATH": str(TESTS)}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", GATEWAY, str(folder), env=environment, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    url = (await asyncio.wait_for(child.stdout.readline(), 60)).decode().strip()
    key = (folder / "data" / "run" / "api.key").read_text()
    return child, httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30)


async def recorded(bus: Bus, count: int) -> list[Trajectory]:
    async with asyncio.timeout(30):
        while (last := (await bus.js.stream_info("RL_TRAJECTORIES")).state.last_seq) < count:
            await asyncio.sleep(0.05)
    messages = [await bus.js.get_msg("RL_TRAJECTORIES", seq=number) for number in range(1, last + 1)]
    return [decode(message.data or b"", Trajectory) for message in messages]


async def test_killed_with_tasks_in_hand(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats", respawn=False)
    await server.start()
    bus = await Bus.connect(server.url, token=server.token, name="test")
    await bus.ensure_streams()
    children: list[asyncio.subprocess.Process] = []
    try:
        child, client = await gateway(server, tmp_path)
        children.append(child)
        async with client:
            for number in range(20):
                asked = [{"role": "user", "content": f"task {number}"}]
                answer = await client.post(
                    "/v1/chat/completions",
                    json={"messages": asked},
                    headers={"Onward-Session": f"s{number}"},
                )
                assert answer.status_code == 200
            closed = await client.post("/sessions/s0/close", json={"status": "failed"})
            assert closed.status_code == 200
            journal = tmp_path / "data" / "outbox"
            async with asyncio.timeout(30):
                while not all(_is_kept(journal, f"task {number}") for number in range(1, 20)):
                    await asyncio.sleep(0.05)
        child.send_signal(signal.SIGKILL)
        await child.wait()
        child, client = await gateway(server, tmp_path)
        children.append(child)
        await client.aclose()
        found = await recorded(bus, 20)
        assert sorted(item.session_id for item in found) == sorted(f"s{number}" for number in range(20))
        assert len({item.trajectory_id for item in found}) == 20
        outcomes = {item.session_id: item.metadata.outcome for item in found}
        assert outcomes["s0"] is not None and not any(outcomes[f"s{number}"] for number in range(1, 20))
    finally:
        for child in children:
            if child.returncode is None:
                child.kill()
                await child.wait()
        await bus.close()
        await server.stop()


def _is_kept(folder: Path, text: str) -> bool:
    needle = json.dumps(text).encode()
    return any(needle in file.read_bytes() for file in folder.glob("gateway-open.db*"))
