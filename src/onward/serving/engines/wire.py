"""Wire format between the control process and the engine child: JSON documents with a length prefix.

Many calls share one connection; an answer carries the ``id`` of its call, in any order. The socket lies in a
folder that only its owner can enter, so there is no further authentication.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
import struct
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from onward.errors import ConfigError

MAX_FRAME = 16 << 20
VLLM_KEY = "ONWARD_ENGINE_VLLM_KEY"
"""Environment variable with the key of a vLLM server for the child: all users can read a command line."""
_LENGTH = struct.Struct(">I")
_MAX_SOCKET_PATH = 100  # the kernel's limit is 107 bytes


def frame(document: dict[str, Any]) -> bytes:
    body = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Returns the next document; None at the end of the stream or for a frame over the limit."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > MAX_FRAME:
            return None
        return json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def socket_path(run_dir: Path, name: str = "engine") -> Path:
    """Returns ``run_dir/<name>.sock``; if that is too long for a Unix socket, a private folder in the
    temporary directory whose name follows from ``run_dir``. Raises ConfigError if that folder has another
    owner or mode."""
    path = _where(run_dir, name)
    folder = path.parent
    if folder == run_dir.absolute():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) != 0o700 or not stat.S_ISDIR(facts.st_mode):
        raise ConfigError(f"{folder} belongs to somebody else: choose a data_dir with a shorter path.")
    return path


def existing_sockets(run_dir: Path, names: Iterable[str]) -> list[Path]:
    """Returns the sockets that engines of these names made, also those that have died. Raises ConfigError as
    ``socket_path`` does."""
    return [socket_path(run_dir, name) for name in names if _where(run_dir, name).exists()]


def _where(run_dir: Path, name: str) -> Path:
    path = run_dir.absolute() / f"{name}.sock"
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        return path
    short = "onward-" + hashlib.sha256(os.fsencode(path)).hexdigest()[:20]
    return Path(tempfile.gettempdir()) / short / "engine.sock"
