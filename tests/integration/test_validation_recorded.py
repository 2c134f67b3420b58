"""A user's own suite end to end: recorded tasks of an agent, in the real warehouse, gate a release."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from release_world import World
from scripted_engine import ScriptedEngine
from trajectory_store import reward, store, trajectory

from onward.clock import SystemClock
from onward.config import load
from onward.context import Context
from onward.envs import desk
from onward.release.validation.probe_prompts import CheckResult
from onward.release.validation.suite import EngineSuite
from onward.suites.finding import Sources, find
from onward.suites.recorded.suite import read_set
from onward.warehouse import EmbeddedWarehouse, Warehouse

TASKS = 30
SUITE = "recorded:agent=helpdesk,items=30"
DIGESTS = {name: name * 32 for name in ("d0", "d1")}
FORGOTTEN = range(12)
"""Tasks that the candidate has forgotten."""


def recorded(n: int) -> dict[str, Any]:
    """Asked for n times 3, the agent called the calculator and gave its result."""
    document = trajectory(f"t-{n:02d}", hours=n / 10, answer=f"It is {3 * n}.", agent_id="helpdesk")
    first, second = document["turns"]
    first["observation"]["content"]["messages"][1]["content"] = f"What is {n} times 3?"
    first["action"]["tool_args"] = {"expression": f"{n} * 3"}
    first["result"]["output"] = second["observation"]["content"] = str(3 * n)
    return document


@pytest.fixture
async def warehouse(tmp_path: Path) -> AsyncIterator[Warehouse]:
    embedded = EmbeddedWarehouse(tmp_path)
    opened = await embedded.start()
    other = trajectory("other", agent_id="writer")
    await store(
        opened,
        [*map(recorded, range(TASKS)), other],
        [*(reward(f"t-{n:02d}", 0.9) for n in range(TASKS)), reward("other", 0.9)],
    )
    yield opened
    await opened.close()
    await embedded.stop()


def script(messages: Sequence[dict[str, Any]], adapter: str | None) -> str:
    """Current does the recorded tasks and not the desk; the candidate does the desk and forgot some."""
    if messages[0]["content"] == desk.SYSTEM_PROMPT:
        if adapter == DIGESTS["d0"]:
            return "I do not know."
        task = DESK[messages[1]["content"]]
        return desk.solve(task)[sum(message["role"] == "assistant" for message in messages)]
    number = int(messages[1]["content"].split()[2])
    if adapter == DIGESTS["d1"] and number in FORGOTTEN:
        return "I forgot it."
    if messages[-1]["role"] == "tool":
        return f"it is {messages[-1]['content']}"
    return json.dumps({"tool_name": "calculator", "tool_args": {"expression": f"{number} * 3"}})


DESK = {task.instructions: task for task in desk.tasks("validation", 30)}


class Scripted(EngineSuite):
    """The real host on a scripted engine; the built-in checks pass."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.engine = self._engine = ScriptedEngine(script)  # type: ignore[assignment]
        self._max_tokens = 200

    async def prepare(
        self, digest: str | None, object_prefix: str, manifest_sha256: str | None = None
    ) -> None:
        await self.engine.load_adapter(digest or "", Path())

    async def run_checks(self, digest: str | None) -> list[CheckResult]:
        return [CheckResult("c", kind, True, n) for kind in ("refusal", "format") for n in range(4)]

    async def finish(self) -> None:
        self._found.clear()


async def release_of(warehouse: Warehouse, tmp_path: Path, *suites: str) -> World:
    validation = {"suites": list(suites), "size": 30, "regression": "interval"}
    world = World(time_scale=0.01, validation=validation)
    await world.install(DIGESTS["d0"])
    settings = load(environ={}, overrides={"data_dir": tmp_path, "validation": validation})
    ctx = replace(world.context(), settings=settings, clock=SystemClock(), warehouse=warehouse)
    world.suite = Scripted(ctx)  # type: ignore[assignment]
    world.start()
    await world.job("job-1", DIGESTS["d1"], DIGESTS["d0"])
    async with asyncio.timeout(60):
        while len(world.records) < 2 or not (world.record.closed or world.record.serving):
            await world.run(1)
            await asyncio.sleep(0.02)
    return world


async def test_thirty_recorded_tasks_stop_a_candidate_that_is_better_on_the_desk(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    world = await release_of(warehouse, tmp_path, "desk", SUITE)
    record = world.record
    found = record.validation or {}
    assert (record.state, found["verdict"]) == ("rejected", "failed")
    suites = found["summary"]["suites"]
    assert (suites["desk"]["verdict"], suites["desk"]["candidate"], suites["desk"]["current"]) == (
        "passed",
        1,
        0,
    )
    own = suites[SUITE]
    assert (own["verdict"], own["candidate"], own["current"], own["tasks"]) == ("failed", 18 / 30, 1.0, TASKS)
    assert [one["item_id"] for one in own["failing"]] == [f"t-{n:02d}" for n in FORGOTTEN]
    assert own["failing"][0]["answer"] == "I forgot it."
    assert found["improvement"] == pytest.approx((1.0 - 12 / 30) / 2)  # each suite has the same weight
    assert f"{SUITE}: success 0.60, current 1.00" in (record.reason or "")
    assert "lost t-00, t-01, t-02, t-03, t-04 and 7 more" in (record.reason or "")


async def test_the_same_candidate_is_released_by_the_desk_alone(warehouse: Warehouse, tmp_path: Path) -> None:
    world = await release_of(warehouse, tmp_path, "desk")
    assert world.record.serving and (world.record.validation or {})["verdict"] == "passed"


async def test_a_rule_chooses_the_tasks_and_their_set_is_frozen(warehouse: Warehouse, tmp_path: Path) -> None:
    suite: Any = await find("recorded:agent=helpdesk,items=5", Sources(tmp_path, warehouse))
    assert [task.item_id for task in suite.tasks] == [f"t-{n:02d}" for n in range(25, 30)], "the newest"
    (file,) = (tmp_path / "suites" / "recorded").iterdir()
    assert read_set(file.parent, file.stem) == suite.tasks
    again = await find(f"recorded:set={file.stem}", Sources(tmp_path))
    assert again.digest() == suite.digest()
