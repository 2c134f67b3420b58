"""A user's own suite end to end: recorded tasks of an agent, in the real warehouse, gate a release."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from release_world import World
from scripted_engine import ScriptedEngine
from trajectory_store import reward, store, trajectory

from onward.clock import SystemClock
from onward.config import load
from onward.context import Context
from onward.contracts.buckets import JobEntry
from onward.envs import desk
from onward.ids import model_key
from onward.release.record import Model
from onward.release.validation.lineage import trained_on
from onward.release.validation.probe_prompts import CheckResult
from onward.release.validation.suite import EngineSuite
from onward.suites.finding import Sources, find
from onward.suites.recorded.suite import freeze, read_set
from onward.suites.trained import TrainedOn
from onward.training.data import snapshots
from onward.warehouse import EmbeddedWarehouse, Objects, Warehouse

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


def trained_world(warehouse: Warehouse, tmp_path: Path) -> SimpleNamespace:
    """Buckets, warehouse and object store, without a releaser."""
    world = World()
    settings = load(environ={}, overrides={"data_dir": tmp_path})
    ctx = replace(
        world.context(), settings=settings, warehouse=warehouse, objects=Objects.open(settings.objects_at)
    )
    return SimpleNamespace(ctx=ctx)


async def release_of(
    warehouse: Warehouse, tmp_path: Path, *suites: str, before: Callable[[Any], Awaitable[None]] | None = None
) -> World:
    validation = {"suites": list(suites), "size": 30, "regression": "interval"}
    world = World(time_scale=0.01, validation=validation)
    await world.install(DIGESTS["d0"])
    settings = load(environ={}, overrides={"data_dir": tmp_path, "validation": validation})
    ctx = replace(
        world.context(),
        settings=settings,
        clock=SystemClock(),
        warehouse=warehouse,
        objects=Objects.open(settings.objects_at),
    )
    if before is not None:
        await before(SimpleNamespace(ctx=ctx))
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


async def dataset(world: Any, tmp_path: Path, job: str, members: Sequence[str], rows: bytes = b"") -> None:
    """Stores the description of a job's frozen dataset, as its trainer does."""
    path = tmp_path / "rows"
    path.write_bytes(rows)
    description = {
        "job_id": job,
        "samples": len(members),
        "rows_sha256": hashlib.sha256(rows).hexdigest(),
        "members": [{"trajectory_id": name} for name in members],
    }
    await snapshots.store(world.ctx.objects, description, path)


def model(name: str, job: str, parent: str | None = None, adapter: str | None = "a") -> Model:
    return Model(model_id=name, adapter_digest=adapter, object_prefix="p", training_job_id=job, parent=parent)


