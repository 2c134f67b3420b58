"""Trajectories too large for a message, from the recorder through the store to a row, and what goes wrong."""

import asyncio
import base64
import hashlib
import io
import json
import random

import pytest
import pytest_asyncio
from collector_world import bodies, collect, count, document, publish, rows
from PIL import Image

from onward import Recorder
from onward.bus import Bus, NatsServer
from onward.bus.deadletter import dead_letters, replay
from onward.capture import claim_check as claims
from onward.capture.collecting import collector, late_bodies
from onward.capture.collecting.quarantine import Quarantine, QuarantineKeys
from onward.clock import SystemClock
from onward.config import load
from onward.context import Context
from onward.contracts import Trajectory, canonical_json, decode, subjects
from onward.errors import ObjectError
from onward.telemetry import Alerts, Metrics
from onward.warehouse import EmbeddedWarehouse, Objects

pytestmark = pytest.mark.asyncio(loop_scope="module")
SECRET = "ghp_" + "aB3dE5fG7hJ9" * 3
STEP = "word " * 10_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warehouse(tmp_path_factory):
    embedded = EmbeddedWarehouse(tmp_path_factory.mktemp("wh"))
    yield await embedded.start()
    await embedded.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory):
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def ctx(server, warehouse, tmp_path):
    await warehouse.command("TRUNCATE TABLE trajectories")
    clock, metrics = SystemClock(), Metrics()
    bus = await Bus.connect(server.url, token=server.token)
    for info in await bus.js.streams_info():
        await bus.js.delete_stream(str(info.config.name))
    await bus.ensure_streams(migrate=True)
    yield Context(
        load(environ={}, overrides={"data_dir": str(tmp_path)}),
        clock,
        bus,
        warehouse,
        Objects.open(str(tmp_path / "objects")),
        metrics,
        Alerts(bus, clock, metrics),
    )
    await bus.close()


def large(number: int = 1, *texts: str, **changes) -> dict:
    """About 2 MB in forty turns; ``texts`` stand in the last ones."""
    one = document(number, **changes)
    steps = [STEP] * (40 - len(texts)) + list(texts)
    del one["turns"][0]["action"]["sampling"]
    one["turns"] = [
        {**one["turns"][0], "turn_id": i, "observation": {"type": "tool_result", "content": text}}
        for i, text in enumerate(steps, start=1)
    ]
    return one


async def claim(ctx, one: dict, *, stand_in: bytes | None = None, body: bytes | None = None) -> claims.Claim:
    """Publish ``one`` by claim check, as a publisher of its own would."""
    body = body or canonical_json(one)
    made = await claims.store(ctx.objects, one["trajectory_id"], body, ctx.clock.now())
    headers = {claims.HEADER: made.header()}
    await publish(ctx, stand_in or claims.stand_in_message(one, made), one["trajectory_id"], headers)
    return made


async def test_a_3_mb_trajectory_of_the_recorder_becomes_one_whole_row(ctx, server, tmp_path):
    recorder = Recorder(
        tmp_path / "o.db", nats_url=server.url, nats_token=server.token, objects=tmp_path / "objects"
    )
    with recorder.task("Read the log", session_id="big") as task:
        for _ in range(60):
            task.turn(observation=STEP, action="next")
    assert await asyncio.to_thread(recorder.flush, 30.0)
    recorder.close()
    ((small,), [key]) = await bodies(ctx), await ctx.objects.list("claims")
    assert len(small) < 4096 and decode(small, Trajectory).session_id == "big"
    await collect(ctx)
    (row,) = await rows(ctx)
    whole = json.loads(row["payload"])
    assert (row["n_turns"], len(row["payload"]) > 3_000_000) == (60, True)
    assert [turn["observation"]["content"] for turn in whole["turns"]] == [STEP] * 60
    assert "claim" not in whole["metadata"]
    assert await ctx.objects.list("claims") == [key], "the body stays as long as the message"
    assert await bodies(ctx) == [small], "nothing was published again"


async def test_a_secret_in_a_claimed_body_is_stored_redacted_and_the_raw_body_goes(ctx, tmp_path):
    raw = await claim(ctx, large(1, f"key {SECRET} end"))
    await collect(ctx)
    (row,) = await rows(ctx)
    assert SECRET not in row["payload"] and "key <GITHUB_TOKEN:1> end" in row["payload"]
    (key,) = await ctx.objects.list("claims")
    assert key != raw.uri
    (left,) = await bodies(ctx)
    assert json.loads(left)["metadata"]["claim"]["uri"] == key
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


