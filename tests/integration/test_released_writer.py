"""A running service scores with the released rubric writer, which commands promote and roll back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from answered_task import trajectory
from docs_blocks import run_command
from frozen import freeze
from rubric_writer import two_writers

from onward import config, host
from onward.bus.buckets import stream_of
from onward.children import Keeper
from onward.context import Context
from onward.contracts import encode, subjects
from onward.rubrics.language import Rubric
from onward.rubrics.policy.writer import load_player
from onward.rubrics.tasks import RubricTask, make_task
from onward.rubrics.writer_process import WriterProcess
from onward.rubrics.writers import rubric_by
from onward.training.writers import WriterFiles, Writers
from onward.warehouse import queries

TASK = make_task("expense_audit", 3)
ANSWER = json.dumps(TASK.build(TASK.probes()[0]))


async def record(ctx: Context, folder: Path, job_id: str) -> str:
    """Stores and records a writer as a job does, and returns its version."""
    prefix, manifest, sha256 = await WriterFiles(ctx.objects, ctx.settings).store(folder, job_id, 1)
    made = await Writers(ctx.bus, ctx.clock).record(
        job_id, attempt=1, object_prefix=prefix, manifest_sha256=sha256, digest=manifest.adapter_digest,
        passed=False, why="Not shown to be better.", evidence={"skill": -0.1, "invalid": 0.0},
    )  # fmt: skip
    return made.version


async def killed_at_work(keeper: Keeper, asked: asyncio.Event) -> None:
    """Kills the process of the writer while it has a request: it is frozen until the request has come."""
    assert keeper.pid is not None
    freeze(keeper.pid)
    asked.clear()
    await asked.wait()
    await asyncio.sleep(0.2)
    os.kill(keeper.pid, signal.SIGKILL)


async def test_a_running_service_takes_each_release_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    data = tmp_path / "data"
    settings = config.load(
        environ={},
        overrides={
            "data_dir": data, "nats": {"port": 0}, "http": {"api_port": 0},
            "reward": {
                "rubric": 1.0, "task_completion": 0, "efficiency": 0, "code_quality": 0, "user_feedback": 0,
                "rubrics": {"audits": {"family": "expense_audit", "writer": "released"}},
            },
        },
    )  # fmt: skip
    folders, asked, write = two_writers(tmp_path), asyncio.Event(), WriterProcess.write

    async def noted(process: WriterProcess, writer: str, task: RubricTask) -> Rubric:
        asked.set()
        return await write(process, writer, task)

    monkeypatch.setattr(WriterProcess, "write", noted)

    async def run(words: str) -> str:
        code, output = await asyncio.to_thread(run_command, f"onward {words} --dir {data}")
        assert code == 0, output
        return output

    async with host.running(settings, roles=("collector", "rewarder")) as loop:
        ctx, sent = loop.ctx, 0

        async def scored() -> dict[str, Any]:
            nonlocal sent
            sent += 1
            item = trajectory(f"trip-{sent}", "expense_audit/3", ANSWER, "audit")
            await ctx.bus.publish(subjects.TRAJECTORY, encode(item), msg_id=item.trajectory_id)
            async with asyncio.timeout(60):
                while True:
                    counts = await queries.counts(ctx.warehouse)
                    if counts["rewarded"] + counts["unscored"] == sent:
                        break
                    await asyncio.sleep(0.05)
            return json.loads(await run(f"rewards explain trip-{sent} --json"))

        none = await scored()
        assert "No rubric writer is released" in json.dumps(none)
        versions = [await record(ctx, folder, f"job-{n}") for n, folder in enumerate(folders, 1)]
        assert versions == ["rubric-writer-v1", "rubric-writer-v2"]
        code, output = await asyncio.to_thread(
            run_command, f"onward rubrics promote {versions[0]} --reason x --dir {data}"
        )
        assert code == 2 and "did not pass its validation" in output
        found, keeper = [], ctx.children["rubric-writer"]
        assert keeper.pid is None, "it starts with the first trajectory that needs it"
        for words in ("promote rubric-writer-v1 --force", "promote rubric-writer-v2 --force", "rollback"):
            await run(f"rubrics {words} --reason 'looked at it'")
            killing = asyncio.create_task(killed_at_work(keeper, asked)) if words == "rollback" else None
            found.append((await scored())["components"]["rubric"]["facts"])
            if killing is not None:
                await killing
        assert keeper.cause == "it ended with code -9"
        assert [one["writer"]["version"] for one in found] == [versions[0], versions[1], versions[0]]
        for facts, folder in zip(found, (*folders, folders[0]), strict=True):
            rubric = rubric_by(load_player(folder), TASK)
            shares = zip(rubric.checks, rubric.weights, strict=True)
            assert facts["weights"] == pytest.approx({str(check): float(one) for check, one in shares})
        assert found[0]["weights"] != found[1]["weights"] and found[0] == found[2]
        again = json.loads(await run("rewards explain trip-3 --json"))
        assert again["components"]["rubric"]["facts"] == found[1]  # scored before the rollback: it stays
        assert "by rubric-writer-v2" in await run("rewards explain trip-3")
        listed = json.loads(await run("rubrics releases --json"))
        assert [(one["version"], one["state"]) for one in listed["writers"]] == [
            ("rubric-writer-v2", "rolled back"), ("rubric-writer-v1", "released"),
        ]  # fmt: skip
        assert [one["kind"] for one in listed["changes"]] == ["promoted", "promoted", "rolled back"]
        assert "rolled back" in await run("rubrics releases")
        written = json.loads(await run("rubrics generate expense_audit/3 --writer released --json"))
        assert written["writer"] == "rubric-writer-v1"
    assert keeper.pid is None, "it ends with the rewarder"

    async def here(process: WriterProcess, writer: str, task: RubricTask) -> Rubric:
        return rubric_by(load_player(Path(writer)), task)

    monkeypatch.setattr(WriterProcess, "write", here)  # a third child would load torch once more
    (tmp_path / "item.json").write_bytes(encode(trajectory("k", "expense_audit/3", ANSWER, "audit")))
    settings_file = tmp_path / "onward.toml"
    settings_file.write_text('[reward.rubrics.audits]\nfamily = "expense_audit"\nwriter = "released"\n')
    line = json.loads(await run(f"rewards score {tmp_path / 'item.json'} -c {settings_file}"))
    assert "rubric-writer-v1" in json.dumps(line)  # nothing runs: the record is read all the same
    async with host.records(settings) as bus:
        await bus.js.delete_stream(stream_of("rl_writers"))  # a folder of an earlier version
    code, output = await asyncio.to_thread(run_command, f"onward rubrics releases --dir {data}")
    assert code == 2 and "Bucket rl_writers does not exist on the server" in output
