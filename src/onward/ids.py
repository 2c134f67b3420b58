"""Ids: one rule for all that come from outside, and one way to make new ones.

An id becomes a path, a subject token or a bucket key, so it is checked before that use:
``^[A-Za-z0-9_-]{1,128}$``. Dots, slashes and NATS wildcards never pass.
"""

from __future__ import annotations

import os
import re
import uuid
from typing import TYPE_CHECKING

from onward.errors import ContractError

if TYPE_CHECKING:
    from pathlib import Path

ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,128}")


def is_id(value: str) -> bool:
    return ID_PATTERN.fullmatch(value) is not None


def check_id(value: str, what: str) -> str:
    """Returns ``value`` if it is usable as a path, subject token or key; else raises ContractError."""
    if not is_id(value):
        shown = value[:40] + ("…" if len(value) > 40 else "")
        raise ContractError(
            "bad_id",
            f"{what} {shown!r} is not usable: give 1 to 128 letters, digits, '_' or '-'.",
        )
    return value


def new_id() -> str:
    """A random UUID in its usual text form."""
    try:
        random = _RANDOM.pop()
    except IndexError:
        drawn = os.urandom(16 * _DRAWN)
        random, *more = (drawn[at : at + 16] for at in range(0, len(drawn), 16))
        _RANDOM.extend(more)
    return str(uuid.UUID(bytes=random, version=4))


def derived_id(*parts: str) -> str:
    """Returns the same UUID for the same parts, which makes effects idempotent under redelivery."""
    return str(uuid.uuid5(_NAMESPACE, "\x1f".join(parts)))


def local_id(seed: Path, *names: str) -> str:
    """Returns a UUID of ``names`` in this folder on this machine: the same after a restart, another one in a
    copy of the folder. ``seed``: a file in the folder, made at the first use. Raises OSError."""
    import socket  # agents import this module and need neither

    from onward.files import write_secret_once

    if not seed.exists():
        write_secret_once(seed, new_id())
    text = seed.read_text(errors="replace").strip()
    return derived_id("local", text, socket.gethostname(), str(seed.resolve()), *names)


def model_key(model_id: str) -> str:
    """Key of a model in bucket ``rl_models``: the id with dots replaced, since dots separate key parts."""
    return model_id.replace(".", "_")


_DRAWN = 128
_RANDOM: list[bytes] = []
"""Random bytes for the next ids. One system call for each id lets other threads take the interpreter, which
costs the gateway a tenth of its requests. A list's ``pop`` and ``extend`` are safe between threads."""
os.register_at_fork(after_in_child=_RANDOM.clear)

_NAMESPACE = uuid.UUID("6f6e7761-7264-4000-8000-000000000001")