async def test_a_secret_in_what_stands_for_a_body_is_erased_too(ctx):
    one = large(1)
    await claim(ctx, one, stand_in=canonical_json(document(1, f"key {SECRET}")))
    await collect(ctx)
    (left,) = await bodies(ctx)
    assert SECRET.encode() not in left
    (key,) = await ctx.objects.list("claims")
    assert json.loads(left)["metadata"]["claim"]["uri"] == key
    assert (await rows(ctx))[0]["n_turns"] == 40


async def test_a_missing_body_is_waited_for_then_a_dead_letter_that_can_be_replayed(ctx, monkeypatch):
    monkeypatch.setattr(late_bodies, "CLAIM_TRIES", 2)
    one = large(1)
    made = await claim(ctx, one)
    body = await ctx.objects.get(made.uri)
    await ctx.objects.delete(made.uri)
    await publish(ctx, document(2))
    await collect(ctx)
    assert [row["session_id"] for row in await rows(ctx)] == ["s2"], "others are not held up"
    (letter,) = await dead_letters(ctx.bus)
    assert letter.reason == "claim_missing" and "object store" in letter.detail
    await ctx.objects.put(made.uri, body)
    await replay(ctx.bus, letter.sequence)
    await collect(ctx)
    assert [row["n_turns"] for row in await rows(ctx)] == [40, 1]
    assert await dead_letters(ctx.bus) == []


async def test_a_body_that_comes_late_is_no_dead_letter(ctx, monkeypatch):
    one = large(1)
    made = await claim(ctx, one)
    body = await ctx.objects.get(made.uri)
    await ctx.objects.delete(made.uri)

    missing, missed = claims.missing, asyncio.Event()

    def watched(*given):
        missed.set()
        return missing(*given)

    async def later() -> None:
        await asyncio.wait_for(missed.wait(), 20)
        await ctx.objects.put(made.uri, body)

    monkeypatch.setattr(claims, "missing", watched)
    await asyncio.gather(later(), collect(ctx))
    assert len(await rows(ctx)) == 1 and await dead_letters(ctx.bus) == []


async def test_many_claims_without_a_body_hold_up_no_other_message(ctx, monkeypatch):
    """More than the consumer may leave unacknowledged: all of them waiting would stop it."""
    monkeypatch.setattr(late_bodies, "MAX_LATE", 20)
    monkeypatch.setattr(late_bodies, "CLAIM_TRIES", 1_000_000)
    digest = "ab" * 32

    async def claim_nothing(number: int) -> None:
        name = f"00000000-0000-4000-8000-{number:012d}"
        header = json.dumps({"uri": f"claims/20260101/{name}.{digest[:16]}", "sha256": digest, "size": 2})
        await ctx.bus.publish(subjects.TRAJECTORY, b"{}", msg_id=name, headers={claims.HEADER: header})

    for start in range(0, 1100, 100):
        await asyncio.gather(*map(claim_nothing, range(start, start + 100)))
    await publish(ctx, document(5000))

    async def waiting() -> int:
        return (await ctx.bus.js.consumer_info(collector.STREAM, collector.DURABLE)).num_ack_pending or 0

    task = asyncio.create_task(collector.run(ctx))
    try:
        async with asyncio.timeout(60):
            while not await rows(ctx) or (await waiting()) > 20:
                await asyncio.sleep(0.05)
        letters = await ctx.bus.js.stream_info("RL_DLQ")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [row["session_id"] for row in await rows(ctx)] == ["s5000"]
    assert letters.state.messages == 1080, "20 claims still wait for their body"


async def test_a_body_that_is_not_the_claimed_one_is_never_stored(ctx, tmp_path, monkeypatch):
    monkeypatch.setattr(late_bodies, "CLAIM_TRIES", 1)
    made = await claim(ctx, large(1))
    (tmp_path / "objects" / made.uri).write_bytes(canonical_json(large(1, "other")))
    await collect(ctx)
    assert await rows(ctx) == []
    assert [letter.reason for letter in await dead_letters(ctx.bus)] == ["claim_mismatch"]


@pytest.mark.parametrize(
    "uri",
    ["jobs/secret", "claims/٢٠٢٦٠١٠١/00000000-0000-4000-8000-000000000001." + "ab" * 8],
)
async def test_a_claim_that_points_elsewhere_is_a_dead_letter_and_nothing_is_read(ctx, uri):
    await ctx.objects.put("jobs/secret", b"{}")
    header = json.dumps({"uri": uri, "sha256": "ab" * 32, "size": 2})
    await publish(ctx, document(1), headers={claims.HEADER: header})
    await collect(ctx)
    assert await rows(ctx) == []
    assert [letter.reason for letter in await dead_letters(ctx.bus)] == ["claim"]


async def test_a_claimed_body_that_is_no_trajectory_is_put_aside_with_its_reason(ctx):
    one = large(1)
    broken = canonical_json({**one, "unknown_field": 1})
    await claim(ctx, one, body=broken)
    await collect(ctx)
    assert [letter.reason for letter in await dead_letters(ctx.bus)] == ["schema"]
    assert len(await ctx.objects.list("claims")) == 1


