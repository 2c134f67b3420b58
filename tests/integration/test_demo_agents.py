"""The demonstration's agents as a process: exact numbers of tasks, and an end that is noticed."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from onward.bus import Bus, NatsServer
from onward.demo.fleet import AgentsProcess
from onward.errors import OnwardError

pytestmark = pytest.mark.timeout(60)
ANSWER = {
    "id": "c1",
    "model": "stub",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "no tool"}}
    ],
}


class _Gateway(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps(ANSWER).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Gateway)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
async def agents(
    bus: Bus, nats_server: NatsServer, gateway: str, tmp_path: Path
) -> AsyncIterator[AgentsProcess]:
    process = AgentsProcess(
        gateway=gateway,
        api_key="key",
        nats_url=nats_server.agent_url,
        outbox=tmp_path / "outbox.db",
    )
    await process.start(seed=0, max_tokens=8, run="desk-0", log=tmp_path / "agents.log")
    yield process
    await process.stop()


async def idle(agents: AgentsProcess) -> None:
    while not agents.idle:
        agents.refuse_if_ended()
        await asyncio.sleep(0.02)


async def test_as_many_tasks_run_as_were_asked_for_and_their_records_are_sent(
    agents: AgentsProcess, bus: Bus
) -> None:
    await agents.run_tasks(37)
    await idle(agents)
    assert agents.tally.tasks == 37
    assert (await bus.js.stream_info("RL_TRAJECTORIES")).state.messages == 37
    await agents.run_tasks(3)
    await idle(agents)
    assert agents.tally.tasks == 40


async def test_a_number_ends_the_free_run_and_a_pause_ends_both(agents: AgentsProcess) -> None:
    await agents.run_freely()
    while agents.tally.tasks < 50:
        await asyncio.sleep(0.01)
    assert not agents.idle
    await agents.run_tasks(10_000)
    await asyncio.sleep(0.1)
    assert not agents.idle
    await agents.pause()
    done = agents.tally.tasks
    await asyncio.sleep(0.2)
    assert agents.tally.tasks == done < 10_000


async def test_a_stop_does_not_wait_for_tasks_that_have_not_begun(agents: AgentsProcess) -> None:
    await agents.run_tasks(1_000_000)
    async with asyncio.timeout(20):
        await agents.stop()
    assert agents.tally.tasks < 1_000_000


async def test_agents_that_have_ended_are_an_error_that_names_their_log(agents: AgentsProcess) -> None:
    assert agents._child is not None
    os.kill(agents._child.pid, signal.SIGKILL)
    await agents._child.wait()
    for call in (lambda: agents.run_tasks(1), agents.run_freely, agents.pause):
        with pytest.raises(OnwardError, match=r"have ended: see logs/agents\.log"):
            await call()
