"""Consuming: pitfalls 5 to 14 of the JetStream notes, and dead letters, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from onward.bus import Ack, Bus, DeadLetter, Message, Retry, consume
from onward.bus import consumer as module
from onward.bus.deadletter import dead_letters, read_one, replay
from onward.errors import NotFoundError, StreamDriftError, WarehouseError

STREAM = "RL_TRAJECTORIES"
SUBJECT = "agent.rl.trajectory.v1"


class Reader:
    """Runs ``consume`` with a decision per message and remembers every delivery."""

    def __init__(self, bus: Bus, decide: Callable[[Message], object] = lambda _: Ack(), **options) -> None:
        self.seen: list[Message] = []
        self.batches: list[int] = []

        async def handler(messages: list[Message]):
            self.seen.extend(messages)
            self.batches.append(len(messages))
            answers = []
            for message in messages:
                answer = decide(message)
                if asyncio.iscoroutine(answer):
                    answer = await answer
                answers.append(answer)
            return answers

        given = {"stream": STREAM, "durable": "reader", "handler": handler, **options}
        self.task = asyncio.create_task(consume(bus, **given))

    @property
    def bodies(self) -> list[bytes]:
        return [m.data for m in self.seen]

    async def until(self, n: int) -> None:
        try:
            async with asyncio.timeout(30):
                while len(self.seen) < n:
                    await asyncio.sleep(0.005)
        except TimeoutError:
            pytest.fail(f"{len(self.seen)} of {n} messages came")

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def fill(bus: Bus, n: int, first: int = 0) -> None:
    await asyncio.gather(*(bus.publish(SUBJECT, b"%d" % i, msg_id=f"m{i}") for i in range(first, first + n)))


async def unacked(bus: Bus) -> int:
    info = await bus.js.consumer_info(STREAM, "reader")
    return int(info.num_ack_pending) + int(info.num_pending)


async def acknowledged(bus: Bus) -> None:
    """Returns when the server knows that every message is done with."""
    async with asyncio.timeout(30):
        while await unacked(bus):
            await asyncio.sleep(0.01)


async def test_messages_come_in_order_with_what_the_server_knows_of_them(bus):
    await bus.publish(SUBJECT, b"a", msg_id="one", headers={"X": "y"})
    await fill(bus, 249)
    reader = Reader(bus, batch=100)
    await reader.until(250)
    await reader.stop()
    assert [m.sequence for m in reader.seen] == list(range(1, 251))
    first = reader.seen[0]
    assert (first.data, first.subject, first.num_delivered) == (b"a", SUBJECT, 1)
    assert first.headers["X"] == "y" and first.headers["Nats-Msg-Id"] == "one"
    assert first.timestamp.utcoffset() is not None
    assert max(reader.batches) <= 100
    assert await unacked(bus) == 0


async def test_a_message_is_handed_over_as_soon_as_it_is_stored(bus):
    reader = Reader(bus, batch=100, max_wait=600.0)
    await asyncio.sleep(0.2)
    await fill(bus, 1)
    await reader.until(1)  # never held back to fill a batch
    await reader.stop()


async def test_nothing_is_acknowledged_before_its_handler_returned(bus):
    await fill(bus, 1)
    gate = asyncio.Event()

    async def wait(_):
        await gate.wait()
        return Ack()

    reader = Reader(bus, wait)
    await reader.until(1)
    await asyncio.sleep(0.1)
    assert await unacked(bus) == 1
    gate.set()
    await acknowledged(bus)
    await reader.stop()


async def test_cancelling_finishes_the_batch_in_hand_and_acknowledges_it(bus):
    await fill(bus, 3)

    async def slow(_):
        await asyncio.sleep(0.1)
        return Ack()

    reader = Reader(bus, slow)
    await reader.until(3)
    await reader.stop()
    assert reader.task.cancelled()
    assert await unacked(bus) == 0


async def test_a_cancellation_that_the_client_swallows_is_not_lost(bus, monkeypatch):
    original = module.Puller.pull

    async def swallow(self, count, *, linger=0.0):
        try:
            return await original(self, count, linger=linger)
        except asyncio.CancelledError:
            return []

    monkeypatch.setattr(module.Puller, "pull", swallow)
    reader = Reader(bus)
    await asyncio.sleep(0.2)
    await asyncio.wait_for(reader.stop(), 30)
    publish = bus.js.publish

    async def cancelled_while_answered(*args, **options):
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return await publish(*args, **options)

    monkeypatch.setattr(bus.js, "publish", cancelled_while_answered)
    task = asyncio.create_task(bus.publish(SUBJECT, b"x", msg_id="m"))
    await asyncio.wait({task}, timeout=30)
    assert task.cancelled()


async def test_a_cancellation_swallowed_by_a_failing_read_is_not_lost(bus, monkeypatch):
    """The connection breaks in the moment of the stop: the reader must not read on for ever."""
    original = module.Puller.pull

    async def swallow_and_break(self, count, *, linger=0.0):
        try:
            return await original(self, count, linger=linger)
        except asyncio.CancelledError:
            raise module.PullBroken("cut", gone=False, received=[]) from None

    monkeypatch.setattr(module.Puller, "pull", swallow_and_break)
    reader = Reader(bus)
    await asyncio.sleep(0.2)
    await asyncio.wait_for(reader.stop(), 30)


async def test_clean_up_after_a_cancellation_can_still_publish(bus):
    done: list[int] = []

    async def role() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            for i in range(2):
                done.append((await bus.publish(SUBJECT, b"x", msg_id=f"m{i}")).seq)

    task = asyncio.create_task(role())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert done == [1, 2]


async def test_work_that_takes_longer_than_ack_wait_is_not_given_to_another(bus):
    await fill(bus, 1)

    async def slow(_):
        await asyncio.sleep(3.5)
        return Ack()

    reader = Reader(bus, slow, ack_wait=2.0)
    other = Reader(bus, slow, ack_wait=2.0)
    async with asyncio.timeout(30):
        while not reader.seen + other.seen:
            await asyncio.sleep(0.01)
    await acknowledged(bus)
    assert len(reader.seen) + len(other.seen) == 1
    await reader.stop()
    await other.stop()


async def test_what_a_dead_process_held_comes_to_the_next_one(bus):
    await fill(bus, 5)
    doomed = await Bus.connect(bus._options["servers"][0], token=bus._options["token"])
    reader = Reader(doomed, lambda _: asyncio.sleep(60), ack_wait=0.5)
    await reader.until(5)
    doomed._closing = True
    await doomed.nc.close()  # as by kill -9: no goodbye
    again = Reader(bus, ack_wait=0.5)
    await again.until(5)
    assert sorted(again.bodies) == [b"%d" % i for i in range(5)]
    assert {m.num_delivered for m in again.seen} == {2}
    await again.stop()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def test_retry_waits_its_delay_and_never_gives_up(bus):
    await fill(bus, 1)
    reader = Reader(bus, lambda m: Ack() if m.num_delivered == 12 else Retry(0.05))
    await reader.until(12)
    await acknowledged(bus)
    assert [m.num_delivered for m in reader.seen] == list(range(1, 13))
    assert (await bus.js.consumer_info(STREAM, "reader")).config.max_deliver == -1
    await reader.stop()


async def test_an_absent_warehouse_holds_the_batch_and_exhausts_nothing(bus, monkeypatch):
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.05)
    await fill(bus, 3)
    fails = [True] * 3

    def decide(message):
        if fails:
            fails.pop()
            raise WarehouseError("ClickHouse is away.")
        return Ack()

    reader = Reader(bus, decide)
    await reader.until(12)
    await acknowledged(bus)
    assert {m.num_delivered for m in reader.seen} == {1}
    await reader.stop()


async def test_cancelling_while_a_service_is_away_gives_the_batch_back_at_once(bus):
    await fill(bus, 2)

    def decide(message):
        raise WarehouseError("ClickHouse is away.")

    reader = Reader(bus, decide, ack_wait=600.0)
    await reader.until(2)
    async with asyncio.timeout(30):
        await reader.stop()
    again = Reader(bus, ack_wait=600.0)  # as long would it wait for messages that were not given back
    await again.until(2)
    assert sorted(again.bodies) == [b"0", b"1"]
    await again.stop()


async def test_a_handler_that_hangs_cannot_keep_a_cancelled_reader_alive(bus, monkeypatch):
    monkeypatch.setattr(module, "STOP_SECONDS", 0.2)
    await fill(bus, 1)
    reader = Reader(bus, lambda _: asyncio.sleep(60))
    await reader.until(1)
    await asyncio.wait_for(reader.stop(), 30)
    assert await unacked(bus) == 1


async def test_one_message_that_breaks_the_handler_does_not_stop_its_neighbours(bus, monkeypatch):
    monkeypatch.setattr(module._Consumption, "_after_failure", staticmethod(_quickly))
    await fill(bus, 5)

    def decide(message):
        if message.data == b"2":
            raise KeyError("nobody thought of this")
        return Ack()

    reader = Reader(bus, decide)
    async with asyncio.timeout(10):
        while not (letters := await dead_letters(bus)):
            await asyncio.sleep(0.05)
    await reader.stop()
    assert await unacked(bus) == 0
    assert [(x.reason, x.detail, x.source_sequence, x.body) for x in letters] == [
        ("handler_error", "KeyError", 3, b"")
    ]
    assert {m.data for m in reader.seen} == {b"0", b"1", b"2", b"3", b"4"}


def _quickly(message, error):
    if message.num_delivered >= module.POISON_AFTER:
        return DeadLetter("handler_error", type(error).__name__, body=b"")
    return Retry(0.01)


async def test_a_consumer_deleted_behind_our_back_is_made_again_where_it_was(bus, monkeypatch):
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.2)
    await fill(bus, 10)
    reader = Reader(bus)
    await reader.until(10)
    await asyncio.sleep(0.6)  # an idle pull reads the ack floor
    await bus.js.delete_consumer(STREAM, "reader")
    await fill(bus, 5, first=10)
    await reader.until(15)
    await asyncio.sleep(0.2)
    assert reader.bodies == [b"%d" % i for i in range(15)] or sorted(map(int, reader.bodies)) == list(
        range(15)
    )
    await reader.stop()


async def test_a_stream_that_was_made_again_is_read_from_its_beginning(bus, monkeypatch):
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.2)
    await fill(bus, 10)
    reader = Reader(bus)
    await reader.until(10)
    await asyncio.sleep(0.5)
    await bus.js.delete_stream(STREAM)
    await bus.ensure_streams()
    await bus.publish(SUBJECT, b"new", msg_id="new")
    await reader.until(11)
    assert reader.bodies[-1] == b"new"
    await reader.stop()


async def test_reading_goes_on_after_the_server_was_killed_and_nothing_is_missed(own_server):
    bus = await Bus.connect(own_server.url, token=own_server.token)
    await bus.ensure_streams()
    reader = Reader(bus, ack_wait=1.0)
    await fill(bus, 20)
    await reader.until(20)
    await own_server.kill()
    await asyncio.sleep(0.3)
    await own_server.start()
    await fill(bus, 20, first=20)
    async with asyncio.timeout(60):
        while {int(b) for b in reader.bodies} != set(range(40)):
            await asyncio.sleep(0.05)
    await reader.stop()
    await bus.close()


async def test_a_consumer_with_other_settings_is_brought_to_ours_not_silently_kept(bus):
    await bus.js.add_consumer(
        STREAM, durable_name="reader", ack_policy="explicit", max_deliver=5, backoff=[1, 2], ack_wait=90
    )
    await fill(bus, 1)
    reader = Reader(bus)
    await reader.until(1)
    config = (await bus.js.consumer_info(STREAM, "reader")).config
    assert (config.max_deliver, config.ack_wait, config.backoff or []) == (-1, 15.0, [])
    await reader.stop()


async def test_a_consumer_that_acknowledges_by_itself_is_refused(bus):
    await bus.js.add_consumer(STREAM, durable_name="reader", ack_policy="none")
    with pytest.raises(StreamDriftError, match="not a pull consumer with explicit acks"):
        await consume(bus, stream=STREAM, durable="reader", handler=lambda m: [])  # type: ignore[arg-type]


async def test_start_sequence_moves_a_durable_back(bus):
    await fill(bus, 10)
    reader = Reader(bus)
    await reader.until(10)
    await reader.stop()
    again = Reader(bus, start_sequence=7)
    await again.until(4)
    await asyncio.sleep(0.1)
    assert [m.sequence for m in again.seen] == [7, 8, 9, 10]
    await again.stop()
    third = Reader(bus)
    await asyncio.sleep(0.2)
    assert third.seen == []
    await third.stop()


async def test_only_the_subject_that_was_asked_for(bus):
    await bus.publish("agent.rl.training.status.v1", b"no", msg_id="a")
    await bus.publish("agent.rl.training.request.v1", b"yes", msg_id="b")
    reader = Reader(bus, stream="RL_TRAINING", subject="agent.rl.training.request.v1")
    await reader.until(1)
    await asyncio.sleep(0.1)
    assert reader.bodies == [b"yes"]
    await reader.stop()


async def test_a_dead_letter_is_stored_with_its_reason_before_it_is_acknowledged(bus, monkeypatch):
    await bus.publish(SUBJECT, b"{bad", msg_id="t1", headers={"X": "y"})
    order: list[str] = []
    store_dead_letter, reply = module.store_dead_letter, module._Consumption._reply

    async def seen_bury(*args):
        await store_dead_letter(*args)
        order.append("stored")

    async def seen_reply(self, message, answer):
        order.append("acked")
        await reply(self, message, answer)

    monkeypatch.setattr(module, "store_dead_letter", seen_bury)
    monkeypatch.setattr(module._Consumption, "_reply", seen_reply)
    reader = Reader(bus, lambda _: DeadLetter("not_json", "line 1\nzeile ä"))
    await reader.until(1)
    await asyncio.sleep(0.2)
    await reader.stop()
    assert order == ["stored", "acked"]
    (letter,) = await dead_letters(bus)
    assert (letter.stream, letter.subject, letter.source_sequence) == (STREAM, SUBJECT, 1)
    assert (letter.reason, letter.detail, letter.msg_id) == ("not_json", "line 1 zeile \\xe4", "t1")
    assert letter.body == b"{bad" and letter.headers["X"] == "y"
    assert await dead_letters(bus, stream="RL_REWARDS") == []
    assert await dead_letters(bus, after=letter.sequence) == []


async def test_a_dead_letter_that_dies_between_store_and_ack_is_stored_once(bus, monkeypatch):
    await fill(bus, 1)
    reply, calls = module._Consumption._reply, []

    async def die_once(self, message, answer):
        calls.append(1)
        if len(calls) == 1:
            raise module.BusError("gone")
        await reply(self, message, answer)

    monkeypatch.setattr(module._Consumption, "_reply", die_once)
    reader = Reader(bus, lambda _: DeadLetter("schema"), ack_wait=0.5)
    await reader.until(2)
    await asyncio.sleep(0.2)
    await reader.stop()
    assert len(await dead_letters(bus)) == 1


async def test_a_body_with_secrets_stays_out_of_the_dead_letters_and_is_still_replayed(bus):
    await bus.publish(SUBJECT, b"original", msg_id="t1", headers={"X": "y"})
    dead = Reader(bus, lambda _: DeadLetter("redaction_failed", body=b""))
    await dead.until(1)
    await asyncio.sleep(0.2)
    await dead.stop()
    (letter,) = await dead_letters(bus)
    assert letter.body == b"" and letter.size == 0
    await replay(bus, letter.sequence)
    well = Reader(bus)
    await well.until(1)
    assert well.bodies == [b"original"] and well.seen[0].headers["X"] == "y"
    assert well.seen[0].headers["Onward-Replay-Of"] == str(letter.sequence)
    assert not any(name in well.seen[0].headers for name in ("Onward-Reason", "Onward-Detail"))
    assert await dead_letters(bus) == []
    await well.stop()


async def test_a_replay_is_not_swallowed_by_the_dedupe_window_and_repeats_once(bus):
    await bus.publish(SUBJECT, b"x", msg_id="t1")
    dead = Reader(bus, lambda _: DeadLetter("schema"))
    await dead.until(1)
    await asyncio.sleep(0.2)
    await dead.stop()
    (letter,) = await dead_letters(bus)
    first = await replay(bus, letter.sequence, keep=True)
    second = await replay(bus, letter.sequence)  # as after dying before the removal
    assert (first.seq, first.duplicate or False) == (2, False)
    assert (second.seq, second.duplicate) == (2, True)


async def test_a_body_too_large_to_carry_is_left_in_its_stream(bus):
    body = b"x" * (3 << 20)
    await bus.publish(SUBJECT, body, msg_id="big")
    dead = Reader(bus, lambda _: DeadLetter("too_large"))
    await dead.until(1)
    await asyncio.sleep(0.5)
    await dead.stop()
    (letter,) = await dead_letters(bus)
    assert letter.size == len(body)
    assert (await read_one(bus, letter.sequence)).body == body


async def publish_raw(bus: Bus, headers: bytes, body: bytes) -> None:
    """Publishes headers that the client refuses to write."""
    block = b"NATS/1.0\r\n" + headers + b"\r\n"
    sizes = f"HPUB {SUBJECT} {len(block)} {len(block) + len(body)}\r\n".encode()
    await bus.nc._send_command(sizes + block + body + b"\r\n")
    await bus.nc.flush()


async def test_headers_that_no_client_may_write_do_not_keep_a_message_from_the_dead_letters(bus):
    odd = b"A(B): 1\r\n", b"A\x00B: 2\r\n", b"\xc3\xa9: 3\r\n", b"X: \xff\x1b[31m\r\n", b"no colon\r\n"
    for number, header in enumerate(odd):
        await publish_raw(bus, header + b"X-Kept: yes\r\n", b"%d" % number)
    reader = Reader(bus, lambda _: DeadLetter("odd"))
    async with asyncio.timeout(20):
        while len(letters := await dead_letters(bus)) < len(odd):
            await asyncio.sleep(0.05)
    await reader.stop()
    assert [letter.body for letter in letters] == [b"%d" % number for number in range(len(odd))]
    assert all(letter.headers["X-Kept"] == "yes" for letter in letters)
    assert letters[3].headers["X"].endswith("\x1b[31m")
    for letter in letters:
        await replay(bus, letter.sequence)
    assert await dead_letters(bus) == []


async def test_a_message_with_as_many_headers_as_a_stream_takes_fits_into_the_dead_letters(bus):
    large = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 12_000) for number in range(5))
    await publish_raw(bus, large + b"Rl-Claim: small\r\n", b"")
    reader = Reader(bus, lambda _: DeadLetter("odd"))
    async with asyncio.timeout(20):
        while not (letters := await dead_letters(bus)):
            await asyncio.sleep(0.05)
    await reader.stop()
    assert letters[0].headers["Rl-Claim"] == "small" and "X-4" not in letters[0].headers


async def test_a_dead_letter_with_odd_headers_of_its_own_is_listed(bus):
    headers = {"Onward-Sequence": "\u00b2", "Onward-Reason": "[/no]\u00e9", "Onward-Stream": "\x1b[31m"}
    for sequence in ("\u00b2", "9" * 5000, "-1"):
        await bus.nc.publish("agent.rl.dlq.v1.X", b"", headers={**headers, "Onward-Sequence": sequence})
    async with asyncio.timeout(20):
        while len(letters := await dead_letters(bus)) < 3:
            await asyncio.sleep(0.05)
    assert {letter.source_sequence for letter in letters} == {0}
    assert letters[0].reason.startswith("[/no]")


async def test_an_unknown_dead_letter_is_one_sentence(bus):
    for sequence in (0, -1, 5):
        with pytest.raises(NotFoundError, match="There is no dead letter"):
            await read_one(bus, sequence)
    with pytest.raises(NotFoundError):
        await replay(bus, 5)
