"""Files of rubric writers: damaged, exchanged, unsigned, and fetched by several processes."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from writer_jobs import V1, V2, Jobs

from onward.errors import TamperedError
from onward.training import signatures
from onward.training.writers import WriterFiles


async def test_files_that_do_not_match_their_hash_are_refused_in_a_sentence(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    await jobs.run("a")
    pointer = await jobs.pointer()
    copy = await jobs.files.fetch(pointer)
    weights = copy / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1] + b"\x7f")
    assert (await jobs.files.fetch(pointer) / "model.safetensors").read_bytes() == good  # from the store
    await jobs.world.ctx.objects.put("rubrics/a/1/model.safetensors", good[:-1] + b"\x7f")
    assert (await jobs.files.fetch(pointer)).is_dir()  # the verified copy needs no store
    (copy / "model.safetensors").write_bytes(good[:-1] + b"\x7f")
    with pytest.raises(TamperedError) as refused:
        await jobs.files.fetch(pointer)
    assert str(refused.value).startswith(f"Rubric writer {V1} is refused, since its stored files are not")
    assert "model.safetensors" in str(refused.value) and "onward rubrics rollback" in str(refused.value)
    await jobs.world.ctx.objects.delete("rubrics/a/1/manifest.json")
    with pytest.raises(TamperedError, match="has no manifest"):
        await jobs.files.fetch(pointer)


async def test_where_signatures_are_required_an_unsigned_writer_is_refused(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    await jobs.run("unsigned")
    signatures.make_key(jobs.world.settings.run_dir)
    await jobs.run("signed")
    models = jobs.world.settings.models.model_copy(update={"require_signature": True})
    strict = jobs.world.settings.model_copy(update={"models": models})
    files = WriterFiles(jobs.world.ctx.objects, strict)
    assert (await files.fetch(await jobs.writers.version(V2))).is_dir()
    with pytest.raises(TamperedError, match="has no signature"):
        await files.fetch(await jobs.writers.version(V1))


@pytest.mark.parametrize("digest", ["..", "", "a/../..", "A" * 64, "0" * 63])
async def test_a_record_whose_digest_is_none_moves_no_folder(tmp_path: Path, digest: str) -> None:
    jobs = Jobs(tmp_path)
    await jobs.run("a")
    pointer = await jobs.pointer()
    await jobs.files.fetch(pointer)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TamperedError, match=f"record of rubric writer {V1} is no SHA-256"):
        await jobs.files.fetch(pointer.model_copy(update={"digest": digest}))
    assert sorted(tmp_path.rglob("*")) == before


async def test_a_folder_in_place_of_a_file_and_a_file_in_place_of_the_folder_are_set_aside(
    tmp_path: Path,
) -> None:
    jobs = Jobs(tmp_path)
    await jobs.run("a")
    pointer = await jobs.pointer()
    copy = await jobs.files.fetch(pointer)
    for name in ("model.safetensors", "manifest.json"):
        (copy / name).unlink()
        (copy / name).mkdir()
        assert (await jobs.files.fetch(pointer) / name).is_file()
    copy.rename(tmp_path / "elsewhere")
    copy.write_text("no folder")
    assert (await jobs.files.fetch(pointer)).is_dir()
    assert len(list(copy.parent.glob(".tampered-*"))) == 3


async def test_several_processes_fetch_one_writer_at_once(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    await jobs.run("a")
    pointer = await jobs.pointer()
    others = [WriterFiles(jobs.world.ctx.objects, jobs.world.settings) for _ in range(6)]
    folders = await asyncio.gather(*(one.fetch(pointer) for one in others))
    assert set(folders) == {jobs.files.folder / pointer.digest}
    for one in others[:3]:  # a damaged copy, which all of them see
        (folders[0] / "writer.json").write_text("{}")
        await asyncio.gather(*(other.fetch(pointer) for other in (one, *others[3:])))
    names = {path.name for path in jobs.files.folder.iterdir() if not path.name.startswith(".tampered-")}
    assert names == {pointer.digest}


async def test_files_that_no_reader_would_take_become_no_version(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    await jobs.run("a")
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "writer.json").write_text("{}")
    (folder / "weights.bin").write_bytes(b"pickle")
    with pytest.raises(TamperedError, match="is neither safetensors nor JSON"):
        await jobs.files.store(folder, "odd", 1)
    assert await jobs.world.ctx.objects.list("rubrics/odd") == []


async def test_another_manifest_in_the_store_is_refused_even_with_the_same_files(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    await jobs.run("a")
    objects, key = jobs.world.ctx.objects, "rubrics/a/1/manifest.json"
    changed = {**json.loads(await objects.get(key)), "job_id": "another"}
    await objects.put(key, json.dumps(changed).encode())
    with pytest.raises(TamperedError, match="is not the one that was committed"):
        await jobs.files.fetch(await jobs.pointer())


async def test_whole_files_of_another_writer_are_refused(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    await jobs.run("a")
    await jobs.run("b")
    one, other = [await jobs.files.fetch(await jobs.writers.version(name)) for name in (V1, V2)]
    shutil.rmtree(one)
    shutil.copytree(other, one)  # with its own manifest, which is right
    weights = (await jobs.files.fetch(await jobs.writers.version(V1))) / "model.safetensors"
    assert weights.read_bytes() != (other / "model.safetensors").read_bytes()
    wrong = (await jobs.pointer()).model_copy(update={"digest": "f" * 64})
    with pytest.raises(TamperedError, match="ffffffffffff is recorded"):
        await jobs.files.fetch(wrong)
    assert not (jobs.files.folder / wrong.digest).exists()
