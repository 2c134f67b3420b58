"""Headers of messages that come from outside: only those that can be published again, and only so many. Pure.

Invariants: a message leaves a consumer as a dead letter, whatever its headers are. A header that NATS clients
can read but not write would keep it there without end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MAX_BYTES = 32 << 10
"""Bytes of foreign headers that a dead letter keeps."""
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


def usable(headers: Mapping[str, Any] | None) -> dict[str, str]:
    """Returns headers as text, without those whose name no client may write. Values that are not UTF-8 have
    replacement characters: nats-py returns an object for them where it reads one message by its sequence."""
    return {
        name: str(value).encode("utf-8", "replace").decode()
        for name, value in (headers or {}).items()
        if _NAME.fullmatch(name)
    }


def within(headers: Mapping[str, str], most: int = MAX_BYTES) -> dict[str, str]:
    """Returns as many headers as fit into ``most`` bytes, the shortest first, in their order."""
    kept: set[str] = set()
    for size, name in sorted((len(name) + len(value.encode()), name) for name, value in headers.items()):
        most -= size
        if most < 0:
            break
        kept.add(name)
    return {name: value for name, value in headers.items() if name in kept}
