"""A file that holds one secret: created once, whole and durable or not at all, readable by its owner only."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from onward.wholefile import sync_folder


def make_once(path: Path, text: str) -> None:
    """Writes ``text`` to ``path`` (mode 0600, its folder 0700). If another process created the file first,
    its text stays. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)
    finally:
        partial.unlink()
    sync_folder(path.parent)
