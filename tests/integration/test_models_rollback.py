"""``onward models rollback`` on a real bus with the real releaser role and a real gateway."""

import asyncio
import dataclasses
import hashlib
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from counted_warehouse import CountedWarehouse
from docs_blocks import run_command
from release_stream import RELEASE, publish_good_outcomes
from release_world import FakeSuite
from serving_world import World, make_adapter

from onward import host
from onward.bus import Bus, NatsServer
from onward.context import Context
from onward.contracts import ModelDeployed, TrainingRequest, decode, examples
from onward.coordinator.coordinator import Coordinator
from onward.coordinator.triggers import Train, Wait
from onward.ids import new_id
from onward.release import effects, releaser
from onward.release.record import Releases
from onward.release.releaser import install_initial
from onward.training import checkpoints
from onward.training.role.job_table import JobTable

V0, V1 = "agent-zero-rl-v0", "agent-zero-rl-v1"


@pytest.fixture
def warehouse(monkeypatch: pytest.MonkeyPatch) -> CountedWarehouse:
    return CountedWarehouse.installed(monkeypatch)


async def committed(world: World, value: float) -> checkpoints.Commit:
    """An adapter in the object store, as a job leaves it."""
    folder = world.folder / f"made-{value}"
    manifest = make_adapter(folder, value)
    prefix = await checkpoints.upload(world.ctx.objects, folder, job_id=manifest.job_id, epoch=1)
    return checkpoints.Commit(
        job_id=new_id(), epoch=1,
        manifest_sha256=hashlib.sha256((folder / checkpoints.MANIFEST).read_bytes()).hexdigest(),
        object_prefix=prefix, adapter_digest=manifest.adapter_digest,
    )  # fmt: skip


@asynccontextmanager
async def promoted(
    bus: Bus, server: NatsServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[World, Context, list[str]]]:
    """v0 was installed, v1 was trained from it and promoted; the releaser role runs. With both digests."""
    async with World(bus, folder) as world:
        run_dir = world.settings.run_dir
        (run_dir / "nats.token").write_text(server.token)
        (run_dir / host.ENDPOINTS).write_text(json.dumps({"nats_url": server.url}))
        first, second = await committed(world, 1.0), await committed(world, 2.0)
        suite = FakeSuite({second.adapter_digest: 0.6}, {})
        monkeypatch.setattr("onward.release.validation.suite.EngineSuite", lambda ctx: suite)
        monkeypatch.setattr(releaser, "POLL_SECONDS", 0.05)
        monkeypatch.setattr(releaser, "IDLE_SECONDS", 0.05)
        monkeypatch.setenv("LOGNAME", "ada")
        settings = world.settings.model_copy(
            update={"release": world.settings.release.model_copy(update=RELEASE)}
        )
        ctx = dataclasses.replace(world.ctx, settings=settings)
        role = asyncio.create_task(releaser.run(ctx))
        try:
            await install_initial(ctx, first.adapter_digest, first.object_prefix, training_job_id="warm-1")
            asked = {**examples.TRAINING_REQUEST, "training_job_id": second.job_id}
            await JobTable(bus.bucket("rl_jobs"), ctx.clock).adopt(
                TrainingRequest.model_validate(asked), second, start_digest=first.adapter_digest, samples=7
            )
            await _until_promoted(bus, ctx)
            yield world, ctx, [first.adapter_digest, second.adapter_digest]
        finally:
            role.cancel()
            await asyncio.gather(role, return_exceptions=True)


async def _until_promoted(bus: Bus, ctx: Context) -> None:
    releases, count = Releases(bus, ctx.clock), 0
    async with asyncio.timeout(120):
        while True:
            count = await publish_good_outcomes(bus, ctx.clock, count, ctx.settings.run_dir)
            records = await releases.all()
            if len(records) == 2 and records[-1].settled:
                assert records[-1].decision == "promoted"
                return
            await asyncio.sleep(0.05)


async def command(world: World, words: str) -> tuple[int, str]:
    return await asyncio.to_thread(run_command, f"onward {words} --dir {world.settings.data_dir}")


async def messages(bus: Bus, stream: str) -> list[dict]:
    last = (await bus.js.stream_info(stream)).state.last_seq
    return [json.loads((await bus.js.get_msg(stream, seq=n)).data or b"") for n in range(1, last + 1)]


