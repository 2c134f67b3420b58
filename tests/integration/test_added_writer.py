"""A writer that was trained by hand becomes a version: ``onward rubrics add``, then ``promote``."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from docs_blocks import run_command
from rubric_writer import toy_plan

from onward import config, host
from onward.clock import SystemClock
from onward.rubrics.language import serialise
from onward.rubrics.policy.episodes import Player
from onward.rubrics.policy.splits import training_tasks
from onward.rubrics.policy.warm_start import untrained
from onward.rubrics.policy.writer import load_writer, save_writer
from onward.rubrics.tasks import make_task
from onward.training.job import rubrics
from onward.training.writers import Writers

TASK = make_task("expense_audit", 3)


def finished_run(folder: Path) -> Path:
    """A run whose writer learnt nothing: the same network before and after."""
    policy, adapter = untrained(toy_plan(), training_tasks((), 4), folder / "raw")
    save_writer(Player(policy, adapter), folder / "run" / "writer")
    shutil.copytree(folder / "run" / "writer", folder / "run" / "base")
    return folder / "run"


async def test_a_trained_writer_is_added_judged_and_promoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rubrics, "VALIDATION_TASKS", 16)
    monkeypatch.setenv("COLUMNS", "120")
    data, run = tmp_path / "data", finished_run(tmp_path)
    settings = config.load(environ={}, overrides={"data_dir": data, "nats": {"port": 0}})
    async with host.parts(settings, roles=()):
        pass

    async def onward(words: str, code: int = 0) -> str:
        found, output = await asyncio.to_thread(run_command, f"onward rubrics {words} --dir {data}")
        assert found == code, output
        return output

    assert "There is no folder" in await onward(f"add {tmp_path / 'none'}", 2)
    assert "has no writer/writer.json" in await onward(f"add {run / 'writer'}", 2)
    output = await onward(f"add {run} --json")
    made = json.loads(output[output.index("{") :])
    assert (made["version"], made["passed"]) == ("rubric-writer-v1", False)
    assert made["evidence"]["skill_gain"] == {"mean": 0, "low": 0, "high": 0}  # the same network
    assert made["why"].startswith("Its skill is -") and "rubrics.min_skill" in made["why"]
    again = await onward(f"add {run}")
    assert "rubric-writer-v1 is stored" in again and "promote rubric-writer-v1 --force" in again
    await onward("promote rubric-writer-v1 --force --reason x")
    (shown,) = json.loads(await onward("generate expense_audit/3 --writer released --json"))["rubrics"]
    right = load_writer(run / "writer").write(TASK)
    assert shown["rubric"] == json.loads(serialise(right))
    listed = json.loads(await onward("releases --json"))["writers"]
    assert [(one["version"], one["state"]) for one in listed] == [("rubric-writer-v1", "released")]
    for number, other in ((2, "rubric-writer-v9"), (3, "rubric-writer-v1")):
        facts = {name: made[name] for name in ("attempt", "object_prefix", "manifest_sha256", "digest")}
        async with host.records(settings) as bus:
            await Writers(bus, SystemClock()).record(
                f"job-{number}", **facts, passed=True, why="Shown.", evidence={"released": other}
            )
    stale = await onward("promote rubric-writer-v2 --reason x", 2)
    assert "passed against rubric-writer-v9, and rubric-writer-v1 is released now" in stale
    assert "in place of rubric-writer-v1" in await onward("promote rubric-writer-v3 --reason x")
    assert "in place of rubric-writer-v3" in await onward("promote rubric-writer-v1 --force --reason back")
    assert "rubric-writer-v3 is the released" in await onward("rollback --reason worse")
    assert "Rolled back to rubric-writer-v3 by" in await onward("releases")
    await onward("promote rubric-writer-v1 --force --reason back")
    shutil.rmtree(data / "models" / "writers")
    (data / "objects" / made["object_prefix"] / "writer.json").write_text("{}")
    for words in ("promote rubric-writer-v3 --force", "rollback"):  # files are checked before the pointer
        assert "is refused, since its stored files" in await onward(f"{words} --reason x", 2)
    states = {one["version"]: one["state"] for one in json.loads(await onward("releases --json"))["writers"]}
    assert states["rubric-writer-v1"] == "released"
    (run / "writer" / "notes").mkdir()
    assert "is no plain file" in await onward(f"add {run}", 2)
    facts = json.loads((run / "writer" / "writer.json").read_text())
    (run / "writer" / "writer.json").write_text(json.dumps({**facts, "base": "/models/big"}))
    assert "is an adapter of a model on this machine" in await onward(f"add {run}", 2)
