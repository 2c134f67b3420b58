"""The secrets that Agent Zero knows, read from its own files: they are removed wherever they occur.

Its own masking misses streamed answers and encoded forms, and agents see placeholders that stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from onward.redaction.known import in_environment
from onward.redaction.propagation import MIN_LENGTH

TOKEN, KEY, URL = "ONWARD_NATS_TOKEN", "ONWARD_API_KEY", "ONWARD_NATS_URL"
"""Names of the plugin's own secrets: token of NATS, key of the gateway, address of NATS with its login."""
_VAULTS = ("usr/secrets.env", "usr/projects/*/.a0proj/secrets.env", "usr/projects/*/secrets.env")
_SETTINGS = ("usr/.env", ".env")


class Secrets:
    """``root`` is the folder of Agent Zero."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._state: tuple[tuple[str, int, int], ...] | None = None
        self.named: dict[str, str] = {}
        """Name → value of the vault of the whole installation."""

    def has_changed(self) -> bool:
        """Returns whether a file has changed since ``values`` was called."""
        return self._now() != self._state

    def values(self) -> list[str]:
        """Returns all values: of the vaults every one, of other files those with a secret name."""
        self._state = self._now()
        found: dict[str, None] = {}
        self.named = {}
        for path in self._paths(_VAULTS):
            told = _read(path)
            self.named |= told if path.parent == self._root / "usr" else {}
            found |= dict.fromkeys(value for value in told.values() if len(value.encode()) >= MIN_LENGTH)
        for path in self._paths(_SETTINGS):
            found |= dict.fromkeys(in_environment(_read(path)))
        found |= dict.fromkeys(in_environment(os.environ))
        return [value for value in found if len(value.strip().encode()) >= MIN_LENGTH]

    def named_value(self, name: str) -> str | None:
        """Returns a secret by its name: of the environment, else of the vault."""
        return os.environ.get(name) or self.named.get(name) or None

    def _paths(self, patterns: tuple[str, ...]) -> Iterator[Path]:
        for pattern in patterns:
            yield from sorted(self._root.glob(pattern))

    def _now(self) -> tuple[tuple[str, int, int], ...]:
        found = []
        for path in self._paths((*_VAULTS, *_SETTINGS)):
            try:
                state = path.stat()
            except OSError:
                continue
            found.append((str(path), state.st_mtime_ns, state.st_size))
        return tuple(found)


def _read(path: Path) -> dict[str, str]:
    """Reads lines of ``NAME=value``, as python-dotenv does for plain and quoted values."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not equals or name.startswith("#"):
            continue
        value = value.strip()
        if value[:1] in "\"'" and value[:1] and value.endswith(value[0]) and len(value) > 1:
            value = value[1:-1]
        else:
            value = value.partition(" #")[0].strip()
        if value:
            found[name.strip()] = value
    return found
