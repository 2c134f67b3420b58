"""Memory of this machine, and of the control group (container) that a process runs in.

Both layouts of Linux control groups are read: version 2, and the ``memory`` controller of version 1.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
PROCESSES = Path("/proc")
_FREE_FROM = 1 << 60
"""Bytes from which a limit of version 1 means that there is none."""


@dataclass(frozen=True)
class ControlGroup:
    """The control group that the memory of a process is charged to."""

    folder: Path
    version: int
    """1 or 2."""

    @classmethod
    def of(cls, process: int | None = None) -> ControlGroup | None:
        """Returns the group of a process by its id (None: this process), or None where there is none."""
        try:
            lines = (PROCESSES / str(process or "self") / "cgroup").read_text().splitlines()
        except OSError:
            return None
        paths = {}
        for line in lines:
            _, controllers, path = line.split(":", 2)
            paths.update(dict.fromkeys(controllers.split(","), path))
        for controller, version, base in (("memory", 1, GROUPS / "memory"), ("", 2, GROUPS)):
            if controller in paths and base.is_dir():
                # A container often sees its own group as the root, under the path that the host uses.
                own = base / paths[controller].lstrip("/")
                return cls(own if own.is_dir() else base, version)
        return None

    def free(self) -> int | None:
        """Returns the bytes that the limit leaves, or None where there is no limit. File caches count as
        free, because the kernel drops them."""
        limit, used, cache = _NAMES[self.version]
        try:
            most = int((self.folder / limit).read_text())
            taken = int((self.folder / used).read_text())
            facts = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            return None  # no such file, or no limit ("max")
        return None if most >= _FREE_FROM else max(0, most - taken + int(facts.get(cache, 0)))

    def kills(self) -> int | None:
        """Returns how many processes of this group the kernel has killed for lack of memory, or None where
        it does not count them."""
        return _count(self.folder / ("memory.oom_control" if self.version == 1 else "memory.events"))


_NAMES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""By version: the files of limit and use, and the line of ``memory.stat`` with the droppable cache."""


class KillWatch:
    """The kernel's count of processes that it killed for lack of memory, from now on.

    The group of ``process`` is watched. Where the kernel counts no group, the whole machine is: a kill in
    another container then counts as well.
    """

    def __init__(self, process: int) -> None:
        self._group = ControlGroup.of(process)
        self._before = self._kills()

    @property
    def has_seen_one(self) -> bool:
        """True: the kernel has killed a process since this watch began."""
        after = self._kills()
        return self._before is not None and after is not None and after > self._before

    @property
    def can_count(self) -> bool:
        """False: this kernel counts no kills at all."""
        return self._before is not None

    def _kills(self) -> int | None:
        found = self._group.kills() if self._group else None
        return _count(PROCESSES / "vmstat") if found is None else found


def free_memory() -> int:
    """Returns the bytes that a process can allocate without swapping (Linux ``MemAvailable``), at most what
    the limit of its control group leaves."""
    try:
        with open(PROCESSES / "meminfo") as lines:
            free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    group = ControlGroup.of()
    left = group.free() if group else None
    return free if left is None else min(free, left)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether ``error`` means that no memory is left, on a GPU or in main memory."""
    torch = sys.modules.get("torch")  # not loaded: the error is not its own
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    # torch's allocator of main memory has no class of its own for it
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _count(file: Path) -> int | None:
    """Returns the number of a file's ``oom_kill`` line, or None."""
    try:
        found = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) if found else None
