"""Damaged state of the bus: a consumer or a stream is broken or gone, and reading goes on without a gap."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nats.js import api

from onward.bus import STREAMS, Ack, Bus, Message, NatsServer, consume
from onward.bus import consumer as consumer_module
from onward.bus import position as position_module
from onward.bus import server as server_module
from onward.bus.streams import all_states
from onward.contracts.buckets import ReaderPosition
from onward.errors import BusError, StreamReplacedError
from onward.recovery import service as recovery
from onward.telemetry import Alerts, Metrics

STREAM = "RL_TRAJECTORIES"
SUBJECT = "agent.rl.trajectory.v1"


class Reader:
    """Runs ``consume`` and remembers the sequences that it got."""

    def __init__(self, bus: Bus, **options) -> None:
        self.bus = bus
        self.got: list[int] = []
        self.bodies: list[bytes] = []

        async def handler(messages: list[Message]):
            self.got += [message.sequence for message in messages]
            self.bodies += [message.data for message in messages]
            return [Ack()] * len(messages)

        given = {"stream": STREAM, "durable": "reader", "handler": handler, **options}
        self.durable = given["durable"]
        self.task = asyncio.create_task(consume(bus, **given))

    async def until(self, count: int, within: float = 15.0) -> None:
        async with asyncio.timeout(within):
            while len(self.got) < count:
                await asyncio.sleep(0.01)

    async def recorded(self, sequence: int, within: float = 15.0) -> None:
        """Waits until the position is recorded."""
        bucket = self.bus.bucket(ReaderPosition.BUCKET)
        async with asyncio.timeout(within):
            while True:
                entry = await bucket.get(f"{STREAM}.{self.durable}")
                if entry and ReaderPosition.load(entry.value).sequence == sequence:
                    return
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(consumer_module, "LINGER_SECONDS", 0.2)
    monkeypatch.setattr(position_module, "RECORD_SECONDS", 0.1)


async def fill(bus: Bus, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await bus.publish(SUBJECT, b"body %d " % number * 20, msg_id=f"m{number}")


async def read_ten(server: NatsServer) -> None:
    """Reads ten messages, records the position, and stops the server."""
    bus = await Bus.connect(server.url, token=server.token)
    await bus.ensure_streams()
    await fill(bus, 1, 10)
    reader = Reader(bus)
    await reader.until(10)
    await reader.recorded(10)
    await reader.stop()
    await bus.close()
    await server.stop()


def stream_folder(server: NatsServer) -> Path:
    return next(server.data_dir.glob(f"nats/jetstream/*/streams/{STREAM}"))


async def alerts_of(bus: Bus) -> list[bytes]:
    heard: list[bytes] = []

    async def on_alert(message) -> None:
        heard.append(message.data)

    await bus.nc.subscribe("agent.rl.alert.v1", cb=on_alert)
    await bus.nc.flush()
    return heard


@pytest.mark.parametrize("damage", [b"garbage", b"", None], ids=["garbage", "empty", "removed"])
async def test_a_consumer_whose_state_is_damaged_goes_on_where_it_was(own_server, damage):
    await read_ten(own_server)
    state = stream_folder(own_server) / "obs" / "reader" / "o.dat"
    state.unlink() if damage is None else state.write_bytes(damage)
    await own_server.start()
    bus = await Bus.connect(own_server.url, token=own_server.token)
    await fill(bus, 11, 13)
    reader = Reader(bus)
    await reader.until(3)
    assert reader.got == [11, 12, 13]
    await reader.stop()
    await bus.close()


async def test_a_server_whose_disk_refuses_the_consumer_gets_one_in_memory(own_server, monkeypatch):
    monkeypatch.setattr(NatsServer, "_set_aside_damaged_consumers", lambda *_: None)  # as a server elsewhere
    await read_ten(own_server)
    (stream_folder(own_server) / "obs" / "reader" / "o.dat").write_bytes(b"garbage")
    await own_server.start()
    bus = await Bus.connect(own_server.url, token=own_server.token)
    heard = await alerts_of(bus)
    await fill(bus, 11, 13)
    reader = Reader(bus)
    await reader.until(3)
    assert reader.got == [11, 12, 13]
    assert any(b"consumer_damaged" in alert for alert in heard)
    await reader.stop()
    await bus.close()


async def test_a_consumer_deleted_while_nobody_ran_starts_at_its_recorded_position(own_server):
    await read_ten(own_server)
    await own_server.start()
    bus = await Bus.connect(own_server.url, token=own_server.token)
    await bus.js.delete_consumer(STREAM, "reader")
    await fill(bus, 11, 12)
    reader = Reader(bus)
    await reader.until(2)
    assert reader.got == [11, 12]
    await reader.stop()
    await bus.close()


async def test_a_consumer_that_gives_nothing_is_created_again(bus, monkeypatch):
    await fill(bus, 1, 3)
    original, pulls = consumer_module.Puller.pull, []

    async def nothing_at_first(self, count, *, linger=0.0):
        pulls.append(linger)
        return [] if len(pulls) <= 4 else await original(self, count, linger=linger)

    created = []
    add_consumer = bus.js.add_consumer

    async def remember(*args, **options):
        created.append(args)
        return await add_consumer(*args, **options)

    monkeypatch.setattr(bus.js, "add_consumer", remember)
    monkeypatch.setattr(consumer_module.Puller, "pull", nothing_at_first)
    reader = Reader(bus)
    await reader.until(3)
    assert reader.got == [1, 2, 3]
    assert len(created) == 2
    await reader.stop()


async def test_new_messages_under_the_sequences_of_lost_ones_are_read(own_server):
    await read_ten(own_server)
    block = max((stream_folder(own_server) / "msgs").glob("*.blk"))
    data = bytearray(block.read_bytes())
    at = data.index(b"body 6 ")
    data[data.rindex(b"agent.rl", 0, at) - 22] ^= 0xFF  # the length in the header of message 6
    block.write_bytes(data)
    await own_server.start()
    bus = await Bus.connect(own_server.url, token=own_server.token)
    heard = await alerts_of(bus)
    last = (await bus.js.stream_info(STREAM)).state.last_seq
    assert last == 5, "the server forgot the last messages and counts on from there"
    await fill(bus, 101, 106)  # new messages with the sequences 6 to 11
    reader = Reader(bus)
    await reader.until(6)
    assert reader.got == [6, 7, 8, 9, 10, 11]
    assert reader.bodies[0].startswith(b"body 101 ")
    assert any(b"stream_lost" in alert for alert in heard)
    await reader.stop()
    await bus.close()


async def test_a_block_at_which_the_server_hangs_is_named_and_the_advice_helps(
    own_server, monkeypatch, tmp_path
):
    """The server looks for all messages between two sequences, one of which is damaged."""
    await read_ten(own_server)
    folder = stream_folder(own_server)
    block = max((folder / "msgs").glob("*.blk"))
    data = bytearray(block.read_bytes())
    at = data.index(b"body 6 ")
    data[data.rindex(b"agent.rl", 0, at) - 22 + 10] ^= 0x80  # the sequence in the header of message 6
    block.write_bytes(data)
    with monkeypatch.context() as patch:
        patch.setattr(server_module, "START_SECONDS", 3.0)
        with pytest.raises(BusError, match="restores stream RL_TRAJECTORIES") as hung:
            await own_server.start()
    assert f"move {folder} out of the data folder" in str(hung.value)
    folder.rename(tmp_path / "kept")
    await own_server.start()
    bus = await Bus.connect(own_server.url, token=own_server.token)
    await bus.ensure_streams()
    await fill(bus, 101, 103)
    reader = Reader(bus)
    await reader.until(3)
    assert [body.split()[1] for body in reader.bodies] == [b"101", b"102", b"103"]
    await reader.stop()
    await bus.close()


async def test_a_truncated_block_does_not_stop_its_reader(own_server):
    await read_ten(own_server)
    block = max((stream_folder(own_server) / "msgs").glob("*.blk"))
    os.truncate(block, block.stat().st_size // 2)
    await own_server.start()
    bus = await Bus.connect(own_server.url, token=own_server.token)
    await fill(bus, 101, 103)
    reader = Reader(bus)
    await reader.until(3)
    assert [body.split()[1] for body in reader.bodies] == [b"101", b"102", b"103"]
    await reader.stop()
    await bus.close()


async def test_a_deleted_stream_is_created_again_and_told(bus):
    heard = await alerts_of(bus)
    reader = Reader(bus)
    await fill(bus, 1, 3)
    await reader.until(3)
    await reader.recorded(3)
    await bus.js.delete_stream(STREAM)
    async with asyncio.timeout(15):
        while True:
            try:
                await bus.js.stream_info(STREAM)
                break
            except Exception:
                await asyncio.sleep(0.05)
    await fill(bus, 11, 12)
    await reader.until(5)
    assert reader.got == [1, 2, 3, 1, 2]
    assert any(b"stream_lost" in alert and b"RL_TRAJECTORIES" in alert for alert in heard)
    info = await bus.js.stream_info(STREAM)
    assert info.config.max_bytes == STREAMS[STREAM].max_bytes
    await reader.stop()


def watched(bus: Bus) -> Any:
    return SimpleNamespace(bus=bus, clock=bus.clock, alerts=Alerts(bus, bus.clock, Metrics()))


@pytest.mark.parametrize("first", ["a reader", "the watch"])
async def test_one_deleted_stream_is_told_once_whoever_meets_it(bus, monkeypatch, first):
    monkeypatch.setattr(recovery, "STREAM_SECONDS", 0.1 if first == "the watch" else 2.0)
    heard = await alerts_of(bus)
    readers = [Reader(bus), Reader(bus, durable="another")]
    watch = asyncio.create_task(recovery.watch_streams(watched(bus)))
    await fill(bus, 1, 3)
    for reader in readers:
        await reader.until(3)
    await readers[0].recorded(3)
    await readers[1].recorded(3)
    before = (await bus.js.stream_info(STREAM)).created
    await bus.js.delete_stream(STREAM)
    await fill(bus, 11, 12)  # waits for the new stream
    for reader in readers:
        await reader.until(5)
        await reader.recorded(2)
        await reader.stop()
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    with pytest.raises(asyncio.CancelledError):
        await recovery.watch_streams(_once(watched(bus)))
    await bus.nc.flush()
    assert (await bus.js.stream_info(STREAM)).created != before
    assert [STREAM in alert.decode() for alert in heard if b"stream_lost" in alert] == [True]


def _once(ctx: Any) -> Any:
    """Ends a loop after its first round."""

    async def end(seconds: float) -> None:
        raise asyncio.CancelledError

    ctx.clock = SimpleNamespace(sleep=end)
    return ctx


async def test_streams_on_a_later_page_of_the_list_are_not_taken_for_deleted(own_server):
    """The server lists 256 streams at a time; those of another program come first here."""
    bus = await Bus.connect(own_server.url, token=own_server.token)
    await bus.ensure_streams()
    config = api.StreamConfig(storage=api.StorageType.MEMORY)
    for number in range(260):
        await bus.js.add_stream(config, name=f"A{number}", subjects=[f"a.{number}"])
    await bus.publish(SUBJECT, b"body", msg_id="m1")
    heard = await alerts_of(bus)
    await bus.js.delete_stream("KV_rl_models")
    with pytest.raises(asyncio.CancelledError):
        await recovery.watch_streams(_once(watched(bus)))
    await bus.nc.flush()
    await asyncio.sleep(0.1)
    assert [b"KV_rl_models" in alert for alert in heard] == [True]
    states = await all_states(bus)
    assert {*STREAMS, "KV_rl_models", "A259"} <= states.keys() and states[STREAM].messages == 1
    await bus.close()


async def test_a_reader_that_keeps_its_own_position_ends_when_its_stream_is_created_again(bus):
    reader = Reader(bus, start_sequence=1)
    await fill(bus, 1, 2)
    await reader.until(2)
    await bus.js.delete_stream(STREAM)
    with pytest.raises(StreamReplacedError):
        await asyncio.wait_for(reader.task, 60)