async def test_a_claimed_body_that_cannot_be_redacted_is_held_and_comes_back_by_claim(ctx, monkeypatch):
    from onward.capture.collecting import quarantine_retry
    from onward.capture.collecting.inspection import Inspector
    from onward.redaction import redactor

    def broken(*_, **__):
        raise RuntimeError("no")

    await claim(ctx, large(1))
    monkeypatch.setattr(redactor, "redact_trajectory", broken)
    await collect(ctx)
    monkeypatch.undo()
    assert await rows(ctx) == [] and await bodies(ctx) == []
    assert await ctx.objects.list("claims") == []
    quarantine = Quarantine(ctx.objects, QuarantineKeys.from_settings(ctx.settings), ctx.clock)
    (held,) = await quarantine.list_held()
    await quarantine_retry.retry(ctx.bus, quarantine, held.held_id, ctx.clock, Inspector())
    await collect(ctx)
    assert [row["n_turns"] for row in await rows(ctx)] == [40]
    assert len(await ctx.objects.list("claims")) == 1


async def test_a_repeat_after_a_crash_between_the_last_two_steps_is_settled_quietly(ctx):
    """The raw body is gone, its message is not yet."""
    made = await claim(ctx, large(1, f"key {SECRET}"))
    (raw,) = await bodies(ctx)
    await collect(ctx)
    await publish(ctx, raw, "again", {claims.HEADER: made.header()})
    await collect(ctx)
    assert len(await rows(ctx)) == 1 and await dead_letters(ctx.bus) == []
    assert raw not in await bodies(ctx)


async def test_a_store_that_is_away_holds_the_batch_and_loses_nothing(ctx, monkeypatch):
    real, tries = Objects.get, []

    async def away_at_first(self, key):
        tries.append(key)
        if len(tries) < 2:
            raise ObjectError("The store is away.")
        return await real(self, key)

    monkeypatch.setattr(Objects, "get", away_at_first)
    await claim(ctx, large(1))
    await collect(ctx)
    assert len(await rows(ctx)) == 1 and len(tries) == 2
    assert count(ctx, "onward_dead_letters_total", stream="RL_TRAJECTORIES", reason="claim_missing") == 0


async def test_opted_out_work_leaves_no_body_behind(ctx, server, tmp_path):
    settings = load(environ={}, overrides={"data_dir": str(tmp_path), "capture": {"opt_out": "session:s1"}})
    from dataclasses import replace

    await claim(ctx, large(1))
    await collect(replace(ctx, settings=settings))
    assert await rows(ctx) == [] and await bodies(ctx) == [] and await ctx.objects.list("claims") == []


def picture(seed: int) -> bytes:
    file = io.BytesIO()
    Image.frombytes("RGB", (120, 100), random.Random(seed).randbytes(36_000)).save(file, "PNG")
    return file.getvalue()


def part(data: bytes) -> dict:
    return {"media_type": "image/png", "data": base64.b64encode(data).decode()}


async def test_a_picture_of_the_recorder_is_in_the_store_and_its_note_in_the_row(ctx, server, tmp_path):
    data = picture(1)
    recorder = Recorder(
        tmp_path / "o.db", nats_url=server.url, nats_token=server.token, objects=tmp_path / "objects"
    )
    with recorder.task("Look", session_id="seen") as task:
        task.turn(observation={"parts": [part(data)]}, action="next")
    assert await asyncio.to_thread(recorder.flush, 30.0)
    recorder.close()
    await collect(ctx)
    (row,) = await rows(ctx)
    whole = json.loads(row["payload"])
    (attached,) = whole["metadata"]["attachments"]
    digest = hashlib.sha256(data).hexdigest()
    assert (attached["media_type"], attached["bytes"], attached["sha256"]) == ("image/png", len(data), digest)
    assert await ctx.objects.get(attached["uri"]) == data
    assert f"sha256:{digest}]" in whole["turns"][0]["observation"]["content"]["parts"][0]["data"]


async def test_a_picture_of_another_publisher_is_stored_as_its_note(ctx):
    one = document(1)
    one["turns"][0]["observation"]["content"] = {"parts": [part(picture(2))]}
    await publish(ctx, one)
    before = await bodies(ctx)
    await collect(ctx)
    (row,) = await rows(ctx)
    digest = hashlib.sha256(picture(2)).hexdigest()
    assert len(row["payload"]) < 5000 and row["payload"].count(f"sha256:{digest}]") == 1
    assert await bodies(ctx) == before, "a picture is no secret: nothing was published again"
    assert await ctx.objects.list("attachments") == []
