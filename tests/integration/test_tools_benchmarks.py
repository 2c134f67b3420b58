"""``run_benchmarks`` from its call to the stored result: the real command in its child, a scripted engine."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from serving_world import World
from tools_world import attach

from onward.bus import Bus, NatsServer
from onward.ids import model_key
from onward.release.record import Model
from onward.tools import Toolbox, models
from onward.warehouse import EmbeddedWarehouse, Objects

CHILD = Path(__file__).parent.parent / "worlds" / "benchmark_child.py"
pytestmark = pytest.mark.slow


async def test_a_worse_model_is_measured_against_the_current_one_and_reported(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, wrapper = tmp_path / "onward.toml", tmp_path / "python"
    file.write_text('[model]\nbase = "tiny"\n[validation]\nsize = 10\n')
    async with World(bus, tmp_path) as world:
        warehouse = EmbeddedWarehouse(world.settings.data_dir)
        await (await warehouse.start()).close()
        world.ctx = replace(world.ctx, objects=Objects.open(world.settings.objects_at))
        digests = {}
        for value, name in enumerate(("good", "worse")):
            digests[name] = await world.register(name, float(value))
            stored = await bus.bucket("rl_models").get(model_key(name))
            assert stored is not None
            state = "current" if name == "good" else "added"
            model = Model(**json.loads(stored.value), training_job_id="j", state=state)
            await bus.bucket("rl_models").put(model_key(name), model.dump())
        wrapper.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {CHILD} {digests["worse"]} "$@"\n')
        wrapper.chmod(0o755)
        monkeypatch.setattr(models.sys, "executable", str(wrapper))
        attach(world.settings, nats_server)
        async with Toolbox(world.settings, scopes={"train", "read"}, config_file=file) as box:
            asked = {"model_path": "worse", "tasks": ["desk"]}
            begun = json.loads((await box.call("run_benchmarks", asked)).text)
            async with asyncio.timeout(60):
                while begun["state"] == "running":
                    await asyncio.sleep(0.1)
                    begun = json.loads((await box.call("job_status", {"job_id": begun["job_id"]})).text)
            assert begun["state"] == "completed", begun
            found = begun["result"]
            assert (found["model_id"], found["against"], found["verdict"]) == ("worse", "good", "failed")
            assert found["improvement"] == pytest.approx(-0.4)  # it forgot four of ten tasks
            suite = found["suites"]["desk"]
            assert (suite["candidate"], suite["current"], suite["worse"], suite["better"]) == (0.6, 1.0, 4, 0)
            assert (world.settings.data_dir / "validations" / "worse.json").is_file()
        await warehouse.stop()
