"""Room on the disk of the data folder.

A call on a mount that hangs never returns, so each such call is shared: one thread waits, not one for each
caller.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Generic, TypeVar

from onward.errors import ConfigError

FOLDERS = ("nats", "chdb", "objects", "outbox", "run")
"""Parts of the data folder that may be mount points of their own."""
LEAST_ROOM = 64 << 20
"""Bytes that must be free; on a disk below 1.28 GB it is 5 % of the disk."""
T = TypeVar("T")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True)
class Room:
    """Space of one file system for a process without privileges, in bytes."""

    free: int
    total: int

    @property
    def used(self) -> float:
        """Used share, 0 to 1, as ``df`` prints it."""
        return 1.0 - self.free / self.total if self.total else 0.0

    @property
    def is_full(self) -> bool:
        """True if so little is free that writes fail, or soon will."""
        return self.free < min(LEAST_ROOM, 0.05 * self.total)


class SharedCall(Generic[T]):
    """Runs a blocking call in a thread, one at a time: callers that come meanwhile get the same answer.

    The thread ends with the process, which a mount that hangs thus does not keep from stopping. A caller sets
    its own deadline; the call goes on.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._under_way: Future[T] | None = None

    async def __call__(self) -> T:
        if self._under_way is None or self._under_way.done():
            self._under_way = Future()
            self._under_way.set_running_or_notify_cancel()  # no caller can cancel it for the others
            Thread(target=self._run, args=(self._under_way,), daemon=True, name="onward-disk").start()
        return await asyncio.wrap_future(self._under_way)

    def _run(self, answer: Future[T]) -> None:
        try:
            answer.set_result(self._call())
        except BaseException as error:
            answer.set_exception(error)


_rooms: dict[Path, SharedCall[Room]] = {}


async def room_now(data_dir: Path) -> Room:
    """Returns ``least_room`` without blocking the loop; it never ends on a mount that hangs."""
    if data_dir not in _rooms:
        _rooms[data_dir] = SharedCall(partial(least_room, data_dir))
    return await _rooms[data_dir]()


def least_room(data_dir: Path) -> Room:
    """Returns the room of the fullest file system below ``data_dir``. Raises OSError."""
    found: dict[int, Room] = {}
    for folder in (data_dir, *(data_dir / name for name in FOLDERS)):
        try:
            device, facts = folder.stat().st_dev, os.statvfs(folder)
        except FileNotFoundError:
            continue
        used = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
        free = facts.f_bavail * facts.f_frsize
        found[device] = Room(free, used + free)
    if not found:
        raise FileNotFoundError(f"{data_dir} does not exist: start the service to create it.")
    return max(found.values(), key=lambda room: (room.is_full, room.used))


def refuse_full(data_dir: Path) -> None:
    """Raises ConfigError if nothing could be stored below ``data_dir``, which may not exist yet."""
    folder = data_dir.absolute()
    while not folder.is_dir():
        folder = folder.parent
    room = least_room(folder)
    if room.is_full:
        free = f"{room.free >> 20} MiB are free"
        raise ConfigError(f"The disk of {data_dir} is full ({free}): free some space and start again.")
    try:
        check_writable(folder)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise ConfigError(
                f"{folder} takes no file ({error.strerror}): mend that and start again."
            ) from None


def check_writable(folder: Path) -> None:
    """Writes a small file to ``folder`` and removes it. Raises OSError (no room, a quota, read-only)."""
    path = folder / f".probe.{secrets.token_hex(4)}.tmp"
    try:
        with path.open("xb") as file:
            file.write(b"onward")
    finally:
        path.unlink(missing_ok=True)
