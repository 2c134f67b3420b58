"""Each policy plays an item once, whatever ends the process, and no result outlives what it depends on."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from release_world import FakeSuite, World
from scripted_engine import ScriptedEngine

from onward.config import load
from onward.envs import desk
from onward.errors import EngineError
from onward.release.validation import kept
from onward.release.validation.kept import KeptSuite
from onward.release.validation.suite import EngineSuite
from onward.release.validation.verdict import Rules, validate
from onward.suites.environment import make as environment
from onward.suites.finding import Sources
from onward.suites.recorded.replay import ReplaySuite
from onward.suites.recorded.tasks import RecordedTask
from onward.suites.safety.suite import SafetySuite
from onward.suites.suite import ItemResult, Resumable, Suite
from onward.suites.tasks.shipped import ShippedSuite, task

RULES = Rules(("desk",))


def suites(folder: Path, **success: float) -> tuple[FakeSuite, KeptSuite]:
    inner = FakeSuite(success=dict(success), refusals={}, base="base-1")
    return inner, KeptSuite(inner, folder)


async def test_the_candidate_of_one_release_is_not_played_again_as_current_of_the_next(
    tmp_path: Path,
) -> None:
    inner, suite = suites(tmp_path, v0=0.2, v1=0.5, v2=0.6)
    first = await validate("v1", "v0", suite, RULES)
    second = await validate("v2", "v1", suite, RULES)
    assert inner.runs == 3  # v0, v1, v2
    assert (first["current"], first["candidate"]) == (0.2, 0.5)
    assert (second["current"], second["candidate"]) == (0.5, 0.6)
    again = await validate("v2", "v1", KeptSuite(inner, tmp_path), RULES)
    assert inner.runs == 3 and again == second, "a restart changes nothing"


async def test_another_base_model_makes_another_policy_of_the_same_adapter(tmp_path: Path) -> None:
    inner, suite = suites(tmp_path, v0=0.2)
    before = await suite.run_suite("desk", "v0")
    inner.base, inner.success["v0"] = "base-2", 0.9
    after = await suite.run_suite("desk", "v0")
    assert sum(task.success for task in before) == 20
    assert sum(task.success for task in after) == 90


async def test_only_the_last_runs_are_kept_and_the_least_recent_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "RUNS", 3)
    inner, suite = suites(tmp_path)
    for number in range(3):
        await suite.run_suite("desk", f"v{number}")
        for path in tmp_path.iterdir():  # a second passes
            os.utime(path, (path.stat().st_atime - 1, path.stat().st_mtime - 1))
    await suite.run_suite("desk", "v0")  # asked for again: v1 is the least recent now
    await suite.run_suite("desk", "new")
    assert inner.runs == 4
    await suite.run_suite("desk", "v0")
    assert inner.runs == 4
    await suite.run_suite("desk", "v1")
    assert inner.runs == 5


async def test_a_policy_is_verified_and_loaded_again_each_time(tmp_path: Path) -> None:
    inner, suite = suites(tmp_path, v0=0.2)
    await suite.run_suite("desk", "v0")
    await suite.prepare("v0", "prefix", "manifest")
    assert inner.committed == {"v0": "manifest"}
    await suite.finish()
    assert not inner.held


async def test_nothing_is_stored_of_an_engine_that_does_not_name_its_base(tmp_path: Path) -> None:
    inner, suite = suites(tmp_path, v0=0.2)
    inner.base = None
    await suite.run_suite("desk", "v0")
    await suite.run_suite("desk", "v0")
    assert inner.runs == 2 and not list(tmp_path.iterdir())


async def test_fresh_plays_everything_again_once(tmp_path: Path) -> None:
    inner, suite = suites(tmp_path, v0=0.2)
    await suite.run_suite("desk", "v0")
    fresh = KeptSuite(inner, tmp_path, fresh=True)
    await fresh.run_suite("desk", "v0")
    await fresh.run_suite("desk", "v0")
    await fresh.run_checks("v0")
    assert (inner.runs, fresh.known) == (2, 100)


@pytest.mark.parametrize("fault", ["judge", "policy"])
async def test_an_item_without_a_score_is_played_again_and_a_damaged_file_is_none(
    tmp_path: Path, fault: Any
) -> None:
    class Judged(FakeSuite):
        score: float | None = None

        async def run_suite(
            self, name: str, digest: str | None, done: Any = None, on_result: Any = None
        ) -> list[ItemResult]:
            self.done = sorted(done)
            new = ItemResult("b", "k", self.score, False, fault=fault)
            found = [done.get("a", ItemResult("a", "k", 1.0, True)), new]
            for result in found:
                on_result(result)
            return found

    inner = Judged({}, {}, base="base-1")
    suite = KeptSuite(inner, tmp_path)
    await suite.run_suite("mine", "v0")
    await suite.run_suite("mine", "v0")
    assert inner.done == ["a"]
    (file,) = tmp_path.glob("*/*.json")
    file.write_text('{"item_id": "a", "ki')
    inner.score = 0.0
    await suite.run_suite("mine", "v0")
    assert inner.done == [], "half a file is no result"
    inner.done = ["not asked"]
    found = await suite.run_suite("mine", "v0")
    assert inner.done == ["not asked"] and [one.item_id for one in found] == ["a", "b"]


async def test_a_result_that_cannot_be_stored_ends_no_validation(tmp_path: Path) -> None:
    (tmp_path / "items").write_text("a file in the place of the folder")
    inner, _ = suites(tmp_path, v0=0.2)
    suite = KeptSuite(inner, tmp_path / "items")
    assert await suite.run_suite("desk", "v0") == await inner.run_suite("desk", "v0")
    assert await suite.run_checks("v0") == await inner.run_checks("v0")


async def test_a_run_whose_form_this_version_does_not_know_is_played_again(tmp_path: Path) -> None:
    inner, suite = suites(tmp_path, v0=0.2)
    found = await suite.run_suite("desk", "v0")
    await suite.run_checks("v0")
    for file in tmp_path.glob("*.json"):
        file.write_text('[{"item": "a", "solved": true}]')
    assert await suite.run_suite("desk", "v0") == found and inner.runs == 2
    assert await suite.run_checks("v0") == await inner.run_checks("v0")


TASKS = {one.instructions: one for one in desk.tasks("validation", 12)}


def solve(messages: Any, adapter: str | None) -> str:
    return desk.solve(TASKS[messages[1]["content"]])[sum(m["role"] == "assistant" for m in messages)]


async def test_a_validation_that_was_cut_off_goes_on_with_the_items_that_are_left(tmp_path: Path) -> None:
    """The engine dies after 20 answers to 12 tasks; the next process plays those without a result."""
    settings = load(environ={}, overrides={"data_dir": tmp_path, "validation": {"size": 12}})
    ctx = replace(World().context(), settings=settings)

    def process(engine: ScriptedEngine, folder: str) -> KeptSuite:
        inner = EngineSuite(ctx)
        inner._engine, inner._max_tokens = engine, 200  # type: ignore[assignment]
        return KeptSuite(inner, tmp_path / folder)

    whole = await process(ScriptedEngine(solve), "whole").run_suite("desk", None)
    first, second = ScriptedEngine(solve), ScriptedEngine(solve)
    first.fail = lambda adapter, session: len(first.calls) > 20
    with pytest.raises(EngineError):
        await process(first, "cut").run_suite("desk", None)
    stored = list((tmp_path / "cut").glob("*/*.json"))
    assert 0 < len(stored) < 12, len(stored)
    resumed = process(second, "cut")
    assert await resumed.run_suite("desk", None) == whole
    assert resumed.known == len(stored) and len({session for session, _ in second.calls}) == 12 - len(stored)
    assert await process(first, "cut").run_suite("desk", None) == whole, "no engine is asked"


ITEM = {"kind": "k", "messages": [{"role": "user", "content": "?"}]}


@pytest.mark.parametrize("name", ["recorded", "shipped", "safety", "env"])
async def test_each_suite_of_single_items_can_be_played_in_parts(name: str) -> None:
    made: dict[str, Suite] = {
        "recorded": ReplaySuite("r", [RecordedTask(item_id=f"t{n}", **ITEM) for n in range(5)]),
        "shipped": ShippedSuite(task("research_synthesis"), 5),
        "safety": SafetySuite("toxicity", ["toxicity"], limit=20),
        "env": await environment("maze", Sources(items=5)),
    }
    suite = made[name]
    assert isinstance(suite, Resumable)
    every = list(suite.item_ids)
    rest: Any = suite.without(every[1:3])
    assert list(rest.item_ids) == [every[0], *every[3:]] and rest.name == suite.name
    assert list(suite.item_ids) == every and suite.size == len(every), "the suite itself stays whole"
