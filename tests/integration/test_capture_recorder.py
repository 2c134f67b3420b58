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


def check_thousand(arrived: list[Trajectory]) -> None:
    """Exactly the thousand tasks, each with its own turns in their order."""
    assert len(arrived) == len({t.trajectory_id for t in arrived}) == 1000
    assert {t.session_id for t in arrived} == {f"task-{number}" for number in range(1000)}
    for trajectory in arrived:
        number = int(trajectory.session_id.removeprefix("task-"))
        told = [(t.turn_id, t.observation.content, t.action.raw_response) for t in trajectory.turns]
        assert told == [(i + 1, f"{number}:o{i}", f"{number}:a{i}") for i in range(1 + number % 5)]


async def test_a_thousand_tasks_by_eight_threads_are_a_thousand_trajectories(bus, nats_server, tmp_path):
    recorder = Recorder(tmp_path / "o.db", nats_url=nats_server.url, nats_token=nats_server.token)

    def work(thread: int) -> None:
        for number in range(thread, 1000, 8):
            with recorder.task("Count", session_id=f"task-{number}") as task:
                for i in range(1 + number % 5):
                    task.turn(observation=f"{number}:o{i}", action=f"{number}:a{i}")

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert await asyncio.to_thread(recorder.flush, 120.0)
    recorder.close()
    check_thousand(await received(bus, 1000))


async def test_a_thousand_tasks_by_asyncio_are_a_thousand_trajectories(bus, nats_server, tmp_path):
    recorder = Recorder(tmp_path / "o.db", nats_url=nats_server.url, nats_token=nats_server.token)

    async def work(number: int) -> None:
        async with recorder.task("Count", session_id=f"task-{number}") as task:
            for i in range(1 + number % 5):
                async with task.open_turn(f"{number}:o{i}", action=f"{number}:a{i}"):
                    await asyncio.sleep(0)

    await asyncio.gather(*(work(number) for number in range(1000)))
    assert await asyncio.to_thread(recorder.flush, 120.0)
    await asyncio.to_thread(recorder.close)
    check_thousand(await received(bus, 1000))


async def test_what_is_published_carries_its_id_and_schema(bus, nats_server, tmp_path):
    recorder = Recorder(tmp_path / "o.db", nats_url=nats_server.url, nats_token=nats_server.token)
    await asyncio.to_thread(record, recorder, "s", 1)
    assert await asyncio.to_thread(recorder.flush, 30.0)
    recorder.close()
    raw = await bus.js.get_msg(STREAM, seq=(await bus.js.stream_info(STREAM)).state.first_seq)
    trajectory = decode(raw.data or b"", Trajectory)
    assert raw.headers == {"Nats-Msg-Id": trajectory.trajectory_id, "Rl-Schema": "v1"}


async def test_nats_that_comes_later_gets_everything(own_server, tmp_path):
    bus = await Bus.connect(own_server.url, token=own_server.token)
    await bus.ensure_streams(migrate=True)
    await bus.close()
    await own_server.stop()
    recorder = Recorder(tmp_path / "o.db", nats_url=own_server.url, nats_token=own_server.token)
    for number in range(3):
        await asyncio.to_thread(record, recorder, f"early-{number}", 1)
    assert recorder.pending() == 3
    await own_server.start()
    assert await asyncio.to_thread(recorder.flush, 60.0)
    recorder.close()
    bus = await Bus.connect(own_server.url, token=own_server.token)
    assert [t.session_id for t in await received(bus, 3)] == [f"early-{number}" for number in range(3)]
    await bus.close()


async def test_a_program_that_just_ends_has_sent_what_it_recorded(bus, nats_server, tmp_path):
    code = (
        "import sys; from onward import Recorder\n"
        "r = Recorder(sys.argv[1], nats_url=sys.argv[2], nats_token=sys.argv[3], objects=sys.argv[4])\n"
        "for size in (1, 40):\n"
        "    with r.task('x', session_id=f's{size}') as t:\n"
        "        for _ in range(size): t.turn(observation='word ' * 10_000, action='a')\n"
    )
    where = [str(tmp_path / "o.db"), nats_server.url, nats_server.token, str(tmp_path / "objects")]
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code, *where], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and done.stderr == ""
    assert [t.session_id for t in await received(bus, 2)] == ["s1", "s40"]
    assert Recorder(tmp_path / "o.db").pending() == 0


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
