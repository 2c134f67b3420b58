"""Memory of this machine."""

from __future__ import annotations

import os
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")


def free_memory() -> int:
    """Returns the bytes that a process can allocate without swapping (Linux ``MemAvailable``), at most what
    the limit of its control group leaves."""
    try:
        with open("/proc/meminfo") as lines:
            free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(free, _left_in_group(free))


def _left_in_group(otherwise: int) -> int:
    """Returns what a container's limit leaves; file caches count as free, because the kernel drops them."""
    try:
        limit = int((_GROUP / "memory.max").read_text())
        used = int((_GROUP / "memory.current").read_text())
        facts = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return otherwise  # no group, or no limit ("max")
    return max(0, limit - used + int(facts.get("inactive_file", 0)))
