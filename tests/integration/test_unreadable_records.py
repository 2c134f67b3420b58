"""One unreadable record stops nothing: it is set aside with one alert, and its readers go on."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from docs_blocks import run_command
from serving_world import World
from stored_documents import RECORDS

from onward import config, host
from onward.api import status
from onward.bus import BUCKETS, Bucket, Bus, NatsServer, documents, read_all, read_document, read_stored
from onward.bus.documents import is_learning_paused
from onward.contracts.buckets import (
    Desired,
    Document,
    JobEntry,
    Learning,
    LeaseHolder,
    OptOutCount,
    ReleaseCommand,
    RescoreRequest,
    SetAside,
    Traffic,
)
from onward.errors import BusError
from onward.serving.routing.arms import session_key
from onward.telemetry.alerts import Alerts
from onward.telemetry.metrics import Metrics
from onward.training.role.job_table import JobRecord

RUBBISH = {
    "text": b"not json",
    "bytes": b"\x00\xff\xfe",
    "empty": b"",
    "half": b'{"release_id": "a", "arms": [{"arm":',
    "list": b"[]",
    "number": b"5",
    "null": b"null",
    "deep": b"[" * 100_000,
    "wrong types": json.dumps({name: {"a": [1]} for kind in RECORDS for name in kind.model_fields}).encode(),
}  # fmt: skip
ANY_OBJECT = frozenset({Learning, Traffic})
"""Types that are readable whatever the values of their fields are."""


class Alarms(Alerts):
    def __init__(self, bus: Bus) -> None:
        super().__init__(None, bus.clock, Metrics())
        self.told: list[dict[str, Any]] = []

    async def raise_(self, kind: str, message: str, severity: Any = "warning", **facts: Any) -> None:
        self.told.append({"kind": kind, "message": message, **facts})


def alarms(bus: Bus) -> Alarms:
    bus.unreadable.alerts = found = Alarms(bus)
    return found


@pytest.mark.parametrize("rubbish", RUBBISH)
async def test_every_kind_of_record_is_set_aside_once_and_read_as_before_or_as_absent(
    bus: Bus, nats_server: NatsServer, rubbish: str
) -> None:
    kinds = [k for k in RECORDS if rubbish != "wrong types" or k not in ANY_OBJECT]
    told = alarms(bus)
    for kind in kinds:
        bucket, good = bus.bucket(kind.BUCKET), kind.load(RECORDS[kind].encode())
        key = good.own_key() or kind.KEY + "x"
        await bucket.put(key, good.dump())
        revision = await bucket.put(key, RUBBISH[rubbish])
        for _ in range(2):
            stored = await read_stored(bucket, kind, key.removeprefix(kind.KEY))
            kept = BUCKETS[kind.BUCKET].history > 1 and good.may_stand_in()
            assert stored.document == (good if kept else None), kind
            assert (stored.revision, stored.readable) == (revision, False)
        copy = await read_document(bus, SetAside, f"{kind.BUCKET}.{key}.{revision}")
        assert copy is not None and base64.b64decode(copy.value) == RUBBISH[rubbish]
        assert told.told[-1]["kind"] == "record_unreadable" and told.told[-1]["revision"] == revision
        await bucket.delete(key)
    assert len(told.told) == len(kinds)


async def test_an_alert_is_raised_once_also_over_a_restart_and_names_the_command(bus, nats_server):
    told = alarms(bus)
    await bus.bucket("rl_jobs").put("job.bad", b'{"job_id": "bad", "state": "ghost_secret_1"}')
    assert await read_all(bus.bucket("rl_jobs"), JobRecord)
    again = await Bus.connect(nats_server.url, token=nats_server.token)
    told_again = alarms(again)
    assert (await read_all(again.bucket("rl_jobs"), JobRecord))[0].document is None
    await again.close()
    assert told_again.told == []
    (one,) = told.told
    assert "onward buckets show rl_jobs job.bad" in one["message"] and "ghost" not in one["message"]


async def test_a_copy_that_could_not_be_stored_is_stored_later_with_one_alert(bus, monkeypatch):
    told, create, tries = alarms(bus), Bucket.create, []

    async def full(self: Bucket, key: str, value: bytes, **options: Any) -> int:
        tries.append(key)
        if len(tries) == 1:
            raise BusError("The bucket is full.")
        return await create(self, key, value, **options)

    monkeypatch.setattr(Bucket, "create", full)
    jobs = bus.bucket("rl_jobs")
    revision = await jobs.put("job.bad", b"not json")
    for _ in range(3):  # the reader is not held up by further tries
        assert (await read_all(jobs, JobRecord))[0].document is None
    assert (len(tries), len(told.told)) == (1, 1)
    monkeypatch.setattr(documents, "COPY_AGAIN_SECONDS", 0.0)
    bus.unreadable._next_copy.clear()  # a minute later
    for _ in range(3):
        await read_all(jobs, JobRecord)
    copy = await read_document(bus, SetAside, f"rl_jobs.job.bad.{revision}")
    assert copy is not None and base64.b64decode(copy.value) == b"not json"
    assert (len(tries), len(told.told)) == (2, 1)


async def test_what_stands_in_is_the_newest_readable_value_and_none_from_before_a_deletion(bus):
    bucket = bus.bucket("rl_control")
    for value in (b'{"paused": true}', b'{"paused": false}', b'{"paused": true}', b"x", b"{"):
        await bucket.put(Learning.KEY, value)
    assert await read_document(bus, Learning) == Learning(paused=True)
    await bucket.delete(Learning.KEY)
    await bucket.put(Learning.KEY, b"x")
    assert await read_document(bus, Learning) is None


@pytest.mark.parametrize(
    ("before", "paused"), [([], True), ([b'{"paused": false}'], False), ([b'{"paused": true}'], True)]
)
async def test_an_unreadable_switch_counts_as_before_and_pauses_if_there_was_none(bus, before, paused):
    for value in [*before, b"not json"]:
        await bus.bucket("rl_control").put(Learning.KEY, value)
    assert await is_learning_paused(bus) is paused


async def test_without_a_switch_learning_goes_on(bus):
    assert await is_learning_paused(bus) is False


@pytest.mark.parametrize(("state", "counts"), [("completed", True), ("running", False), ("queued", False)])
async def test_an_older_state_of_a_job_counts_only_once_the_job_had_ended(bus, state, counts):
    jobs = bus.bucket("rl_jobs")
    await jobs.put("job.j", json.dumps({"job_id": "j", "state": state}).encode())
    await jobs.put("job.j", b"x")
    (job,) = await read_all(jobs, JobEntry)
    assert (job.document is not None) is counts


@pytest.mark.parametrize("kind", [ReleaseCommand, RescoreRequest, LeaseHolder, OptOutCount])
async def test_no_old_command_and_nothing_of_a_bucket_without_history_stands_in(bus, kind):
    bucket = bus.bucket(kind.BUCKET)
    for value in (RECORDS[kind].encode(), b"x"):
        await bucket.put(kind.KEY or "x", value)
    assert await read_document(bus, kind, "" if kind.KEY else "x") is None


@pytest.mark.parametrize(
    ("until", "is_readable"),
    [('"2026-01-31T12:00:00Z"', True), ('"2026-01-31T12:00:00"', True), ('"soon"', False), ("5", False)],
)
async def test_a_pause_of_traffic_until_no_clear_time_is_unreadable(bus, until, is_readable):
    await bus.bucket("rl_control").put(Traffic.KEY, b'{"paused": true, "until": %s}' % until.encode())
    assert (await read_stored(bus.bucket("rl_control"), Traffic)).readable is is_readable


async def test_a_record_under_the_key_of_another_one_is_unreadable(bus):
    jobs = bus.bucket("rl_jobs")
    await jobs.put("job.other", RECORDS[JobRecord].encode())
    (stored,) = await read_all(jobs, JobRecord)
    assert (stored.document, stored.readable) == (None, False)


async def test_a_key_of_a_strange_form_is_left_out(bus):
    await bus.publish("$KV.rl_jobs.job.ä*b".replace("*", "$"), b"{}", msg_id="strange")
    assert await bus.bucket("rl_jobs").keys() == [] and await read_all(bus.bucket("rl_jobs"), JobEntry) == []
    assert len(await bus.bucket("rl_jobs").entries(all_forms=True)) == 1


ROLES = ("collector", "archiver", "rewarder", "coordinator", "releaser", "api")


def keys_of(kind: type[Document]) -> str:
    if kind is LeaseHolder:
        return "releaser"
    return kind.KEY + "bad" if kind.KEY == "" or kind.KEY.endswith(".") else kind.KEY


@pytest.mark.parametrize("rubbish", ["text", "wrong types"])
async def test_a_service_goes_on_with_rubbish_under_every_key_and_comes_up_again(
    tmp_path: Path, rubbish: str
) -> None:
    settings = config.load(
        environ={}, overrides={"data_dir": tmp_path, "nats": {"port": 0}, "http": {"api_port": 0}}
    )
    for round_ in range(2):
        async with host.running(settings, roles=ROLES) as loop, asyncio.timeout(90):
            ctx = loop.ctx
            if round_ == 0:
                for kind in RECORDS:
                    if kind.BUCKET not in ("rl_roles", "rl_set_aside"):
                        await ctx.bus.bucket(kind.BUCKET).put(keys_of(kind), RUBBISH[rubbish])
            while len(await ctx.bus.bucket(SetAside.BUCKET).keys()) < 8:
                await status.collect(ctx.bus, ctx.warehouse, settings, ctx.clock)
                await asyncio.sleep(0.2)
            await asyncio.sleep(1.5)  # every role reads at least once more
            assert ctx.ready == dict.fromkeys(ROLES, True)
            assert b"onward_role_restarts_total{" not in ctx.metrics.render()
            found = await status.collect(ctx.bus, ctx.warehouse, settings, ctx.clock)
            assert found["set_aside"] >= 8 and found["failing_roles"] == []
            key = (settings.run_dir / "api.key").read_text().strip()
            async with httpx.AsyncClient() as client:
                answer = await client.get(
                    f"{loop.endpoints['api_url']}/status", headers={"Authorization": f"Bearer {key}"}
                )
            assert answer.status_code == 200


async def test_the_gateway_serves_on_over_rubbish_in_all_that_it_reads(world: World) -> None:
    bus = world.bus
    await world.open_release()
    first = await world.ask("s1")
    for bucket, key in (
        ("rl_releases", Desired.KEY), ("rl_control", Traffic.KEY), ("rl_models", "bad"),
        ("rl_sessions", session_key("s2")), ("rl_sessions", "bad"),
    ):  # fmt: skip
        await bus.bucket(bucket).put(key, b"not json")
    await asyncio.sleep(0.5)
    assert (await world.ask("s1"))["model"] == first["model"]
    assert (await world.chat("s2")).status_code == 200, "it is assigned anew"
    assert world.gateway.state.routes.open and world.gateway.state.ready is True


# The command, also while nothing runs.


async def buckets(folder: Path, words: str) -> tuple[int, str]:
    return await asyncio.to_thread(run_command, f"onward buckets {words} --dir {folder}")


async def test_the_command_lists_shows_and_drops_records_also_while_nothing_runs(
    own_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    bus = await Bus.connect(own_server.url, token=own_server.token)
    await bus.ensure_streams()
    await bus.bucket("rl_jobs").put("job.bad", b"\x00\xffnot json")
    await bus.bucket("rl_control").put("learning", b'{"paused": true}')
    await bus.close()
    await own_server.stop()
    folder = tmp_path / "data"
    rows = {row["bucket"]: row for row in json.loads((await buckets(folder, "list --json"))[1])}
    assert set(rows) == set(BUCKETS)
    assert (rows["rl_jobs"]["keys"], rows["rl_jobs"]["unreadable"]) == (1, ["job.bad"])
    assert (rows["rl_control"]["keys"], rows["rl_control"]["unreadable"]) == (1, [])
    assert "It is not JSON." in (await buckets(folder, "list rl_jobs"))[1]
    code, shown = await buckets(folder, "show rl_jobs job.bad")
    assert code == 0 and r"\x00\xffnot json" in shown
    assert json.loads((await buckets(folder, "show rl_control learning --json"))[1])["value"] == {
        "paused": True
    }
    code, refused = await buckets(folder, "drop rl_jobs job.bad")
    assert code == 2 and "--yes" in refused
    assert await buckets(folder, "drop rl_jobs job.bad --yes") == (0, "Dropped job.bad of rl_jobs.\n")
    code, absent = await buckets(folder, "show rl_jobs job.bad")
    assert code == 2 and "There is no 'job.bad' in rl_jobs" in absent
    code, unknown = await buckets(folder, "show rl_nothing key")
    assert code == 2 and "There is no bucket 'rl_nothing'" in unknown
