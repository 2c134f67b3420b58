"""Files and folders: durable replacement, secrets, locks, and the checks of paths that a user names.

A process may die at any line. A file written here is then the old one or the new one, whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from onward.errors import ConfigError

# What the owner alone may read.

OWNER_ALONE = 0o077
"""Umask of every process that writes into a data folder. It is also the mask of modes that are too wide."""
FOLDERS = ("run", "nats", "chdb", "objects", "logs", "models", "jobs", "outbox", "warm-up", "sabotage")
"""Names of the folders that Onward makes in a data folder."""


def keep_private(folder: Path) -> int:
    """Makes what this process and its children write readable by their owner alone, and closes ``folder``,
    which is created if it is missing.

    A folder that others may enter is closed first. Then everything in the ``FOLDERS`` of it loses the modes
    for others, once. A folder that is shared by design (``/tmp``) stays as it is. Returns the number of modes
    that were changed. Raises ConfigError if the folder cannot be made, OSError if a mode cannot be changed.
    """
    os.umask(OWNER_ALONE)
    make_folder(folder, 0o700)
    folder = folder.resolve()
    if folder.stat().st_mode & stat.S_ISVTX or not _narrow(folder):
        return 0
    return 1 + sum(narrow_tree(folder / name) for name in FOLDERS)


def keep_private_within(folder: Path) -> None:
    """Does what ``keep_private`` does to the umask if ``folder``, which need not exist, lies in a folder that
    is closed to others, such as a data folder."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.stat().st_mode & OWNER_ALONE:
        os.umask(OWNER_ALONE)


def narrow_tree(folder: Path) -> int:
    """Removes the modes for others from ``folder`` and everything in it. Links stay as they are. Returns the
    number of modes that were changed. Raises OSError."""
    return sum(map(_narrow, (folder, *folder.rglob("*"))))


def _narrow(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode) or not mode & OWNER_ALONE:
            return False
        path.chmod(stat.S_IMODE(mode) & ~OWNER_ALONE)
    except FileNotFoundError:
        return False
    return True


# Durable replacement.


def write_whole(path: Path, data: bytes, mode: int = 0o666, *, once: bool = False) -> None:
    """Writes ``data`` to ``path``, in a folder that exists. ``mode`` is that of the new file, less the umask.
    With ``once`` a file that another process created first stays. Raises OSError."""
    with open_whole(path, mode, once=once) as out:
        out.write(data)


@contextmanager
def open_whole(path: Path, mode: int = 0o666, *, once: bool = False) -> Iterator[BinaryIO]:
    """Opens a file to write. It appears at ``path`` when the block ends, but not if the block raises."""
    with replacing(path, once=once) as partial:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as out:
            yield out


@contextmanager
def replacing(path: Path, *, once: bool = False) -> Iterator[Path]:
    """Yields a name beside ``path`` for a library that writes files by itself.

    What the block wrote there is synced and moved to ``path`` when the block ends; it is removed if the block
    raises, or, with ``once``, if ``path`` exists by then.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield partial
        _sync(partial, os.O_RDONLY)
        if once:
            with contextlib.suppress(FileExistsError):
                os.link(partial, path)
        else:
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})
_ROOM = 32 << 20
"""Free bytes below which a disk counts as full."""


def read_json(path: Path) -> Any:
    """Returns the JSON document in ``path``; None if there is none that can be read."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def is_disk_failure(error: BaseException, folder: Path) -> bool:
    """Returns whether the disk of ``folder`` is the cause of ``error``: it is full, read-only or unreadable.

    Libraries that write files by themselves raise errors without an error number; then a disk without room is
    taken as the cause.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _DISK_ERRORS
    try:
        return shutil.disk_usage(folder).free < _ROOM
    except OSError:
        return True


def remove_drafts(folder: Path, name: str = "*") -> None:
    """Removes what processes that died in ``open_whole`` or ``replacing`` left for ``name`` in ``folder``.

    Invariants: no other process may be writing there.
    """
    for draft in folder.glob(f".{name}.*.tmp"):
        draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Makes the names in ``folder`` durable."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Secrets and locks.


def write_secret_once(path: Path, text: str) -> None:
    """Writes ``text`` to ``path`` (mode 0600, its folder 0700). If another process created the file first,
    its text stays. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, text.encode(), 0o600, once=True)


SECRET_CHARACTERS = 16
"""Least length of a generated key or token: a shorter one is what a damaged file has left."""


def read_secret(path: Path, advice: str, *, least: int = SECRET_CHARACTERS) -> str:
    """Reads a key or token. Raises ConfigError, with ``advice``, if the file is damaged: it is empty, too
    short, or no text. Raises FileNotFoundError."""
    try:
        text = path.read_bytes().decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): {advice}.") from None
    if len(text) < least or not text.isprintable():
        raise ConfigError(f"{path} is damaged ({len(text)} usable characters): {advice}.")
    return text


@contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Holds the lock file ``path`` for the block.

    The kernel frees a lock however its holder ends, so a lock that can be acquired proves that the previous
    holder is gone. Raises ConfigError: with the sentence ``busy`` if another process holds it, and if the
    file cannot be created.
    """
    make_folder(path.parent, 0o700)
    with ExitStack() as held:
        try:
            file = held.enter_context(open(path, "w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(busy) from None
        except OSError as error:
            raise ConfigError(
                f"The lock file {path} cannot be had ({error.strerror}): give a folder that may be written."
            ) from error
        yield


@contextmanager
def locked_folder(folder: Path, busy: str) -> Iterator[None]:
    """Does what ``locked`` does with a folder that exists itself, and leaves no file in it. Raises
    ConfigError with the sentence ``busy`` if another process holds it, OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(busy) from None
        yield
    finally:
        os.close(descriptor)


# Paths that a user names: refused before any work is spent.


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Creates ``path`` and its parents; ``mode`` is that of the last folder, less the umask. Raises
    ConfigError if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=mode)
    except OSError as error:
        raise ConfigError(
            f"The folder {path} cannot be made ({error.strerror}): give one that may be written to."
        ) from error


def check_file(path: Path) -> None:
    """Creates the folder of a file that is written later, and checks that it can be written.

    Leaves no file behind. Raises ConfigError if it cannot be written.
    """
    make_folder(path.parent)
    try:
        new = not path.exists()
        path.open("ab").close()
    except OSError as error:
        raise ConfigError(
            f"The file {path} cannot be written ({error.strerror}): give one that may be."
        ) from error
    if new:
        path.unlink()
