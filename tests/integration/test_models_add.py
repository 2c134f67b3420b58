"""``onward models add|release`` with the real bus, releaser, gateway and engine, and while nothing runs."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from docs_blocks import run_command
from peft_folders import write_adapter, write_base
from release_stream import RELEASE, publish_good_outcomes
from release_world import FakeSuite
from serving_world import World

from onward import host
from onward.bus import Bus, NatsServer
from onward.clock import SystemClock
from onward.config import Settings
from onward.context import Context
from onward.ids import model_key
from onward.release import releaser
from onward.release.record import Model, ReleaseRecord, Releases
from onward.release.validation import suite
from onward.serving.engines.local import EngineProcess
from onward.serving.http.gateway import Gateway
from onward.suites.suite import ItemResult
from onward.training import checkpoints
from onward.warehouse import Objects

CORPUS = ["Add 2 and 3.", "What is the capital?", '{"tool_name": "response", "tool_args": {"text": "5"}}']
Command = Callable[[str], Awaitable[tuple[int, str]]]


def commands(data_dir: Path, base: str) -> Command:
    """Runs ``onward …`` on this data folder, with a settings file that names the base model."""
    file = data_dir.parent / "onward.toml"
    file.write_text(f'[model]\nbase = "{base}"\n[validation]\nsuites = ["desk"]\nregression = "point"\n')

    async def command(words: str) -> tuple[int, str]:
        line = f"onward {words} --dir {data_dir} --config {file}"
        return await asyncio.to_thread(run_command, line)

    return command


class Scored(suite.EngineSuite):
    """The real suite, with made-up scores: the engine loads what it is to compare."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self._scores = FakeSuite({}, {})

    async def run_suite(self, name: str, digest: str | None, *_: Any) -> list[ItemResult]:
        return await self._scores.run_suite(name, digest)

    async def run_checks(self, digest: str | None) -> list[suite.CheckResult]:
        return await self._scores.run_checks(digest)


def trained(folder: Path, base: Path) -> Path:
    """An adapter that is far from the base, saved in peft's form."""
    import torch

    from onward.lm.policy import Policy

    policy = Policy.load(base)
    adapter = policy.new_adapter("made", rank=4, alpha=8)
    with torch.no_grad():
        for name, tensor in adapter.params.items():
            if ".lora_B." in name:
                tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
    policy.save_adapter("made", folder)
    return folder


