"""What may be loaded is what its manifest says, to the byte; one attempt per job counts."""

import hashlib
import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from onward.errors import NotFoundError, TamperedError
from onward.training import checkpoints
from onward.warehouse import Objects


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "checkpoint"
    out.mkdir()
    save_file({"a": np.ones((2, 3), np.float32)}, out / "adapter_model.safetensors")
    (out / "adapter_config.json").write_text('{"r": 2}')
    checkpoints.write_manifest(out, job_id="job-1", epoch=1, base_digest="base")
    return out


def test_digest_is_the_sum_over_sorted_names_and_sums(folder: Path) -> None:
    sums = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("adapter_config.json", "adapter_model.safetensors")
    }
    by_hand = hashlib.sha256(
        f"adapter_config.json:{sums['adapter_config.json']}\n"
        f"adapter_model.safetensors:{sums['adapter_model.safetensors']}\n".encode()
    ).hexdigest()
    assert checkpoints.verify(folder).adapter_digest == by_hand


def test_one_flipped_bit_is_refused(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(body)
    with pytest.raises(TamperedError, match="does not match its manifest"):
        checkpoints.verify(folder)


def test_what_a_killed_attempt_left_does_not_enter_the_manifest(folder: Path) -> None:
    (folder / ".manifest.json.0a1b2c3d.tmp").write_text("{")
    (folder / ".adapter_model.safetensors.0a1b2c3d.tmp").write_bytes(b"half")
    made = checkpoints.write_manifest(folder, job_id="job-1", epoch=2, base_digest="base")
    assert set(made.files) == {"adapter_config.json", "adapter_model.safetensors"}
    assert checkpoints.verify(folder) == made


def test_an_extra_file_is_refused(folder: Path) -> None:
    (folder / "more.json").write_text("{}")
    with pytest.raises(TamperedError, match="its manifest lists"):
        checkpoints.verify(folder)


def test_a_missing_manifest_is_refused(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    with pytest.raises(TamperedError, match="no manifest"):
        checkpoints.verify(folder)


def test_a_pickle_under_a_harmless_name_is_refused_by_content(folder: Path) -> None:
    (folder / "adapter_model.safetensors").write_bytes(pickle.dumps({"a": [1.0] * 100}))
    checkpoints.write_manifest(folder, job_id="job-1", epoch=1, base_digest="base")
    with pytest.raises(TamperedError, match="not safetensors"):
        checkpoints.verify(folder)


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}}, "lies about its size"),
        (
            {
                "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            },
            "overlap",
        ),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, "longer or shorter"),
        ({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}, "not described"),
        ({"a": {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]}}, "not described"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": 4}}, "not described"),
        ({"a": [1]}, "no table"),
        ([1], "no table"),
    ],
)
def test_a_lying_header_is_refused_before_any_library_reads_it(
    folder: Path, header: object, sentence: str
) -> None:
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 4)
    checkpoints.write_manifest(folder, job_id="job-1", epoch=1, base_digest="base")
    with pytest.raises(TamperedError, match=sentence):
        checkpoints.verify(folder)


async def test_the_first_commit_wins_and_a_late_attempt_learns_it(folder: Path, tmp_path: Path) -> None:
    objects = Objects.open(tmp_path / "objects")
    manifest = checkpoints.verify(folder)
    body = (folder / "manifest.json").read_bytes()
    prefix = await checkpoints.upload(objects, folder, job_id="job-1", epoch=1)
    first = await checkpoints.commit(objects, body, manifest, prefix)
    late = manifest.model_copy(update={"epoch": 2})
    second = await checkpoints.commit(objects, b"other", late, "checkpoints/job-1/2")
    assert first.epoch == 1
    assert second == first
    fetched = await checkpoints.fetch(
        objects, first.object_prefix, tmp_path / "fetched", manifest_sha256=first.manifest_sha256
    )
    assert fetched == manifest


async def test_a_manifest_that_is_not_the_committed_one_is_refused(folder: Path, tmp_path: Path) -> None:
    """Another manifest over the same files is consistent in itself: only the commit tells."""
    objects = Objects.open(tmp_path / "objects")
    manifest = checkpoints.verify(folder)
    body = (folder / "manifest.json").read_bytes()
    prefix = await checkpoints.upload(objects, folder, job_id="job-1", epoch=1)
    commit = await checkpoints.commit(objects, body, manifest, prefix)
    changed = manifest.model_copy(update={"base_digest": "another base"})
    await objects.put(f"{prefix}/manifest.json", changed.model_dump_json().encode())
    assert (await checkpoints.fetch(objects, prefix, tmp_path / "unasked")) == changed
    with pytest.raises(TamperedError, match="not the one that was committed"):
        await checkpoints.fetch(objects, prefix, tmp_path / "asked", manifest_sha256=commit.manifest_sha256)
    assert not (tmp_path / "asked").exists()


async def test_a_stored_manifest_is_read_only_with_all_its_files_and_as_committed(
    folder: Path, tmp_path: Path
) -> None:
    objects = Objects.open(tmp_path / "objects")
    with pytest.raises(NotFoundError, match=r"checkpoints/job-1/1/manifest\.json does not exist"):
        await checkpoints.read_manifest(objects, "checkpoints/job-1/1")
    prefix = await checkpoints.upload(objects, folder, job_id="job-1", epoch=1)
    committed = hashlib.sha256((folder / checkpoints.MANIFEST).read_bytes()).hexdigest()
    manifest = await checkpoints.read_manifest(objects, prefix, manifest_sha256=committed)
    assert manifest == checkpoints.verify(folder)
    checkpoints.refuse_other_base(manifest, "base")
    with pytest.raises(TamperedError, match="trained on base base, but other is served"):
        checkpoints.refuse_other_base(manifest, "other")
    with pytest.raises(TamperedError, match="not the one that was committed"):
        await checkpoints.read_manifest(objects, prefix, manifest_sha256="0" * 64)
    await objects.delete(f"{prefix}/adapter_model.safetensors")
    with pytest.raises(NotFoundError, match="safetensors of checkpoints/job-1/1 is not in"):
        await checkpoints.read_manifest(objects, prefix)
    await objects.put(f"{prefix}/{checkpoints.MANIFEST}", b"{")
    with pytest.raises(TamperedError, match="is not readable"):
        await checkpoints.read_manifest(objects, prefix)
