"""Datasets from a real stream, warehouse and object store: what is read, frozen, verified and rebuilt."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from docs_blocks import run_command
from reward_world import (
    publish,
    reward_ctx,  # noqa: F401 - the fixture ctx
    reward_warehouse,  # noqa: F401 - the fixture embedded
    rewarded,
    running,
    until,
)
from stored_policy_work import asked_for, sampled, serve
from trajectory_store import reward

from onward import host
from onward.capture.collecting import collector
from onward.config import load
from onward.contracts import encode, subjects, to_document
from onward.errors import TrainingError
from onward.reward.role import rewarder
from onward.training.data import dataset, frozen, rebuilding, snapshots, stream
from onward.training.data.sources import Stores
from onward.training.role import trainer
from onward.training.role.job_table import JobRecord
from onward.warehouse import queries

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def collected(ctx: Any, *numbers: int, **context: Any) -> None:
    """The policy serves, and its work of these numbers is on the stream, stored and scored."""
    key = await serve(ctx)
    before = (await queries.counts(ctx.warehouse))["rewarded"]
    async with running(collector.run(ctx), rewarder.run(ctx)):
        for number in numbers:
            await publish(ctx.bus, sampled(number, key, **context))
        await until(rewarded(ctx, before + len(numbers)))


def names(folder: Path) -> list[str]:
    return [line["trajectory_id"] for line in dataset.read(folder / dataset.FILE)]


async def test_the_named_stream_is_read_and_not_the_warehouse(
    ctx: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its rows in the warehouse the stream still has the work: in windows, newest first."""
    monkeypatch.setattr(stream, "WINDOW", 2)
    await collected(ctx, 1, 2, 3, 4, 5)
    await ctx.warehouse.command("TRUNCATE TABLE trajectories")
    (tmp_path / "a").mkdir()
    made = await frozen.freeze(ctx, asked_for(ctx, stream_name="RL_TRAJECTORIES"), tmp_path / "a")
    assert names(tmp_path / "a") == ["t5", "t4", "t3", "t2", "t1"] and made["excluded"] == {}
    (tmp_path / "b").mkdir()
    with pytest.raises(TrainingError, match="none were found"):
        await frozen.freeze(ctx, asked_for(ctx, source="clickhouse"), tmp_path / "b")


async def test_messages_after_the_job_was_asked_are_left_for_the_next_one(ctx: Any, tmp_path: Path) -> None:
    await collected(ctx, 1, 2, 3)
    asked_at = ctx.clock.now()
    await collected(ctx, 4)
    await frozen.freeze(ctx, asked_for(ctx), tmp_path, asked_at=asked_at)
    assert names(tmp_path) == ["t3", "t2", "t1"]
    description = await snapshots.load(ctx.objects, (await snapshots.ids(ctx.objects))[0])
    assert description["source"] == {"stream": "RL_TRAJECTORIES", "first": 1, "last": 4}


@pytest.mark.parametrize(
    ("stream_name", "words"),
    [
        ("RL_NOTHING", "no stream 'RL_NOTHING'"),
        ("RL_REWARDS", "has no message under"),
        ("KV_rl_jobs", "has no message under"),
        ("RL_TRAJECTORIES.>", "give the name of a stream"),
    ],
)
async def test_a_stream_without_trajectories_is_refused_by_name(
    ctx: Any, tmp_path: Path, stream_name: str, words: str
) -> None:
    await collected(ctx, 1)
    with pytest.raises(TrainingError, match=words) as refused:
        await frozen.freeze(ctx, asked_for(ctx, stream_name=stream_name), tmp_path)
    assert refused.value.code == "DATA"


async def test_a_raw_message_is_redacted_before_anything_is_learnt_from_it(ctx: Any, tmp_path: Path) -> None:
    """The message is on the stream and the collector has not seen it yet: its secret must not be frozen."""
    await collected(ctx, 1, 2)
    key = await serve(ctx)
    secret = "AKIAQ3EGRIBBR4AQPXYZ"
    await publish(ctx.bus, sampled(7, key, answer=f"the key is {secret}"))
    window = stream.Window(ctx.bus, stream.TRAJECTORIES, 1, None, None)
    found = [one async for page in window.pages() for one in page]
    page = await stream.judged(Stores.of(ctx), found, Counter())
    assert [one.trajectory["trajectory_id"] for one in page] == ["t7", "t2", "t1"]
    text = json.dumps(page[0].trajectory)
    assert secret not in text and page[0].trajectory["turns"][0]["action"]["sampling"]["tokens_void"]


