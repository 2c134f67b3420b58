"""RE2 expressions over bytes, which are read as Latin-1: every text can be searched."""

from __future__ import annotations

from typing import Any

import re2


def latin1(**more: Any) -> Any:
    """Returns RE2's options for bytes; ``more`` are further ones (``max_mem`` …)."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    for name, value in more.items():
        setattr(options, name, value)
    return options


def compiled(pattern: bytes | str) -> Any:
    return re2.compile(pattern if isinstance(pattern, bytes) else pattern.encode("latin-1"), latin1())
