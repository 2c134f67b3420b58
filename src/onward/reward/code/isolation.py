"""Closes files and network to the analysis child, by means of the kernel.

Both can only be given up, never taken back, and hold for all forks. Files are closed with Landlock (Linux
5.13 or newer), which needs no privilege.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_NO_NEW_PRIVS = 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Numbers of Landlock's system calls, the same on every processor."""
_ASK_VERSION = 1
_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_READ = _READ_FILE | _READ_DIR
_RIGHTS = ((1, 1 << 13), (2, 1 << 14), (3, 1 << 15), (5, 1 << 16))
"""Version of Landlock → end of the rights on files that it knows; the last entry that fits counts."""
_CHANGE = (1 << 15) - 1 - _EXECUTE
"""Everything in a folder of one's own, except running programs."""
_NO_TCP = 3
_NO_SIGNALS = 3


def close_files(readable: Iterable[Path], own: Path | None, *, least: int = 1, packages: bool = True) -> bool:
    """Keeps this process to reading ``readable`` and Python's own files, and to the folder ``own``, if any.
    ``packages``: False also closes the packages that are installed in Python's own folders.

    Called while the process has one thread. With a newer kernel it also refuses TCP, sockets without a file,
    and signals to other processes. Returns False, with nothing changed, where the kernel has no Landlock of
    version ``least``.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION)
    if version < least:
        return False
    known = [end for least, end in _RIGHTS if version >= least][-1] - 1
    fields = [known, *([_NO_TCP] if version >= 4 else []), *([_NO_SIGNALS] if version >= 6 else [])]
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    try:
        for path in (*readable, *(_python() if packages else _without_packages())):
            _allow(libc, ruleset, path, _READ)
        _allow(libc, ruleset, _library(), _READ_DIR)  # an import lists the folder
        if own is not None:
            _allow(libc, ruleset, own, _CHANGE & known)
        _allow(libc, ruleset, Path(os.devnull), _READ_FILE | _WRITE_FILE)
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            return False
        return libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _python() -> Iterable[Path]:
    """Python's library, and the shared libraries that its modules load."""
    yield from (_library(), Path(sys.base_prefix, "lib"))
    yield from map(Path, ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache"))


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _without_packages() -> Iterable[Path]:
    """The same, one entry of a folder after the other, so that folders of packages can be left out."""
    library = _library()
    for folder in _python():
        if not folder.is_dir():
            yield folder
            continue
        left_out = ("site-packages", "dist-packages") if folder == library else ("python", "pypy")
        yield from (entry for entry in folder.iterdir() if not entry.name.startswith(left_out))


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    """Adds ``path``, with all below it, to what ``ruleset`` allows. Skips a path that does not exist."""
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not path.is_dir():
            rights &= _READ_FILE | _WRITE_FILE
        libc.syscall(_ADD_RULE, ruleset, _BENEATH, struct.pack("=Qi", rights, opened), 0)
    finally:
        os.close(opened)


def leave_network() -> bool:
    """Enters a new network namespace with no interface up. Returns False where the kernel refuses."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if libc.unshare(_CLONE_NEWNET) == 0:
        return True
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        try:
            Path(f"/proc/self/{name}").write_text(text)
        except OSError:
            break
    return True
