"""Modes of files and folders, whatever the umask that a process is started with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from onward.files import keep_private, keep_private_within, narrow_tree, write_whole


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """The umask of a careless service manager."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_new_data_folder_and_what_is_written_later_is_for_the_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert keep_private(folder) == 0, "nothing was open to others"
    (folder / "run").mkdir()
    write_whole(folder / "run" / "state", b"")
    (folder / "run" / "log").touch()
    assert [mode(path) for path in (folder, *sorted(folder.rglob("*")))] == [0o700, 0o700, 0o600, 0o600]


def test_an_existing_folder_that_others_may_enter_is_closed_with_all_that_onward_keeps_in_it(
    tmp_path: Path,
) -> None:
    folder, other = tmp_path / "data", tmp_path / "other"
    for path in (folder / "chdb" / "store" / "part.bin", folder / "notes.txt", other):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / "chdb" / "link").symlink_to(other)
    folder.chmod(0o2775)
    assert keep_private(folder) == 4
    assert mode(folder) == 0o2700, "the mark for groups stays"
    assert mode(folder / "chdb" / "store") == 0o700
    assert mode(folder / "chdb" / "store" / "part.bin") == 0o600
    assert mode(folder / "notes.txt") == 0o666, "a file that Onward did not make"
    assert mode(other) == 0o666
    assert keep_private(folder) == 0


def test_a_folder_that_is_shared_by_design_stays_open(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    assert keep_private(tmp_path) == 0
    assert mode(tmp_path) == 0o1777


@pytest.mark.parametrize(("closed", "written"), [(0o700, 0o600), (0o755, 0o666)])
def test_a_run_folder_is_as_closed_as_the_folder_that_it_lies_in(
    tmp_path: Path, closed: int, written: int
) -> None:
    tmp_path.chmod(closed)
    keep_private_within(tmp_path / "runs" / "new")
    (tmp_path / "file").touch()
    assert mode(tmp_path / "file") == written


def test_a_tree_of_copies_is_narrowed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").touch()
    assert narrow_tree(tmp_path / "a") == 2
    assert narrow_tree(tmp_path / "a") == 0
    assert narrow_tree(tmp_path / "missing") == 0
