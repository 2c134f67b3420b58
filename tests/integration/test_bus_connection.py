"""Publishing and waiting: pitfalls 1 to 4 and 13 of the JetStream notes, on a real server."""

from __future__ import annotations

import asyncio
import logging

import nats.errors
import nats.js.errors
import pytest

from onward.bus import Bus, Outbox, PublishRejectedError
from onward.errors import BusError, ConflictError

TRAJECTORY = "agent.rl.trajectory.v1"


async def _connected(server) -> Bus:
    bus = await Bus.connect(server.url, token=server.token)
    await bus.ensure_streams()
    return bus


async def test_the_client_never_stops_reconnecting(bus):
    assert bus.nc.options["max_reconnect_attempts"] == -1


async def test_a_publish_waits_out_an_absent_server_and_is_stored_once(own_server):
    bus = await _connected(own_server)
    await own_server.kill()
    publishing = [
        asyncio.create_task(bus.publish(TRAJECTORY, b"x" * 1000, msg_id=f"m{i}")) for i in range(20)
    ]
    await asyncio.sleep(0.7)
    assert not any(task.done() for task in publishing)
    assert bus.nc.pending_data_size < 21_000  # repeats are not piled up in the client's memory
    await own_server.start()
    acks = await asyncio.wait_for(asyncio.gather(*publishing), 60)
    assert sorted({ack.seq for ack in acks}) == list(range(1, 21))
    assert (await bus.js.stream_info("RL_TRAJECTORIES")).state.messages == 20
    await bus.close()


async def test_only_a_connection_that_was_there_is_logged_as_lost(own_server, caplog):
    with caplog.at_level(logging.WARNING), pytest.raises(BusError, match="refused the login"):
        await Bus.connect(own_server.url, token="wrong", connect_timeout=5.0)
    assert "is lost" not in caplog.text
    bus = await Bus.connect(own_server.url, token=own_server.token)
    with caplog.at_level(logging.WARNING):
        await own_server.kill()
        async with asyncio.timeout(20):
            while "the connection to NATS is lost; what is sent to it waits" not in caplog.text:
                await asyncio.sleep(0.02)
    await bus.close()


async def test_the_first_publish_after_a_server_side_disconnect_is_repeated(own_server):
    bus = await _connected(own_server)
    await own_server.kill()
    await own_server.start()
    ack = await bus.publish(TRAJECTORY, b"x", msg_id="m", deadline=10)
    assert ack.seq == 1
    await bus.close()


async def test_a_client_that_was_closed_for_good_is_built_again(bus):
    await bus.nc.close()
    assert (await bus.publish(TRAJECTORY, b"x", msg_id="m", deadline=10)).seq == 1
    assert await bus.bucket("rl_jobs").get("nothing") is None


async def test_an_unknown_outcome_is_repeated_under_the_same_id(bus, monkeypatch):
    publish, tries = bus.js.publish, []

    async def answer_lost(subject, data, **options):
        tries.append(options["headers"]["Nats-Msg-Id"])
        ack = await publish(subject, data, **options)
        if len(tries) == 1:
            raise nats.errors.TimeoutError
        return ack

    monkeypatch.setattr(bus.js, "publish", answer_lost)
    ack = await bus.publish(TRAJECTORY, b"x", msg_id="m")
    assert ack.duplicate is True and ack.seq == 1
    assert tries == ["m", "m"]
    assert (await bus.js.stream_info("RL_TRAJECTORIES")).state.messages == 1


async def test_a_full_stream_makes_publishers_wait_and_drops_nothing(bus):
    info = await bus.js.stream_info("RL_DEPLOY")
    await bus.js.update_stream(info.config.evolve(max_bytes=3000))
    subject, stored = "agent.rl.model.deployed.v1", 0
    with pytest.raises(BusError, match=r"did not acknowledge .*maximum bytes exceeded"):
        for i in range(10):
            await bus.publish(subject, b"x" * 500, msg_id=f"m{i}", deadline=0.5)
            stored += 1
    state = (await bus.js.stream_info("RL_DEPLOY")).state
    assert stored >= 3 and (state.first_seq, state.messages) == (1, stored)
    waiting = asyncio.create_task(bus.publish(subject, b"x" * 500, msg_id="late"))
    await asyncio.sleep(0.2)
    await bus.js.update_stream(info.config)
    assert (await asyncio.wait_for(waiting, 30)).seq == stored + 1