async def test_the_restored_model_serves_at_every_gateway_and_learning_goes_on_from_it(
    bus: Bus,
    nats_server: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    warehouse: CountedWarehouse,
) -> None:
    async with promoted(bus, nats_server, tmp_path, monkeypatch) as (world, ctx, (d0, d1)):
        assert (await world.ask("before"))["onward"]["model_id"] == V1
        code, output = await command(world, "models rollback --reason 'answers got shorter'")
        assert (code, output.splitlines()) == (
            0,
            [
                f"Going back from {V1} to {V0}.",
                f"{V0} serves alone on every live gateway; {V1} is rolled back.",
            ],
        )
        answer = await world.ask("after")
        assert answer["onward"]["model_id"] == V0
        assert world.engine.calls[-1][1] == d0

        code, output = await command(world, "models list --json")
        released = json.loads(output)["released"]
        assert [(model["model_id"], model["state"], model["parent"]) for model in released] == [
            (V1, "rolled_back", V0),
            (V0, "current", None),
        ]
        code, output = await command(world, f"models show {V0}")
        assert code == 0 and "ada asked for it: answers got shorter" in " ".join(output.split())

        deployed = await messages(bus, "RL_DEPLOY")
        last = decode(json.dumps(deployed[-1]).encode(), ModelDeployed)
        assert (last.metadata and last.metadata.event, last.model_info.model_id) == ("rollback", V0)
        assert len({event["deployment_id"] for event in deployed}) == len(deployed)
        shares = [(e["metadata"]["event"], e["deployment_config"]["traffic_percentage"]) for e in deployed]
        ramp = [("candidate", 10), ("ramp", 25), ("ramp", 50), ("ramp", 95), ("promoted", 100)]
        assert shares == [("installed", 100), *ramp, ("rollback", 100)]
        (entry,) = await messages(bus, "RL_AUDIT")
        names = ("event", "by", "reason", "taken_back", "restored")
        assert [entry[name] for name in names] == ["models.rollback", "ada", "answers got shorter", V1, V0]

        at_once = {"threshold": 100, "cooldown_minutes": 0.0}
        training = ctx.settings.training.model_copy(update=at_once)
        settings = ctx.settings.model_copy(update={"training": training})
        coordinator = Coordinator(dataclasses.replace(ctx, settings=settings, warehouse=warehouse))  # type: ignore[arg-type]
        warehouse.add(d1, 500)  # of the policy that was taken back: counts no more
        warehouse.add(d0, 99)
        assert await coordinator.tick() == Wait("99 of 100 rewarded trajectories")
        warehouse.add(d0, 1)
        assert await coordinator.tick() == Train("threshold_reached", "normal")
        asked = json.loads((await bus.bucket("rl_coordinator").get("state")).value)  # type: ignore[union-attr]
        assert asked["model_digest"] == d0


async def test_what_cannot_be_done_is_one_sentence_and_nothing_is_audited(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with promoted(bus, nats_server, tmp_path, monkeypatch) as (world, _, _):
        for words, said in (
            (f"models rollback {V1} --reason x", f"{V1} serves already: there is nothing to go back to.\n"),
            (
                "models rollback v9 --reason x",
                f"'v9' never served everybody, so it cannot be gone back to: expected {V0}.\n",
            ),
            ("models rollback --reason ' '", "--reason has 0 characters: say why in 1 to 500.\n"),
            ("models show v9", f"There is no model 'v9': known are {V0}, {V1}.\n"),
            (
                "jobs show warm-1",
                f"Job warm-1 trained {V0} before it was installed here, so no job of this service has that "
                f"id: 'onward models show {V0}' says what is known.\n",
            ),
            ("jobs show j9", "There is no job 'j9': 'onward jobs list' shows them.\n"),
        ):  # fmt: skip
            assert await command(world, words) == (2, said)
        assert await messages(bus, "RL_AUDIT") == []
        assert (await world.ask("still"))["onward"]["model_id"] == V1


async def test_a_rollback_that_no_gateway_can_load_ends_and_the_serving_model_goes_on(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "REFUSED_SECONDS", 1.0)
    async with promoted(bus, nats_server, tmp_path, monkeypatch) as (world, ctx, (d0, _)):
        shutil.rmtree(ctx.settings.data_dir / "models" / "adapters" / d0)
        entry = await bus.bucket("rl_models").get(V0)
        prefix = json.loads(entry.value)["object_prefix"]  # type: ignore[union-attr]
        await ctx.objects.put(f"{prefix}/adapter_model.safetensors", b"damaged")
        code, output = await command(world, "models rollback --reason 'answers got shorter'")
        lines = output.splitlines()
        assert (code, lines[0]) == (1, f"Going back from {V1} to {V0}.")
        assert lines[1].startswith(f"{V1} serves on: no gateway can load it (adapter_model.safetensors in ")
        assert "does not match its manifest" in lines[1]
        assert (await world.ask("after"))["onward"]["model_id"] == V1
        code, output = await command(world, "releases show")
        said = " ".join(output.split())
        assert (code, f"Going back from {V1} to {V0} was aborted: no gateway can load it" in said) == (
            0,
            True,
        )
        code, output = await command(world, "models list --json")
        states = {model["model_id"]: model["state"] for model in json.loads(output)["released"]}
        assert states == {V1: "current", V0: "previous"}