async def test_what_a_model_of_either_lineage_was_trained_on_is_left_out_by_id_task_and_question(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    """31 tasks. The candidate's job had t-29 and t-28, its parent's t-40, which is the task of t-27 under
    another id. The question of t-26 was in a row whose trajectory is gone. 26 are left."""
    await store(warehouse, [recorded(40) | {"task_context": recorded(27)["task_context"]}], [])
    world = trained_world(warehouse, tmp_path)
    gone = b'{"trajectory_id":"gone","messages":[{"role":"user","content":" WHAT is 26 times  3"}]}\n'
    await dataset(world, tmp_path, "j1", ["t-40"])
    await dataset(world, tmp_path, "j2", ["t-29", "t-28", "gone"], gone)
    await dataset(world, tmp_path, "of another", ["t-00"])
    models = [model("base", "jb", adapter=None), model("m1", "j1", "base"), model("m2", "j2", "m1")]
    for one in models[:2]:
        await world.ctx.bus.bucket("rl_models").put(model_key(one.model_id), one.dump())
    trained = await trained_on(world.ctx, [models[2], models[1]])
    assert trained.trajectories == {"t-40", "t-29", "t-28", "gone"} and trained.unknown == ()
    sources = Sources(tmp_path, warehouse, trained=trained)
    suite: Any = await find(SUITE, sources)
    assert [task.item_id for task in suite.tasks] == [f"t-{n:02d}" for n in range(26)]
    expected = {"left_out": {"question": 1, "task": 1, "trajectory": 3}, "unknown": []}
    assert suite.facts == {"trained_on": expected}
    five: Any = await find("recorded:agent=helpdesk,items=5", sources)
    assert [task.item_id for task in five.tasks] == [f"t-{n}" for n in range(21, 26)], "older ones instead"

    everything: Any = await find("recorded:agent=helpdesk,items=30", Sources(tmp_path, warehouse))
    frozen = freeze(tmp_path / "suites" / "recorded", everything.tasks)
    exact: Any = await find(f"recorded:set={frozen}", sources)
    assert len(exact.tasks) == 30, "a set stays as it is"
    assert exact.facts["trained_on"]["overlap"] == {"question": 1, "task": 1, "trajectory": 3}

    await warehouse.command("TRUNCATE TABLE trajectories")
    assert await trained_on(world.ctx, models[1:]) == trained, "each dataset is read once"


async def test_a_comparison_that_goes_on_has_its_tasks_although_newer_ones_came(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    rule = "recorded:agent=helpdesk,items=5"
    sources = Sources(tmp_path, warehouse, trained=TrainedOn(frozenset(["t-29"])), comparison="a/b")
    first: Any = await find(rule, sources)
    await store(warehouse, [recorded(40)], [])
    again: Any = await find(rule, sources)
    assert [task.item_id for task in again.tasks] == [f"t-{n}" for n in range(24, 29)]
    assert (again.digest(), again.facts) == (first.digest(), first.facts)
    newer = [f"t-{n}" for n in (25, 26, 27, 28, 40)]
    for other in (replace(sources, comparison="a/c"), replace(sources, fresh=True), sources):
        found: Any = await find(rule, other)
        assert [task.item_id for task in found.tasks] == newer, "the choice of --fresh is the new one"


async def test_what_is_not_known_is_said_and_is_no_zero(warehouse: Warehouse, tmp_path: Path) -> None:
    world = trained_world(warehouse, tmp_path)
    await dataset(world, tmp_path, "j1", ["t-00", "gone"])
    played = {"training_config": {"dataset": {"source": "local", "environment": {"name": "maze"}}}}
    for job, request in (("lost", {}), ("played", played)):
        entry = JobEntry(job_id=job, state="completed", request=request)
        await world.ctx.bus.bucket("rl_jobs").put(f"job.{job}", entry.dump())
    models = [model("added", "x"), model("m", "lost"), model("p", "played"), model("c", "j1", "no entry")]
    assert (await trained_on(world.ctx, models)).unknown == (
        "added was trained outside of this loop: its data is not known.",
        "The dataset of m, job lost, is not stored any more.",
        "The text of 1 trajectories that c was trained on is gone: they are known by their ids alone.",
        "The entry of no entry is gone, and with it what it was trained on.",
    )
    (name,) = await snapshots.ids(world.ctx.objects)
    await world.ctx.objects.delete(f"datasets/{name}.json")
    (tmp_path / "suites" / "trained" / f"{name}.json").unlink()
    (why,) = (await trained_on(world.ctx, models[3:])).unknown[:1]
    assert why.startswith(f"Dataset {name[:12]} of c cannot be read")


async def test_what_was_trained_in_one_environment_is_tried_in_the_others(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    world = trained_world(warehouse, tmp_path)
    place = "https://envs.example.org/shop"
    more = load(
        environ={}, overrides={"data_dir": tmp_path, "training": {"environments": [place, "pack:OTHER"]}}
    )
    ctx = replace(world.ctx, settings=more)
    for job, environment in (("j1", {"name": "maze"}), ("j2", {"url": place})):
        dataset = {"source": "local", "environment": environment}
        entry = JobEntry(job_id=job, state="completed", request={"training_config": {"dataset": dataset}})
        await ctx.bus.bucket("rl_jobs").put(f"job.{job}", entry.dump())
    parent = model("m1", "j1")
    await ctx.bus.bucket("rl_models").put(model_key("m1"), parent.dump())
    host = Scripted(ctx)
    await host.begin(model("m2", "j2", "m1"), parent)
    found = await host.other_tasks(["desk", "auto", "env:wordle"])
    assert found == ["desk", "env:wordle", "env:crafting", "env:desk", "env:pack:OTHER"]


async def test_a_release_whose_recorded_tasks_were_all_trained_on_shows_nothing(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    async def prepared(world: Any) -> None:
        await dataset(world, tmp_path, "job-1", [f"t-{n:02d}" for n in range(TASKS)])

    world = await release_of(warehouse, tmp_path, SUITE, before=prepared)
    found = world.record.validation or {}
    assert world.record.serving and found["verdict"] == "not shown"
    own = found["summary"]["suites"][SUITE]
    words = "30 recorded tasks were left out, as a model was trained on them (30 by trajectory)"
    assert own["judged"].startswith(f"it has no item; {words}")
    assert "was trained outside of this loop" in own["judged"], "the first model has no job"


async def test_a_rule_chooses_the_tasks_and_their_set_is_frozen(warehouse: Warehouse, tmp_path: Path) -> None:
    suite: Any = await find("recorded:agent=helpdesk,items=5", Sources(tmp_path, warehouse))
    assert [task.item_id for task in suite.tasks] == [f"t-{n:02d}" for n in range(25, 30)], "the newest"
    (file,) = (tmp_path / "suites" / "recorded").iterdir()
    assert read_set(file.parent, file.stem) == suite.tasks
    again = await find(f"recorded:set={file.stem}", Sources(tmp_path))
    assert again.digest() == suite.digest()