async def test_what_can_never_be_stored_fails_at_once_with_the_reason(bus):
    with pytest.raises(PublishRejectedError, match="larger than max_payload"):
        await bus.publish(TRAJECTORY, b"x" * (9 << 20), msg_id="m")
    with pytest.raises(PublishRejectedError, match="larger than its stream takes"):
        await bus.publish(TRAJECTORY, b"x" * (5 << 20), msg_id="m")
    with pytest.raises(ConflictError):
        expected = {"Nats-Expected-Last-Sequence": "7"}
        await bus.publish("agent.rl.audit.v1", b"x", msg_id="m", headers=expected)
    assert (await bus.publish(TRAJECTORY, b"x", msg_id="m")).seq == 1


async def test_a_deadline_ends_the_repeats(bus):
    with pytest.raises(BusError, match=r"within 0.3 s"):
        await bus.publish("no.stream.takes.this", b"x", msg_id="m", deadline=0.3)


async def test_an_outbox_rides_out_an_outage_in_order(own_server, tmp_path):
    bus = await _connected(own_server)
    outbox = Outbox(tmp_path / "o.db")
    draining = asyncio.create_task(outbox.drain(bus))
    for i in range(10):
        outbox.put(TRAJECTORY, b"%d" % i, f"m{i}")
    while outbox.pending():
        await asyncio.sleep(0.01)
    await own_server.kill()
    for i in range(10, 30):
        outbox.put(TRAJECTORY, b"%d" % i, f"m{i}")  # agents are not held up
    assert outbox.pending() == 20
    await own_server.start()
    while outbox.pending():
        await asyncio.sleep(0.05)
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)
    stored = [(await bus.js.get_msg("RL_TRAJECTORIES", seq=i + 1)).data for i in range(30)]
    assert stored == [b"%d" % i for i in range(30)]
    await bus.close()


async def test_an_outbox_message_that_was_published_but_not_removed_counts_as_a_success(bus, tmp_path):
    outbox = Outbox(tmp_path / "o.db")
    outbox.put(TRAJECTORY, b"x", "m")
    await bus.publish(TRAJECTORY, b"x", msg_id="m")  # we died between PubAck and removal
    assert await outbox.drain(bus, once=True) == 1
    assert outbox.pending() == 0
    assert (await bus.js.stream_info("RL_TRAJECTORIES")).state.messages == 1


async def test_a_notice_to_an_absent_server_breaks_nothing(own_server):
    bus = await _connected(own_server)
    await own_server.kill()
    await asyncio.sleep(0.1)
    await bus.notify("agent.rl.alert.v1", b"{}")
    await bus.close()


async def test_request_and_reply(bus):
    async def answer(data: bytes) -> bytes:
        return b"status of " + data

    with pytest.raises(BusError, match="Nobody answers"):
        await bus.request("agent.rl.training.status.request", b"j1")
    await bus.serve("agent.rl.training.status.request", answer)
    assert await bus.request("agent.rl.training.status.request", b"j1") == b"status of j1"


async def test_a_closed_bus_says_so(own_server):
    bus = await _connected(own_server)
    await bus.close()
    await bus.close()
    with pytest.raises(BusError, match="is closed"):
        await bus.publish(TRAJECTORY, b"x", msg_id="m")


async def test_a_header_name_that_nats_does_not_take_is_refused_at_once(bus):
    with pytest.raises(PublishRejectedError, match="wrong name"):
        await bus.publish("agent.rl.trajectory.v1", b"{}", msg_id="m1", headers={"A(B)": "1"})
