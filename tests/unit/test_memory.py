"""Memory of a process's control group, in the file formats of Linux (cgroup-v1/memory.rst, cgroup-v2.rst)."""

from pathlib import Path

import pytest

from onward import memory
from onward.memory import ControlGroup, KillWatch, free_memory

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a machine with 1,000 MiB free, whose kernel has killed 5 processes."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {1000 * 1024} kB\n")
    (tmp_path / "proc" / "vmstat").write_text("nr_free_pages 7\noom_kill 5\noom_kill_other 9\n")
    monkeypatch.setattr(memory, "PROCESSES", tmp_path / "proc")
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "groups")
    return tmp_path


def _group(
    machine: Path, version: int, path: str = "/", *, seen_as: str | None = None, process: str = "7"
) -> Path:
    """Puts a process into a group. ``seen_as``: the group's path in this container, where it differs."""
    (machine / "proc" / process).mkdir(exist_ok=True)
    line = f"4:cpu,memory:{path}\n1:name=systemd:/x\n0::/\n" if version == 1 else f"0::{path}\n"
    (machine / "proc" / process / "cgroup").write_text(line)
    folder = machine / "groups" / ("memory" if version == 1 else "") / (seen_as or path).lstrip("/")
    folder.mkdir(parents=True)
    return folder


def _limit(folder: Path, version: int, limit: str, used: int, cache: int) -> None:
    names = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")}
    most, taken, line = names.get(version, ("memory.max", "memory.current", "inactive_file"))
    (folder / most).write_text(f"{limit}\n")
    (folder / taken).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{line} {cache}\n")


def _killed(folder: Path, version: int, count: int) -> None:
    if version == 1:
        (folder / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n")
    else:
        (folder / "memory.events").write_text(f"low 0\noom 3\noom_kill {count}\noom_group_kill 8\n")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seen_as", [None, "/"])
def test_the_limit_of_a_container_leaves_what_it_has_not_used_and_its_file_cache(
    machine: Path, version: int, seen_as: str | None
) -> None:
    folder = _group(machine, version, "/docker/f00", seen_as=seen_as, process="self")
    _limit(folder, version, str(300 * MIB), 200 * MIB, 50 * MIB)
    assert free_memory() == 150 * MIB


@pytest.mark.parametrize(("version", "unlimited"), [(1, "9223372036854771712"), (2, "max")])
def test_without_a_limit_the_machines_memory_is_free(machine: Path, version: int, unlimited: str) -> None:
    _limit(_group(machine, version, "/a", process="self"), version, unlimited, 9000 * MIB, 0)
    assert free_memory() == 1000 * MIB


def test_without_control_groups_the_machines_memory_is_free(machine: Path) -> None:
    assert ControlGroup.of() is None
    assert free_memory() == 1000 * MIB


@pytest.mark.parametrize("version", [1, 2])
def test_a_kill_in_another_container_is_none_of_ours(machine: Path, version: int) -> None:
    ours = _group(machine, version, "/jobs/one")
    _killed(ours, version, 2)
    watch = KillWatch(7)
    (machine / "proc" / "vmstat").write_text("oom_kill 6\n")
    assert not watch.has_seen_one
    (machine / "proc" / "7" / "cgroup").unlink()  # the process has ended
    _killed(ours, version, 3)
    assert watch.has_seen_one


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_without_a_count_leaves_the_count_of_the_machine(machine: Path, version: int) -> None:
    """The root group of version 2 has no events; kernels before 4.13 count no kills in version 1."""
    folder = _group(machine, version)
    if version == 1:
        (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\n")
    watch = KillWatch(7)
    assert watch.can_count and not watch.has_seen_one
    (machine / "proc" / "vmstat").write_text("oom_kill 6\n")
    assert watch.has_seen_one


def test_a_kernel_that_counts_no_kills_is_no_error(machine: Path) -> None:
    (machine / "proc" / "vmstat").unlink()
    watch = KillWatch(7)
    assert not watch.can_count and not watch.has_seen_one