@pytest.fixture
async def loop(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """A gateway with the real engine on a tiny base model, and the releaser role, which installed it."""
    from onward.lm.tiny import build_tiny

    world = World(bus, tmp_path)
    base = build_tiny(world.settings.data_dir / "models" / "tiny", CORPUS, vocab=300, hidden=32, layers=2)
    settings = Settings.model_validate(
        {
            **world.settings.model_dump(),
            "model": {"base": "tiny", "threads": 1, "max_context": 512},
            "release": {**RELEASE, "lost_after_seconds": 600},
        }
    )
    objects = Objects.open(settings.objects_at)
    world.settings, world.ctx = settings, dataclasses.replace(world.ctx, settings=settings, objects=objects)
    process = EngineProcess(settings, clock=SystemClock(), folder=base)
    world.gateway = Gateway(world.ctx, await process.start())
    (settings.run_dir / "nats.token").write_text(nats_server.token)
    (settings.run_dir / host.ENDPOINTS).write_text(json.dumps({"nats_url": nats_server.url}))
    monkeypatch.setattr(suite, "EngineSuite", Scored)
    monkeypatch.setattr(releaser, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(releaser, "IDLE_SECONDS", 0.05)
    try:
        async with world:
            role = asyncio.create_task(releaser.run(world.ctx))
            try:
                await settled(world, "tiny")
                yield world
            finally:
                role.cancel()
                await asyncio.gather(role, return_exceptions=True)
    finally:
        await process.stop()


async def settled(world: World, model_id: str) -> ReleaseRecord:
    """The release of ``model_id`` at its end, with good outcomes for both arms meanwhile."""
    bus, count = world.bus, 0
    releases = Releases(bus, world.clock)
    async with asyncio.timeout(120):
        while True:
            count = await publish_good_outcomes(bus, world.clock, count, world.settings.run_dir)
            for record in await releases.all():
                if record.candidate.model_id == model_id and record.kind == "candidate" and record.settled:
                    return record
            await asyncio.sleep(0.05)


async def test_an_added_adapter_is_validated_gets_a_canary_and_serves(loop: World, tmp_path: Path) -> None:
    command = commands(loop.settings.data_dir, "tiny")
    folder = trained(tmp_path / "mine", loop.settings.data_dir / "models" / "tiny")
    digest = checkpoints.adapter_digest(folder)
    assert await command(f"models add {folder} --name mine") == (
        0,
        "mine is stored. Release it with 'onward models release mine'.\n",
    )
    code, output = await command(f"models add {folder} --name again")
    assert (code, output.startswith(f"The adapter in {folder} is stored already, as mine:")) == (2, True)
    code, output = await command("models list --json")
    states = {model["model_id"]: model["state"] for model in json.loads(output)["released"]}
    assert states == {"tiny": "current", "mine": "added"}
    code, output = await command("models release mine")
    assert (code, output) == (
        0,
        "It begins now: mine is compared with tiny. 'onward releases show mine' shows what came of it.\n",
    )
    record = await settled(loop, "mine")
    assert record.decision == "promoted"
    assert [line["state"] for line in record.history] == [
        "proposed", "validating", "ramping", "ramping", "ramping", "baking", "promoted",
    ]  # fmt: skip
    assert (await loop.ask("after"))["onward"]["model_id"] == "mine"
    code, output = await command("models show mine --json")
    assert (json.loads(output)["state"], json.loads(output)["adapter_digest"]) == ("current", digest)

    code, output = await command("models rollback tiny --reason 'to compare'")
    assert (code, output.splitlines()[-1]) == (
        0,
        "tiny serves alone on every live gateway; mine is rolled back.",
    )
    prefix = record.candidate.object_prefix
    await loop.ctx.objects.delete(f"{prefix}/adapter_model.safetensors")
    code, output = await command("models rollback mine --reason 'it was better'")
    refusal = f"Nothing was changed: mine cannot be loaded: adapter_model.safetensors of {prefix} is not in"
    assert (code, output.splitlines()[-1].startswith(refusal)) == (1, True), output
    assert (await loop.ask("still"))["onward"]["model_id"] == "tiny"


async def test_an_adapter_can_be_added_and_its_release_requested_while_nothing_runs(
    own_server: NatsServer, tmp_path: Path
) -> None:
    bus = await Bus.connect(own_server.url, token=own_server.token, clock=SystemClock(), name="test")
    await bus.ensure_streams(migrate=True)
    serving = Model(
        model_id="v0",
        adapter_digest="d0",
        object_prefix="checkpoints/w/0",
        training_job_id="w",
        state="current",
    )
    await bus.bucket("rl_models").put(model_key("v0"), serving.model_dump_json().encode())
    await bus.close()
    await own_server.stop()
    command = commands(tmp_path / "data", str(write_base(tmp_path / "base")))
    folder = write_adapter(tmp_path / "adapter", 1.0)
    code, output = await command(f"models add {folder} --json")
    added = json.loads(output)
    assert (code, added["state"], added["adapter_digest"]) == (0, "added", checkpoints.adapter_digest(folder))
    name = added["model_id"]
    code, output = await command("models list")
    assert code == 0 and name in output and "added" in output
    code, output = await command(f"models release {name}")
    assert (code, output.split(":")[0]) == (0, "It begins when the loop runs ('onward up')")
    code, output = await command(f"releases show {name}")
    assert (code, output.splitlines()[0]) == (0, f"{name} is proposed.")
    code, output = await command(f"models add {tmp_path / 'none'}")
    assert (code, output) == (
        2,
        f"There is no folder {tmp_path / 'none'}: give one with adapter_config.json and "
        "adapter_model.safetensors.\n",
    )
