"""The releaser on a real NATS server: its own cursor on RL_OUTCOMES, real buckets, real events, its role."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from docs_blocks import run_command
from release_stream import SIGNING_KEY, context, gateway_follows, outcome, publish
from release_world import FakeSuite, unknown_traffic

from onward.bus import Bus, NatsServer
from onward.capture import provenance
from onward.clock import ManualClock, SystemClock
from onward.contracts import ModelDeployed, decode, encode
from onward.release import releaser
from onward.release.evidence.outcome_source import STREAM, OutcomeStream
from onward.release.record import Releases
from onward.release.releaser import Releaser, install_initial
from onward.release.versions import tag
from onward.telemetry.audit import current_user


async def test_outcomes_are_read_from_any_cursor_in_order(bus: Bus):
    reader = OutcomeStream(bus, SIGNING_KEY)
    assert await reader.last_sequence() == 0
    assert await reader.read(0, 10) == []
    for n in range(25):
        await publish(bus, SystemClock(), n, "r", "current", "reward", 1.0)
    first = await reader.read(0, 10)
    assert [stored.sequence for stored in first] == list(range(1, 11))
    assert [stored.sequence for stored in await reader.read(10, 100)] == list(range(11, 26))
    assert [stored.sequence for stored in await reader.read(20, 100)] == list(range(21, 26))
    assert await reader.read(25, 10) == []
    assert await reader.last_sequence() == 25
    await reader.close()


async def test_a_deleted_consumer_costs_nothing(bus: Bus):
    reader = OutcomeStream(bus, SIGNING_KEY)
    for n in range(6):
        await publish(bus, SystemClock(), n, "r", "current", "reward", 1.0)
    assert len(await reader.read(0, 3)) == 3
    for info in await bus.js.consumers_info(STREAM):
        await bus.js.delete_consumer(STREAM, info.name)
    found: list[int] = []
    for _ in range(5):
        found += [stored.sequence for stored in await reader.read((found or [3])[-1], 10)]
        if found:
            break
    assert found == [4, 5, 6]
    await reader.close()


async def add_job(bus: Bus) -> None:
    commit = {"epoch": 1, "manifest_sha256": "m", "object_prefix": "checkpoints/j/1", "adapter_digest": "d1"}
    job = {"job_id": "job-1", "state": "completed", "commit": commit, "start_digest": "d0"}
    await bus.bucket("rl_jobs").put("job.job-1", json.dumps(job).encode())


async def test_a_bad_release_is_taken_back_on_real_buckets_and_streams(bus: Bus, tmp_path: Path):
    clock = ManualClock(start=SystemClock().now())
    ctx = context(bus, clock, tmp_path)
    releases = Releases(bus, clock)
    await install_initial(ctx, "d0", "checkpoints/warm/0")
    await add_job(bus)
    releaser = Releaser(
        ctx, OutcomeStream(bus, SIGNING_KEY), FakeSuite({"d1": 0.6}, {}), traffic=unknown_traffic
    )
    count = 0
    for _ in range(60):
        desired = await gateway_follows(bus, clock)
        if desired and len(desired["arms"]) == 2:
            for i in range(12):
                count += 1
                arm = "candidate" if i % 6 == 0 else "current"
                weight = desired["arms"][1]["weight"]
                await publish(
                    bus, clock, count, desired["release_id"], arm, "error", float(i % 6 == 0), weight
                )
        await releaser.tick()
        await clock.advance(1.0)
        newest = (await releases.all())[-1]
        if newest.job_id == "job-1" and newest.settled:
            break
    await releaser.close()
    assert newest.decision == "rolled_back" and newest.reason_code == "high_error_rate"
    assert newest.verified_zero_at is not None
    desired = await gateway_follows(bus, clock)
    assert desired is not None and [arm["model_id"] for arm in desired["arms"]] == ["agent-zero-rl-v0"]
    documents = []
    for sequence in range(1, (await bus.js.stream_info("RL_DEPLOY")).state.last_seq + 1):
        message = await bus.js.get_msg("RL_DEPLOY", seq=sequence)
        documents.append(decode(message.data or b"", ModelDeployed))
    assert [document.metadata.event for document in documents if document.metadata] == [
        "installed", "candidate", "rollback",
    ]  # fmt: skip


@pytest.mark.parametrize("forgery", ["unsigned", "another key", "changed after it was signed", "rubbish"])
async def test_forged_outcomes_do_not_move_a_release_and_are_told(bus: Bus, tmp_path: Path, forgery: str):
    """Forty bad outcomes for the candidate, as a login with every right can publish them."""
    clock = ManualClock(start=SystemClock().now())
    ctx = context(bus, clock, tmp_path)
    await install_initial(ctx, "d0", "checkpoints/warm/0")
    await add_job(bus)
    releaser = Releaser(
        ctx, OutcomeStream(bus, SIGNING_KEY), FakeSuite({"d1": 0.6}, {}), traffic=unknown_traffic
    )
    for _ in range(60):
        desired = await gateway_follows(bus, clock)
        if desired and len(desired["arms"]) == 2:
            break
        await releaser.tick()
        await clock.advance(1.0)
    assert desired is not None and len(desired["arms"]) == 2
    for number in range(40):
        for arm, bad in (("candidate", 1.0), ("current", 0.0)):
            made = outcome(clock, number, desired["release_id"], arm, "error", bad)
            if forgery == "another key":
                made = provenance.sign_outcome(made, b"x" * 32)
            elif forgery == "changed after it was signed":
                made = provenance.sign_outcome(made.model_copy(update={"value": 1.0 - bad}), SIGNING_KEY)
                made = made.model_copy(update={"value": bad})
            elif forgery == "rubbish":
                made = made.model_copy(update={"signature": "é" * 64})
            await bus.publish("agent.rl.outcome.v1", encode(made), msg_id=f"{arm}-{number}")
    for _ in range(5):
        await releaser.tick()
        await clock.advance(1.0)
    record, evidence = releaser.record, releaser.hand.evidence
    assert record is not None and evidence is not None and record.serving
    assert evidence.arms["candidate"]["judged"] == evidence.arms["current"]["judged"] == 0
    assert evidence.ignored == {"unsigned": 80}
    assert ctx.metrics.registry.get_sample_value("onward_outcomes_refused_total") == 80
    assert [alert[0] for alert in ctx.alerts.raised].count("unsigned_outcome") == 1
    await releaser.close()


async def test_releases_are_shown_while_nothing_runs_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also where a loop was killed and left its addresses behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    folder = tmp_path / "onward-data"
    server = NatsServer(folder)
    await server.start()
    try:
        own = await Bus.connect(server.url, token=server.token, clock=SystemClock())
        await own.ensure_streams()
        await install_initial(context(own, SystemClock(), folder), "d0", "checkpoints/warm/0")
        await tag(own, "agent-zero-rl-v0", "stable", move=False, clock=SystemClock())
        await own.close()
    finally:
        await server.stop()
    (folder / "run" / "endpoints.json").write_text(json.dumps({"nats_url": server.url}))
    code, output = await asyncio.to_thread(run_command, "onward releases list --dir onward-data")
    assert code == 0 and "agent-zero-rl-v0" in output, output
    code, output = await asyncio.to_thread(run_command, "onward releases show --dir onward-data")
    assert code == 0 and output.startswith("agent-zero-rl-v0 was installed as the first model.\n"), output
    code, output = await asyncio.to_thread(
        run_command, "onward releases audit agent-zero-rl-v0 --dir onward-data --json"
    )
    assert code == 0, output
    promoted, tagged = json.loads(output)
    assert (promoted["by"], promoted["what"]) == ("releaser", "promoted")
    assert (tagged["by"], tagged["what"], tagged["about"], tagged["facts"]["tag"]) == (
        current_user(), "models.tag", "agent-zero-rl-v0", "stable",
    )  # fmt: skip
    log = folder / "logs" / "nats-server.log"
    starts = log.read_text().count("Server is ready")
    code, output = await asyncio.to_thread(run_command, "onward jobs show nope --dir onward-data")
    assert code == 2 and "There is no job 'nope'" in output, output
    assert log.read_text().count("Server is ready") == starts + 1, "the records were opened twice"
    again = NatsServer(folder)  # it would not start beside a server that was left behind
    await again.start()
    await again.stop()


async def test_the_role_runs_a_release_by_itself(bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = SystemClock()
    ctx = context(bus, clock, tmp_path)
    monkeypatch.setattr("onward.release.validation.suite.EngineSuite", lambda ctx: FakeSuite({"d1": 0.6}, {}))
    monkeypatch.setattr(releaser, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(releaser, "IDLE_SECONDS", 0.05)
    releases = Releases(bus, clock)
    role = asyncio.create_task(releaser.run(ctx))
    try:
        async with asyncio.timeout(120):
            while not ctx.ready.get("releaser"):
                await asyncio.sleep(0.01)
            assert await install_initial(ctx, "d0", "checkpoints/warm/0") == "agent-zero-rl-v0"
            await add_job(bus)
            count = 0
            while True:
                desired = await gateway_follows(bus, clock)
                if desired and len(desired["arms"]) == 2:
                    for arm in ("candidate", "current"):
                        count += 1
                        weight = desired["arms"][1]["weight"]
                        await publish(bus, clock, count, desired["release_id"], arm, "reward", 1.0, weight)
                records = await releases.all()
                if len(records) == 2 and records[-1].settled:
                    break
                assert not role.done()
                await asyncio.sleep(0.02)
        assert records[-1].decision == "promoted"
        assert [arm["model_id"] for arm in (desired or {})["arms"]] == ["agent-zero-rl-v1"]
    finally:
        role.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await role


async def test_a_warm_start_takes_the_place_of_the_base_model(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """However the two meet: the releaser installs the base model while a warm start comes in."""
    clock = SystemClock()
    ctx = context(bus, clock, tmp_path)
    monkeypatch.setattr(
        "onward.release.validation.suite.EngineSuite", lambda ctx: FakeSuite({}, {}, base="b" * 64)
    )
    monkeypatch.setattr(releaser, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(releaser, "IDLE_SECONDS", 0.05)
    releases = Releases(bus, clock)

    async def follow() -> None:
        while True:
            await gateway_follows(bus, clock)
            await asyncio.sleep(0.02)

    tasks = [asyncio.create_task(releaser.run(ctx)), asyncio.create_task(follow())]
    try:
        async with asyncio.timeout(30):
            while await releases.current() is None:  # the base model is being put in place now
                await asyncio.sleep(0.001)
            assert await install_initial(ctx, "d0", "checkpoints/warm/0") == "agent-zero-rl-v0"
            while not all(record.settled for record in await releases.all()):
                await asyncio.sleep(0.02)
        desired = await gateway_follows(bus, clock)
        assert desired is not None and [arm["model_id"] for arm in desired["arms"]] == ["agent-zero-rl-v0"]
        current = await releases.current()
        assert current is not None and current.model_id == "agent-zero-rl-v0"
        assert len(await releases.all()) == 2
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
