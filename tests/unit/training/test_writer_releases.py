"""Releases of rubric writers by jobs and by operators: crashes, races, rollbacks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from writer_jobs import V1, V2, V3, Jobs, nothing

from onward.contracts.buckets import ReleasedWriter
from onward.errors import ConflictError, NotFoundError
from onward.training.role import rubrics_attempt
from onward.training.writers import StoredWriters, record


class Crash(BaseException):
    """The process died here."""


async def test_each_writer_is_compared_with_the_one_that_is_released_then(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    weak = await jobs.run("weak", skill_gain={"mean": 0.1, "low": -0.1, "high": 0.3})
    assert (weak["version"], weak["passed"], weak["released_now"]) == (V1, False, False)
    assert await jobs.writers.released() is None
    first = await jobs.run("first")
    assert first["released_now"] and first["policy"] == "rubrics/first/1"
    worse = await jobs.run("worse", versus_released={"mean": -0.1, "low": -0.2, "high": 0.0})
    assert not worse["released_now"] and "not worse than rubric-writer-v2" in worse["why"]
    assert jobs.compared_with == [None, None, V2]
    assert await jobs.states() == {V1: "not passed", V2: "released", V3: "not passed"}
    (change,) = (await jobs.pointer()).changes
    assert (change.kind, change.version, change.before, change.by) == ("released", V2, None, "trainer")


@pytest.mark.parametrize("point", ["writers.stored", "writers.recorded", "writers.audited"])
async def test_a_crash_before_the_pointer_leaves_the_old_writer_and_the_next_attempt_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    jobs = Jobs(tmp_path)
    await jobs.run("old")

    def crash(name: str) -> None:
        if name == point:
            raise Crash

    for module in (record, rubrics_attempt):
        monkeypatch.setattr(module, "crashpoint", crash)
    with pytest.raises(Crash):
        await jobs.run("new")
    before = await jobs.pointer()
    assert before.version == V1 and len(before.changes) == 1
    assert (await StoredWriters(jobs.world.ctx.objects, jobs.world.settings).folder(before)).is_dir()
    for module in (record, rubrics_attempt):
        monkeypatch.setattr(module, "crashpoint", lambda name: None)
    done = await jobs.run("new", attempt=2)
    assert (done["version"], done["released_now"], done["policy"]) == (V2, True, "rubrics/new/2")
    assert await jobs.states() == {V1: "released before", V2: "released"}


async def test_a_crash_after_the_pointer_releasesnothing_twice_and_undoes_no_rollback(
    tmp_path: Path,
) -> None:
    jobs = Jobs(tmp_path)
    await jobs.run("old")
    await jobs.run("new")  # the trainer dies before the job is completed
    again = await jobs.run("new", attempt=2)
    assert (again["version"], again["released_now"]) == (V2, True)
    assert len((await jobs.pointer()).changes) == 2
    await jobs.roll_back()
    late = await jobs.run("new", attempt=3)
    assert not late["released_now"]
    assert await jobs.states() == {V1: "released", V2: "rolled back"}


async def test_rollbacks_go_back_one_release_at_a_time(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    with pytest.raises(NotFoundError, match="nothing to roll back"):
        await jobs.roll_back()
    for name in ("a", "b", "c"):
        await jobs.run(name)
    third = await jobs.pointer()
    assert (third.version, third.back) == (V3, [V1, V2])
    assert ((await jobs.roll_back()).version, (await jobs.roll_back()).version) == (V2, V1)
    assert await jobs.states() == {V1: "released", V2: "rolled back", V3: "rolled back"}
    with pytest.raises(ConflictError, match="none to go back to"):
        await jobs.roll_back()
    promoted = await jobs.writers.release(
        await jobs.writers.version(V3), kind="promoted", expected=V1, by="ada", why="after all"
    )
    assert (promoted.version, promoted.back, promoted.digest) == (V3, [V1], third.digest)
    audited = [one["event"] for one in jobs.world.published.values()]
    assert audited == ["writer.released"] * 3 + ["writer.rolled_back"] * 2 + ["writer.promoted"]
    with pytest.raises(NotFoundError, match="did you mean rubric-writer-v"):
        await jobs.writers.version("rubric-writer-v33")


async def test_a_change_over_a_writer_that_is_not_released_any_more_is_refused(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    await jobs.run("a")
    await jobs.run("b")
    now, before = await jobs.writers.target_of_rollback()
    await jobs.roll_back()
    with pytest.raises(ConflictError, match="changed meanwhile"):
        await jobs.writers.roll_back(now.version, before, by="bob", why="the same")
    with pytest.raises(ConflictError, match="released meanwhile"):
        await jobs.writers.release(
            await jobs.writers.version(V2), kind="promoted", expected=V2, by="bob", why="x"
        )
    assert await jobs.states() == {V1: "released", V2: "rolled back"}


async def test_a_writer_is_compared_again_if_another_one_was_released_meanwhile(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    await jobs.run("a")
    await jobs.run("b")

    async def operator() -> None:
        jobs.meanwhile = nothing
        await jobs.roll_back()

    jobs.meanwhile = operator
    done = await jobs.run("c")
    assert jobs.compared_with == [None, V1, V2, V1]
    assert done["released_now"] and "rubric-writer-v1" in done["why"]
    assert (await jobs.pointer()).back == [V1]


@pytest.mark.parametrize(("mode", "alerts"), [("approval", ["approval_needed"]), ("never", [])])
async def test_a_writer_that_passed_waits_where_the_settings_say_so(
    tmp_path: Path, mode: str, alerts: list[str]
) -> None:
    jobs = Jobs(tmp_path, release=mode)
    done = await jobs.run("a")
    assert (done["passed"], done["released_now"]) == (True, False)
    assert await jobs.states() == {V1: "passed"}
    assert jobs.world.alerts == alerts
    version = await jobs.writers.version(V1)
    await jobs.writers.release(version, kind="promoted", expected=None, by="ada", why="read it")
    again = await jobs.run("a", attempt=2)  # the trainer died before the job was completed
    assert (again["released_now"], jobs.world.alerts) == (True, alerts)


async def test_a_job_is_not_lost_by_a_released_writer_that_is_damaged(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    await jobs.run("a")
    await jobs.world.ctx.objects.delete("rubrics/a/1/writer.json")
    done = await jobs.run("b")
    assert not done["released_now"] and "could not be compared" in done["why"]
    assert jobs.world.alerts == ["writer_refused"]
    assert await jobs.states() == {V1: "released", V2: "not passed"}


async def test_a_retry_is_not_compared_with_what_an_earlier_attempt_was(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, release="never")
    await jobs.run("a")
    await jobs.writers.release(
        await jobs.writers.version(V1), kind="promoted", expected=None, by="ada", why="x"
    )
    await jobs.run("b")
    (await jobs.files.fetch(await jobs.pointer())).rename(tmp_path / "gone")
    await jobs.world.ctx.objects.delete("rubrics/a/1/writer.json")
    done = await jobs.run("b", attempt=2)
    assert jobs.compared_with == [None, V1, None] and "could not be compared" in done["why"]


async def test_a_version_that_cannot_be_read_keeps_its_number(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    await jobs.run("a")
    await jobs.world.bucket("rl_writers").create("version.rubric-writer-v7", b"of a newer program")
    async with asyncio.timeout(30):
        assert (await jobs.run("b"))["version"] == "rubric-writer-v8"


async def test_no_job_replaces_a_pointer_that_cannot_be_read(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    await jobs.world.bucket("rl_writers").create("released", b"of a newer program")
    done = await jobs.run("a")
    assert (done["passed"], done["released_now"], len(jobs.compared_with)) == (True, False, 3)
    assert jobs.world.bucket("rl_writers").data["released"][0] == b"of a newer program"
    version = await jobs.writers.version(V1)
    await jobs.writers.release(version, kind="promoted", expected=None, by="ada", why="mended")
    assert (await jobs.pointer()).version == V1


async def test_a_record_that_another_attempt_changed_meanwhile_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(tmp_path, release="never")
    await jobs.run("a")
    first, bucket = await jobs.writers.version(V1), jobs.world.bucket("rl_writers")
    right, turns = bucket.update, 0

    async def update(key: str, value: bytes, revision: int, **given: Any) -> int:
        nonlocal turns
        turns += 1
        if turns == 1:  # the operator is quicker: the version is released before it is replaced
            await right(key, first.dump(), bucket.data[key][1])
            await jobs.writers.release(first, kind="promoted", expected=None, by="ada", why="x")
        return await right(key, value, revision, **given)

    monkeypatch.setattr(bucket, "update", update)
    facts = first.model_dump(exclude={"version", "number", "job_id", "made_at"})
    kept = await jobs.writers.record("a", **{**facts, "attempt": 2, "digest": "f" * 64})
    assert kept == first == await jobs.writers.version(V1)


async def test_a_version_stands_once_among_those_that_rollbacks_go_to(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    for name in ("a", "b"):
        await jobs.run(name)
    for number, (name, before) in enumerate([(V1, V2), (V2, V1), (V1, V2)]):
        found = await jobs.writers.release(
            await jobs.writers.version(name), kind="promoted", expected=before, by="ada", why=f"{number}"
        )
        assert found.back == [before]
    assert (await jobs.roll_back()).back == []


async def test_a_rollback_goes_only_to_the_version_whose_files_were_checked(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    for name in ("a", "b", "c"):
        await jobs.run(name)
    now, before = await jobs.writers.target_of_rollback()
    assert (now.version, before.version) == (V3, V2)
    for name, other in ((V1, V3), (V3, V1)):  # meanwhile: the same writer is released, after another one
        await jobs.writers.release(
            await jobs.writers.version(name), kind="promoted", expected=other, by="bob", why="x"
        )
    with pytest.raises(ConflictError, match="changed meanwhile"):
        await jobs.writers.roll_back(now.version, before, by="ada", why="x")
    assert (await jobs.pointer()).version == V3


async def test_a_scorer_sees_each_change_of_the_pointer_and_reads_each_value_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, loads = Jobs(tmp_path), 0
    source = StoredWriters(jobs.world.ctx.objects, jobs.world.settings, jobs.world.ctx.bus)
    assert await source.released() is None
    right = ReleasedWriter.load

    def load(data: bytes) -> ReleasedWriter:
        nonlocal loads
        loads += 1
        return right(data)

    await jobs.run("a")
    await jobs.run("b")
    seen = []
    monkeypatch.setattr(ReleasedWriter, "load", load)
    for _ in range(3):
        seen.append(await source.released())
    assert (loads, seen[0]) == (1, seen[2])
    monkeypatch.undo()
    await jobs.roll_back()
    back = await source.released()
    assert [one.version for one in (*seen, back) if one is not None] == [V2, V2, V2, V1]
    bucket = jobs.world.bucket("rl_writers")
    bucket.data["released"] = (b"of a newer program", 9)
    assert await source.released() is None