async def test_a_snapshot_is_verified_and_a_changed_row_is_named(ctx: Any, tmp_path: Path) -> None:
    await collected(ctx, 1, 2, 3)
    made = await frozen.freeze(ctx, asked_for(ctx), tmp_path)
    name = made["snapshot"]
    assert await snapshots.verify(ctx.objects, name) == []
    rows = tmp_path / "objects" / snapshots.ROWS / f"{made['dataset_sha256']}.jsonl"
    whole = rows.read_bytes()
    assert whole.count(b'"session_id":"s2"') == 1
    rows.write_bytes(whole.replace(b'"session_id":"s2"', b'"session_id":"sX"'))
    assert await snapshots.verify(ctx.objects, name) == ["Row 2, trajectory t2, was changed."]
    rows.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    assert await snapshots.verify(ctx.objects, name) == ["Row 3, trajectory t1, is lost."]


@pytest.mark.parametrize("source", ["clickhouse", "nats_stream"])
async def test_a_snapshot_is_rebuilt_byte_for_byte_although_newer_work_and_rewards_came(
    ctx: Any, tmp_path: Path, source: str
) -> None:
    await collected(ctx, 1, 2, 3)
    made = await frozen.freeze(ctx, asked_for(ctx, source=source), tmp_path)
    description = await snapshots.load(ctx.objects, made["snapshot"])
    await collected(ctx, 4)
    old = await queries.reward_for(ctx.warehouse, ["t2"])
    payload = json.loads(old["t2"]["payload"])
    payload |= {"reward_id": "later"}
    payload["metadata"] |= {"raw_total": 0.01, "revision": 5}
    row = {**old["t2"], "reward_id": "later", "revision": 5, "payload": json.dumps(payload)}
    await ctx.warehouse.insert("rewards", [row])
    assert (await queries.reward_for(ctx.warehouse, ["t2"]))["t2"]["reward_id"] == "later"
    rebuilt = await rebuilding.rebuild(Stores.of(ctx), description)
    assert rebuilt.faults == [] and rebuilt.rows == (tmp_path / dataset.FILE).read_bytes()


async def test_a_trajectory_that_was_changed_or_deleted_in_the_source_is_named(
    ctx: Any, tmp_path: Path
) -> None:
    await collected(ctx, 1, 2, 3)
    made = await frozen.freeze(ctx, asked_for(ctx, source="clickhouse"), tmp_path)
    description = await snapshots.load(ctx.objects, made["snapshot"])
    rows = await queries.trajectories_by_id(ctx.warehouse, ["t1", "t2", "t3"])
    changed = {**rows["t2"], "payload": rows["t2"]["payload"].replace('"s2"', '"sX"')}
    await ctx.warehouse.command("TRUNCATE TABLE trajectories")
    await ctx.warehouse.insert("trajectories", [rows["t1"], changed])
    rebuilt = await rebuilding.rebuild(Stores.of(ctx), description)
    assert sorted(rebuilt.faults) == [
        "Trajectory t2 gives another row than it did.",
        "Trajectory t3 is no longer in the source.",
    ]


def archive(folder: Path, key: bytes, *numbers: int) -> Path:
    """A file of an export with scored work of the policy."""
    folder.mkdir(exist_ok=True)
    path = folder / "day.jsonl"
    with path.open("w") as file:
        for number in numbers:
            document = to_document(sampled(number, key))
            scored = reward(document["trajectory_id"], 0.5, success=number % 2 == 0)
            file.write(json.dumps({"trajectory": document, "reward": scored}) + "\n")
    return path


