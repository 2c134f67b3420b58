"""``onward validate`` from its words to the stored result and the report, on a real bus and object store."""

import asyncio
import json
import re
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from docs_blocks import run_command
from scripted_engine import ScriptedEngine
from serving_world import World

from onward import host
from onward.bus import Bus, NatsServer
from onward.envs import desk
from onward.ids import model_key
from onward.release.record import Model
from onward.warehouse import EmbeddedWarehouse, Objects

TASKS = {task.instructions: task for task in desk.tasks("validation", 10)}
FORGOTTEN = set(list(TASKS)[:4])
SAID = "<b>I forgot it</b>"


class Engine(ScriptedEngine):
    """Current solves the desk; the adapters in ``worse`` forgot four of its ten tasks."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.worse: set[str | None] = set()
        self.loaded_at_the_end: list[str] | None = None

    def _answer(self, messages: Sequence[dict[str, Any]], adapter: str | None) -> str:
        task = TASKS.get(messages[1]["content"]) if len(messages) > 1 else None
        if task is None or (adapter in self.worse and task.instructions in FORGOTTEN):
            return SAID
        return desk.solve(task)[sum(message["role"] == "assistant" for message in messages)]

    async def close(self) -> None:
        self.loaded_at_the_end = await self.adapters()


async def test_a_worse_model_fails_with_its_lost_items_and_an_equal_one_passes(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, engine = tmp_path / "onward.toml", Engine()
    file.write_text('[model]\nbase = "tiny"\n[validation]\nsize = 10\n')
    monkeypatch.setattr("onward.release.validation.suite.any_engine", lambda run_dir: engine)
    async with World(bus, tmp_path) as world:
        run_dir, warehouse = world.settings.run_dir, EmbeddedWarehouse(world.settings.data_dir)
        await (await warehouse.start()).close()
        (run_dir / "nats.token").write_text(nats_server.token)
        (run_dir / host.ENDPOINTS).write_text(json.dumps({"nats_url": nats_server.url}))
        world.ctx = replace(world.ctx, objects=Objects.open(world.settings.objects_at))
        for value, name in enumerate(("good", "same", "worse")):
            digest = await world.register(name, float(value))
            stored = await bus.bucket("rl_models").get(model_key(name))
            assert stored is not None
            model = Model(**json.loads(stored.value), training_job_id="j")
            await bus.bucket("rl_models").put(model_key(name), model.dump())
        engine.worse = {digest}

        async def validate(words: str) -> tuple[int, str]:
            given = f"--config {file} --dir {world.settings.data_dir}"
            return await asyncio.to_thread(run_command, f"onward validate {words} --suite desk {given}")

        page = tmp_path / "report.html"
        code, output = await validate(f"worse --against good --html {page} --human-score 0.25")
        assert (code, "worse against good: failed, by the suite desk." in output.splitlines()) == (1, True), (
            output
        )
        assert "Score given by a person: 0.25." in output
        stored = json.loads((world.settings.data_dir / "validations" / "worse.json").read_text())
        suite = stored["summary"]["suites"]["desk"]
        assert (suite["candidate"], suite["current"], suite["worse"], suite["better"]) == (0.6, 1.0, 4, 0)
        assert (stored["improvement"], stored["human_score"]) == (pytest.approx(-0.4), 0.25)
        assert stored["results"]["human_eval_score"] == 0.25
        assert "human_evaluation" not in stored["not_run"]
        entry = await bus.bucket("rl_models").get(model_key("worse"))
        assert entry is not None and json.loads(entry.value)["validation"] == {"human_eval_score": 0.25}
        text = page.read_text()
        assert SAID not in text and text.count("&lt;b&gt;I forgot it&lt;/b&gt;") == 4, "escaped"
        pictures = re.findall(r"data:image/png;base64,([\w+/=]+)", text)
        assert [b64decode(one)[:8] for one in pictures] == [b"\x89PNG\r\n\x1a\n"] * 2, "light and dark"

        code, output = await validate("same --against good --json")
        found = json.loads(output)
        assert (code, found["model"], found["against"], found["verdict"]) == (0, "same", "good", "not shown")
        assert found["summary"]["suites"]["desk"]["needed"] == 73, "ten equal items show nothing"
        assert found["improvement"] == 0
        assert engine.loaded_at_the_end == [], "both adapters are unloaded"

        code, output = await validate("nothing --against good")
        assert (code, output.split(":")[0]) == (2, "There is no model 'nothing'")
        code, output = await validate("good")
        assert (code, output.split(":")[0]) == (2, "No model serves yet")
        await warehouse.stop()
