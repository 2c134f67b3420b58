"""The recorder with a real server: everything arrives once, whatever happens to the server."""

import asyncio
import os
import subprocess
import sys
import threading

from onward import Recorder
from onward.bus import Bus
from onward.contracts import Trajectory, decode, subjects

STREAM = "RL_TRAJECTORIES"


async def received(bus: Bus, at_least: int) -> list[Trajectory]:
    """All trajectories on the stream."""
    info = await bus.js.stream_info(STREAM)
    assert info.state.messages >= at_least
    found = []
    for sequence in range(info.state.first_seq, info.state.last_seq + 1):
        raw = await bus.js.get_msg(STREAM, seq=sequence)
        assert raw.subject == subjects.TRAJECTORY
        found.append(decode(raw.data or b"", Trajectory))
    return found


def record(recorder: Recorder, name: str, turns: int) -> None:
    with recorder.task("Count", session_id=name) as task:
        for number in range(turns):
            task.turn(observation=f"o{number}", action=f"a{number}")
        task.outcome("completed_successfully")


async def test_eight_threads_arrive_completely(bus, nats_server, tmp_path):
    recorder = Recorder(tmp_path / "o.db", nats_url=nats_server.url, nats_token=nats_server.token)

    def work(thread: int) -> None:
        for number in range(12):
            record(recorder, f"{thread}-{number}", 1 + number % 3)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert await asyncio.to_thread(recorder.flush, 30.0)
    recorder.close()
    arrived = await received(bus, 96)
    assert {(t.session_id, len(t.turns)) for t in arrived} == {
        (f"{thread}-{number}", 1 + number % 3) for thread in range(8) for number in range(12)
    }
    assert len(arrived) == 96


async def test_a_killed_server_disturbs_nobody_and_loses_nothing(own_server, tmp_path):
    bus = await Bus.connect(own_server.url, token=own_server.token)
    await bus.ensure_streams(migrate=True)
    recorder = Recorder(tmp_path / "o.db", nats_url=own_server.url, nats_token=own_server.token)
    await asyncio.to_thread(record, recorder, "before", 1)
    assert await asyncio.to_thread(recorder.flush, 20.0)
    await own_server.stop()
    for number in range(5):
        await asyncio.to_thread(record, recorder, f"away-{number}", 1)
    assert recorder.pending() == 5
    await own_server.start()
    assert await asyncio.to_thread(recorder.flush, 30.0)
    recorder.close()
    await bus.close()
    bus = await Bus.connect(own_server.url, token=own_server.token)
    arrived = await received(bus, 6)
    assert [t.session_id for t in arrived] == ["before"] + [f"away-{number}" for number in range(5)]
    await bus.close()


async def test_a_killed_agent_loses_nothing_that_it_was_told_is_recorded(bus, nats_server, tmp_path):
    code = (
        "import os, sys; from onward import Recorder; r = Recorder(sys.argv[1])\n"
        "for i in range(3):\n"
        "    with r.task('x', session_id=f's{i}') as t: t.turn(observation='o', action='a')\n"
        "os._exit(137)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "o.db")]
    died = await asyncio.to_thread(subprocess.run, command, env=dict(os.environ), timeout=60)
    assert died.returncode == 137
    recorder = Recorder(tmp_path / "o.db", nats_url=nats_server.url, nats_token=nats_server.token)
    assert await asyncio.to_thread(recorder.flush, 20.0)
    recorder.close()
    assert [t.session_id for t in await received(bus, 3)] == ["s0", "s1", "s2"]
