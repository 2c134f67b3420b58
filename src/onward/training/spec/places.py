"""Confinement of paths that come in messages: a file is read only if it really is under a configured root.

The path that the file system resolves decides, so that neither ``..`` nor a symbolic link leads out.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Sequence
from pathlib import Path

from onward.errors import TrainingError

SHOWN = 80


def confined(given: str, roots: Sequence[str | Path], *, field: str, setting: str) -> Path:
    """Returns the real path of an existing file or folder under one of ``roots``; a relative one is looked up
    in each root. Raises TrainingError("DATA") for any other."""
    shown = given[:SHOWN]
    if not roots:
        raise TrainingError(
            "DATA", f"{field} names {shown!r}, and {setting} lists no folder: the operator adds one there."
        )
    if "://" in given or "\0" in given or given.startswith("~"):
        raise TrainingError(
            "DATA", f"{field} is {shown!r}: give the path of a file or folder under {setting}, no address."
        )
    inside = False
    for root in roots:
        home = Path(root).resolve()
        try:
            place = (home / given).resolve()
            if not is_within(place, home):
                continue
            inside = True
            if place.exists():
                return place
        except (OSError, RuntimeError, ValueError):  # too long, links in a circle, no text of file systems
            inside = True
    why = "does not exist" if inside else "is outside"
    raise TrainingError(
        "DATA", f"{field} is {shown!r}, which {why}: give a file or folder under those of {setting}."
    )


def is_within(place: Path, root: Path) -> bool:
    """Returns whether a resolved path is ``root`` or below it."""
    return place == root or root in place.parents


def read_confined(place: Path, roots: Sequence[str | Path]) -> bytes:
    """Reads the file that was found at the resolved path ``place``. Raises OSError if a part of the path has
    become a link since, and for what is not a regular file."""
    home = next(home for root in roots if is_within(place, home := Path(root).resolve()))
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        *between, name = place.relative_to(home).parts or ("",)
        for part in between:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        found = os.open(name or home, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)
    with open(found, "rb") as file:
        if not stat.S_ISREG(os.fstat(found).st_mode):  # a pipe would be waited for
            raise OSError(errno.EINVAL, "it is no regular file")
        return file.read()


def is_below(address: str, store: str) -> bool:
    """Returns whether an address or path is that of ``store`` or below it, after ``..`` is applied."""
    place = store.rstrip("/")
    scheme, mark, rest = address.rpartition("://")
    whole = f"{scheme}{mark}{posixpath.normpath(rest)}" if rest else address
    return whole == place or whole.startswith(place + "/")
