"""Fault 25: the object store answers 503, slowly, not at all, or with an old list; attempts commit at once.

A checkpoint is committed once, and verified when it is read. A store that is away is an error of its own,
which uses up no attempt of a job (``tests/unit/training/test_trainer.py``).
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_s3 import FaultyS3, faulty_s3

from onward.errors import NotFoundError, ObjectError, ObjectRefusedError, TamperedError
from onward.training import checkpoints
from onward.warehouse import Objects


@pytest.fixture
def store() -> Iterator[FaultyS3]:
    with faulty_s3() as made:
        yield made


def open_store(store: FaultyS3) -> Objects:
    return Objects.open(
        "s3://bucket/", endpoint=store.url, access_key_id="any", secret_access_key="any", region="us-east-1"
    )


def checkpoint(folder: Path, epoch: int = 1, size: int = 8) -> checkpoints.Manifest:
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    header = f'{{"t":{{"dtype":"U8","shape":[{size}],"data_offsets":[0,{size}]}}}}'.encode()
    body = len(header).to_bytes(8, "little") + header + bytes([epoch]) * size
    (folder / "adapter_model.safetensors").write_bytes(body)
    return checkpoints.write_manifest(folder, job_id="job-1", epoch=epoch, base_digest="base")


async def test_a_store_that_is_overloaded_for_a_moment_loses_nothing(store: FaultyS3, tmp_path: Path):
    """Each request is answered 503 twice before it is carried out."""
    store.fault = lambda method, key, before: "503" if before < 2 else None
    objects, manifest = open_store(store), checkpoint(tmp_path / "made")
    commit = await checkpoints.store(objects, tmp_path / "made", manifest)
    assert await checkpoints.read_commit(objects, "job-1") == commit
    found = await checkpoints.fetch(
        objects, commit.object_prefix, tmp_path / "out", manifest_sha256=commit.manifest_sha256
    )
    assert found == manifest


async def test_a_store_that_stays_away_is_one_sentence_and_commits_nothing(store: FaultyS3, tmp_path: Path):
    store.fault = lambda method, key, before: "503" if key.endswith("safetensors") else None
    with pytest.raises(ObjectError, match="cannot be written") as raised:
        await checkpoints.store(open_store(store), tmp_path / "made", checkpoint(tmp_path / "made"))
    assert not isinstance(raised.value, ObjectRefusedError)
    assert not any(key.endswith(("COMMIT", "manifest.json")) for key in store.objects)
    assert 2 < max(store.asked.values()) < 20  # tried again, and given up


async def test_expired_credentials_are_a_refusal_and_no_missing_object(store: FaultyS3, tmp_path: Path):
    store.fault = lambda method, key, before: "403"
    objects = open_store(store)
    for wanted in (objects.get("x"), objects.exists("x"), objects.put("x", b""), objects.list("x")):
        with pytest.raises(ObjectRefusedError):
            await wanted


async def test_slow_writes_stop_nobody_else(store: FaultyS3, tmp_path: Path):
    store.fault = lambda method, key, before: "slow" if method == "PUT" else None
    manifest = checkpoint(tmp_path / "made")
    writing = asyncio.create_task(checkpoints.store(open_store(store), tmp_path / "made", manifest))
    turns = 0
    while not writing.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await writing).epoch == 1 and turns > 100


async def test_an_upload_that_breaks_between_its_parts_leaves_no_object(store: FaultyS3, tmp_path: Path):
    objects, manifest = open_store(store), checkpoint(tmp_path / "made", size=24 << 20)
    store.fault = lambda method, key, before: "403" if "partNumber=2" in key else None
    with pytest.raises(ObjectError):
        await checkpoints.store(objects, tmp_path / "made", manifest)
    assert not any(key.endswith(("COMMIT", "manifest.json", "safetensors")) for key in store.objects)
    store.fault = lambda method, key, before: None
    commit = await checkpoints.store(objects, tmp_path / "made", manifest)  # the next attempt
    await checkpoints.fetch(objects, commit.object_prefix, tmp_path / "out")


async def test_a_commit_whose_answer_was_lost_counts_and_the_next_attempt_finds_it(
    store: FaultyS3, tmp_path: Path
):
    objects = open_store(store)
    first, second = checkpoint(tmp_path / "one", 1), checkpoint(tmp_path / "two", 2)
    store.fault = lambda method, key, before: "lost" if key.endswith("COMMIT") and before == 0 else None
    try:
        commit = await checkpoints.store(objects, tmp_path / "one", first)
        assert commit.epoch == 1
    except ObjectError:  # unknown whether it was written: the job is run again
        pass
    commit = await checkpoints.store(objects, tmp_path / "two", second)
    assert commit.epoch == 1 and commit == await checkpoints.read_commit(objects, "job-1")


async def test_of_attempts_that_commit_at_once_one_wins_and_all_agree(store: FaultyS3, tmp_path: Path):
    store.fault = lambda method, key, before: "slow" if key.endswith("COMMIT") and before == 0 else None
    made = [checkpoint(tmp_path / str(epoch), epoch) for epoch in range(1, 6)]
    commits = await asyncio.gather(
        *(checkpoints.store(open_store(store), tmp_path / str(one.epoch), one) for one in made)
    )
    assert len({commit.epoch for commit in commits}) == 1
    winner = await checkpoints.read_commit(open_store(store), "job-1")
    assert commits == [winner] * 5
    found = await checkpoints.fetch(
        open_store(store), winner.object_prefix, tmp_path / "out", manifest_sha256=winner.manifest_sha256
    )
    assert found.epoch == winner.epoch


async def test_a_list_that_lags_hides_no_file_of_a_checkpoint(store: FaultyS3, tmp_path: Path):
    objects = open_store(store)
    commit = await checkpoints.store(objects, tmp_path / "made", checkpoint(tmp_path / "made"))
    store.hidden = set(store.objects)
    sha = commit.manifest_sha256
    assert (await checkpoints.read_manifest(objects, commit.object_prefix, manifest_sha256=sha)).epoch == 1
    await checkpoints.fetch(objects, commit.object_prefix, tmp_path / "out", manifest_sha256=sha)
    assert checkpoints.verify(tmp_path / "out").epoch == 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "manifest"])
async def test_what_is_not_as_committed_is_never_loaded(store: FaultyS3, tmp_path: Path, damage: str):
    objects = open_store(store)
    commit = await checkpoints.store(objects, tmp_path / "made", checkpoint(tmp_path / "made"))
    name = "manifest.json" if damage == "manifest" else "adapter_model.safetensors"
    key = f"{commit.object_prefix}/{name}"
    body = store.objects[key]
    if damage == "gone":
        del store.objects[key]
    elif damage == "cut":
        store.objects[key] = body[:-1]
    else:
        store.objects[key] = body[:-2] + bytes([body[-2] ^ 1]) + body[-1:]
    with pytest.raises((TamperedError, NotFoundError)):
        await checkpoints.fetch(
            objects, commit.object_prefix, tmp_path / "out", manifest_sha256=commit.manifest_sha256
        )
    assert not (tmp_path / "out").exists()


async def test_a_read_that_breaks_off_leaves_no_file(store: FaultyS3, tmp_path: Path):
    objects = open_store(store)
    data = os.urandom(1 << 20)
    await objects.put("a", data)
    store.fault = lambda method, key, before: "lost" if before == 0 else None
    await objects.get_file("a", tmp_path / "a")  # asked again
    assert (tmp_path / "a").read_bytes() == data
    store.fault = lambda method, key, before: "403"
    with pytest.raises(ObjectError):
        await objects.get_file("a", tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
