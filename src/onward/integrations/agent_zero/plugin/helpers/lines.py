"""Events as JSON lines. Long texts are encoded in pieces.

The encoder is C code that keeps the interpreter's lock: a text of 10 MB at once would stop the agent's event
loop for that time.
"""

from __future__ import annotations

import json
import time
from typing import Any

PIECE = 32_768
"""Characters that are encoded at a time; the lock is given away after each piece."""
_MARK = "\x00onward-text-"


def line(event: dict[str, Any]) -> bytes:
    """Returns an event as one line of ASCII."""
    long: list[str] = []
    text = json.dumps(_shortened(event, long), default=str, separators=(",", ":"))
    if not long:
        return text.encode() + b"\n"
    parts: list[bytes] = []
    for number, value in enumerate(long):
        before, _, text = text.partition(json.dumps(f"{_MARK}{number}"))
        parts += [before.encode(), b'"']
        for start in range(0, len(value), PIECE):
            parts.append(json.dumps(value[start : start + PIECE])[1:-1].encode())
            time.sleep(0)
        parts.append(b'"')
    return b"".join([*parts, text.encode(), b"\n"])


def _shortened(value: Any, long: list[str]) -> Any:
    """Returns a copy with a mark in place of each long text, in the order of the document."""
    if isinstance(value, str):
        if len(value) <= PIECE and not value.startswith(_MARK):
            return value
        long.append(value)
        return f"{_MARK}{len(long) - 1}"
    if isinstance(value, dict):
        return {str(key): _shortened(one, long) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shortened(one, long) for one in value]
    return value