async def test_an_export_under_a_root_is_learnt_from_and_a_change_of_it_is_named(
    ctx: Any, tmp_path: Path
) -> None:
    root = tmp_path / "exports"
    path = archive(root, await serve(ctx), 1, 2, 3, 4)
    ctx = replace(ctx, settings=load(environ={}, overrides={
        "data_dir": tmp_path, "training": {"data_roots": [str(root)]},
    }))  # fmt: skip
    made = await frozen.freeze(ctx, asked_for(ctx, source="local", path="day.jsonl"), tmp_path)
    assert sorted(names(tmp_path)) == ["t1", "t2", "t3", "t4"]
    description = await snapshots.load(ctx.objects, made["snapshot"])
    (file,) = description["source"]["files"]
    assert file["name"] == str(path) and file["bytes"] == path.stat().st_size
    rebuilt = await rebuilding.rebuild(Stores.of(ctx), description)
    assert rebuilt.faults == [] and rebuilt.rows == (tmp_path / dataset.FILE).read_bytes()
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first.replace('"completion": 0.0', '"completion": 0.5'), *others[:-1]]))
    rebuilt = await rebuilding.rebuild(Stores.of(ctx), description)
    assert sorted(rebuilt.faults) == [
        f"File {path} was changed.",
        "Trajectory t1 has another reward under the id r-t1.",
        "Trajectory t4 is no longer in the source.",
    ]


async def test_a_mix_of_domains_is_frozen_with_its_shortage_in_words(ctx: Any, tmp_path: Path) -> None:
    await collected(ctx, *range(1, 7), domain="coding")
    await collected(ctx, 7, domain="research")
    mixed = {"sample_size": 4, "domain_mix": {"coding": 50, "research": 50}}
    made = await frozen.freeze(ctx, asked_for(ctx, **mixed), tmp_path)
    assert made["samples"] == 4 and "t7" in names(tmp_path) and made["excluded"] == {"not_drawn": 3}
    assert made["notes"] == [
        "The dataset was to have 2 trajectories of research and has 1, since 1 were found; others fill in "
        "(coding +1)."
    ]
    description = await snapshots.load(ctx.objects, made["snapshot"])
    assert description["sampling"]["seed"] == 0 and description["sampling"]["strata"]["research"] == {
        "share": 0.5, "wanted": 2, "available": 1, "taken": 1,
    }  # fmt: skip
    assert (await rebuilding.rebuild(Stores.of(ctx), description)).faults == []


async def test_the_command_stores_lost_rows_again_while_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("onward.toml").write_text('[training]\ndata_roots = ["exports"]\n[nats]\nport = 0\n')
    async with host.parts(load(), roles=()) as ctx:
        archive(Path("exports"), await serve(ctx), 1, 2)
        Path("job").mkdir()
        made = await frozen.freeze(ctx, asked_for(ctx, source="local", path="day.jsonl"), Path("job"))
    name = made["snapshot"]
    (rows,) = Path("onward-data/objects/datasets/rows").iterdir()
    whole = rows.read_bytes()
    rows.write_bytes(whole[:-9])
    assert (await asyncio.to_thread(run_command, f"onward datasets verify {name}"))[0] == 1
    code, out = await asyncio.to_thread(run_command, f"onward datasets rebuild {name}")
    assert (code, out.splitlines()) == (
        0, [f"All 2 rows of {name[:12]} were made again and are equal. They were stored again."],
    ), out  # fmt: skip
    assert rows.read_bytes() == whole


async def test_an_unknown_model_fails_the_job_with_the_remedy_before_anything_is_read(ctx: Any) -> None:
    asked = asked_for(ctx)
    asked.training_config.base_model = "qwen-of-another"
    jobs = ctx.bus.bucket("rl_jobs")
    async with running(trainer.run(ctx)), asyncio.timeout(30):
        await ctx.bus.publish(subjects.TRAINING_REQUEST, encode(asked), msg_id="job-1")
        job = None
        while job is None or job.state != "failed":
            await asyncio.sleep(0.05)
            entry = await jobs.get("job.job-1")
            job = None if entry is None else JobRecord.model_validate_json(entry.value)
    assert job.error is not None and job.error.code == "DATA"
    assert "list the other in [models.aliases]" in job.error.message
    assert not (ctx.settings.data_dir / "jobs" / "job-1").exists()
