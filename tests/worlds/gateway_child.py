"""A gateway in a process of its own, which a test may kill or put on a full disk.

Lines on its standard input: ``full`` (nothing that it writes to disk can grow a file any more) and ``room``;
each is answered with ``done``. With ``UNCLEAN`` set no trajectory passes the contract.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from onward.bus import Bus, NatsServer
from onward.contracts import Trajectory, decode

WORLDS = Path(__file__).parent
GATEWAY = """
import asyncio, os, resource, sys
from pathlib import Path
from onward.bus import Bus
from onward.capture.recorder.preparation import Preparer
from onward.errors import ContractError
from serving_world import World

def unclean(self, redacted):
    raise ContractError("unclean", "No document passes here.")

async def main():
    if os.environ.get("UNCLEAN"):
        Preparer.encode = unclean
    bus = await Bus.connect(os.environ["BUS"], token=os.environ["TOKEN"], name="killed")
    async with World(bus, Path(sys.argv[1])) as world:
        print(world.gateway.server.url, flush=True)
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            limit = 0 if line == "full" else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            print("done", flush=True)

asyncio.run(main())
"""


@dataclass
class Child:
    process: asyncio.subprocess.Process
    client: httpx.AsyncClient

    async def tell(self, line: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{line}\n".encode())
        await self.process.stdin.drain()
        assert await asyncio.wait_for(self.process.stdout.readline(), 30) == b"done\n"

    async def ask(self, session: str, text: str) -> str:
        """The trajectory that the answer belongs to."""
        answer = await self.client.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": text}]},
            headers={"Onward-Session": session},
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["onward"]["trajectory_id"]

    async def close(self, session: str) -> httpx.Response:
        return await self.client.post(f"/sessions/{session}/close", json={"status": "failed"})


@asynccontextmanager
async def gateway(
    server: NatsServer, folder: Path, *, crash_at: str = "", unclean: bool = False
) -> AsyncIterator[Child]:
    """Runs until the block ends, and is killed then."""
    environment = {
        **os.environ,
        "BUS": server.url,
        "TOKEN": server.token,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(WORLDS), os.environ.get("PYTHONPATH")])),
        "ONWARD_CRASHPOINT": crash_at,
        "UNCLEAN": "yes" if unclean else "",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        GATEWAY,
        str(folder),
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,  # or a full disk would be one for its log, too
    )
    try:
        assert process.stdout is not None
        url = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
        key = (folder / "data" / "run" / "api.key").read_text()
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
            yield Child(process, client)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def recorded(bus: Bus, count: int) -> list[Trajectory]:
    """All trajectories on the stream, once there are ``count``."""
    async with asyncio.timeout(60):
        while (last := (await bus.js.stream_info("RL_TRAJECTORIES")).state.last_seq) < count:
            await asyncio.sleep(0.05)
    messages = [await bus.js.get_msg("RL_TRAJECTORIES", seq=number) for number in range(1, last + 1)]
    return [decode(message.data or b"", Trajectory) for message in messages]


async def kept(folder: Path, *texts: str) -> None:
    """Until the journal holds these."""
    async with asyncio.timeout(60):
        while not all(_is_kept(folder / "data" / "outbox", text.encode()) for text in texts):
            await asyncio.sleep(0.05)


def _is_kept(folder: Path, needle: bytes) -> bool:
    return any(b'"' + needle + b'"' in file.read_bytes() for file in folder.glob("gateway-open.db*"))
