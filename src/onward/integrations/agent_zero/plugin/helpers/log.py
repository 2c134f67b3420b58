"""The worker's log: the file ``worker.log`` and the one before it, each of bounded size."""

from __future__ import annotations

import os
from pathlib import Path

LIMIT = 4 << 20
"""Bytes after which the file becomes ``worker.log.1``, in place of the last one."""


def path_of(data: Path) -> Path:
    return data / "worker.log"


def rotate(data: Path) -> bool:
    """Renames a log that is above the limit; returns whether it was. Raises OSError."""
    path = path_of(data)
    if not path.exists() or path.stat().st_size <= LIMIT:
        return False
    path.replace(path.with_name(f"{path.name}.1"))
    return True


def follow(data: Path, outputs: tuple[int, ...] = (1, 2)) -> None:
    """Rotates the log that this process writes by ``outputs``, and lets them write to the new file. Output
    that goes elsewhere is left alone; so is the log on a disk that takes no new file."""
    try:
        own, there = os.fstat(outputs[-1]), path_of(data).stat()
        if (own.st_dev, own.st_ino) != (there.st_dev, there.st_ino) or not rotate(data):
            return
        made = os.open(path_of(data), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        return
    for output in outputs:
        os.dup2(made, output)
    os.close(made)
