import asyncio
import errno
import os
from pathlib import Path

import pytest

from onward.errors import ConfigError, ConflictError, NotFoundError, ObjectError, RefusedError
from onward.warehouse import Objects
from onward.warehouse.objects import check_key


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects.open(tmp_path / "store")


async def test_put_get_replace(objects: Objects, tmp_path: Path):
    await objects.put("a/b/c.bin", b"one")
    await objects.put("a/b/c.bin", b"two")
    assert await objects.get("a/b/c.bin") == b"two"
    await objects.get_file("a/b/c.bin", tmp_path / "out" / "c")
    assert (tmp_path / "out" / "c").read_bytes() == b"two"
    assert await objects.exists("a/b/c.bin")
    assert not await objects.exists("a/b")
    with pytest.raises(NotFoundError, match="a/b"):
        await objects.get("a/b")
    with pytest.raises(NotFoundError):
        await objects.get("a/b/c.bin/d")


@pytest.mark.parametrize(
    ("code", "of_reads", "of_writes"),
    [
        (errno.EACCES, True, True),
        (errno.EIO, True, False),  # one object cannot be read; a disk that takes nothing
        (errno.ENOSPC, False, False),
        (errno.ESTALE, False, False),
        (errno.ENOTCONN, False, False),
        (errno.EMFILE, False, False),
    ],
)
async def test_a_refusal_of_one_object_is_told_from_a_store_that_is_away(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, code: int, of_reads: bool, of_writes: bool
):
    await objects.put("a", b"one")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "open", refuse)
    for refused, call in ((of_reads, objects.get("a")), (of_writes, objects.put("a", b"two"))):
        with pytest.raises(ObjectError) as raised:
            await call
        assert isinstance(raised.value, RefusedError) is refused


async def test_put_a_file_of_several_blocks(objects: Objects, tmp_path: Path):
    data = os.urandom((2 << 20) + 17)
    (tmp_path / "in").write_bytes(data)
    await objects.put("big", tmp_path / "in")
    assert await objects.get("big") == data


async def test_of_many_create_only_writers_exactly_one_wins(objects: Objects):
    async def one(i: int) -> int | None:
        try:
            await objects.put("jobs/j1/COMMIT", f"epoch {i}".encode(), create_only=True)
        except ConflictError:
            return None
        return i

    winners = [i for i in await asyncio.gather(*(one(i) for i in range(20))) if i is not None]
    assert len(winners) == 1
    assert await objects.get("jobs/j1/COMMIT") == f"epoch {winners[0]}".encode()
    assert await objects.list("jobs") == ["jobs/j1/COMMIT"]


async def test_list_matches_whole_segments_and_hides_drafts(objects: Objects, tmp_path: Path):
    for key in ("jobs/1/a", "jobs/12/a", "jobs/1/b/c", "x"):
        await objects.put(key, b"")
    (tmp_path / "store" / "jobs" / "1" / ".draft-0011").write_bytes(b"half")
    assert await objects.list("jobs/1") == ["jobs/1/a", "jobs/1/b/c"]
    assert await objects.list("jobs/1/") == ["jobs/1/a", "jobs/1/b/c"]
    assert await objects.list() == ["jobs/1/a", "jobs/1/b/c", "jobs/12/a", "x"]
    assert await objects.list("none") == []
    assert await objects.list("x") == ["x"]


async def test_delete_twice(objects: Objects):
    await objects.put("k", b"1")
    await objects.delete("k")
    await objects.delete("k")
    assert not await objects.exists("k")


async def test_an_error_of_the_disk_is_an_object_error(objects: Objects, tmp_path: Path):
    """Whoever waits for a store that is away must not take it for a fault of what it was about to do."""
    loop = tmp_path / "store" / "d"
    loop.symlink_to(loop)
    for work in (objects.get, objects.exists, objects.delete):
        with pytest.raises(ObjectError, match="symbolic links") as caught:
            await work("d/k")
        assert not isinstance(caught.value, NotFoundError)
    with pytest.raises(ObjectError, match="cannot be written"):
        await objects.put("d/k", b"")


async def test_a_folder_is_no_object(objects: Objects):
    await objects.put("a/b", b"1")
    await objects.delete("a")
    assert await objects.get("a/b") == b"1"


async def test_a_failed_write_leaves_the_old_object_and_no_draft(
    objects: Objects, tmp_path: Path, monkeypatch
):
    await objects.put("k", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ObjectError, match="No space left"):
        await objects.put("k", b"new")
    monkeypatch.undo()
    assert await objects.get("k") == b"old"
    assert [p.name for p in (tmp_path / "store").iterdir()] == ["k"]


async def test_data_is_synced_before_it_appears_and_the_folder_after(objects: Objects, monkeypatch):
    events: list[str] = []
    real_fsync, real_link, real_replace = os.fsync, os.link, Path.replace

    def fsync(handle: int) -> None:
        events.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        real_fsync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", lambda a, b: (events.append("appear"), real_link(a, b)))
    monkeypatch.setattr(Path, "replace", lambda a, b: (events.append("appear"), real_replace(a, b))[1])
    await objects.put("k", b"1", create_only=True)
    await objects.put("k", b"2")
    assert events == ["file", "appear", "folder"] * 2


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/etc/passwd",
        "a//b",
        "../x",
        "a/../b",
        "a/.",
        "a/",
        "a b",
        "a\\b",
        "a\0b",
        "é",
        "a/.draft-1",
        "x" * 901,
    ],
)
async def test_keys_never_leave_the_store(objects: Objects, key: str):
    with pytest.raises(ObjectError, match="not usable"):
        await objects.put(key, b"")


def test_usual_keys_pass():
    for key in (
        "checkpoints/job-1/3/adapter_model.safetensors",
        "sha256:ab12",
        "day=2026-01-01/part.parquet",
    ):
        assert check_key(key) == key


def test_unknown_stores_are_one_sentence(tmp_path: Path):
    with pytest.raises(ConfigError, match="ftp://host/x"):
        Objects.open("ftp://host/x")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        Objects.open(tmp_path / "file" / "sub")
