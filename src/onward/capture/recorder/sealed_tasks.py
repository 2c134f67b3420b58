"""Tasks that could not be redacted or made to fit: encrypted in a folder beside the outbox until they can be.

Invariants: the content is not redacted, so it is written only encrypted, and no readable fact comes from it.
The collector never sees it. The key is made here and never leaves.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from onward.clock import utc_text
from onward.errors import ConfigError, ObjectError, OutboxFullError
from onward.files import sync_folder, write_whole
from onward.ids import is_id

_DRAFT = "."


@dataclass(frozen=True)
class Held:
    """Facts of one held task; none of them comes from its content."""

    held_id: str
    """Its trajectory id, or a hash of it if it is not a valid id."""
    since: str
    reason: str
    """``redaction``, or the broken limit: ``too_large``, ``too_deep``, ``too_many_turns`` …"""
    error: str
    """Class of the error that stopped it."""
    size: int
    """Bytes of its JSON."""


class HeldTasks:
    """The folder ``<outbox>.held`` (mode 0700) and key file ``<outbox>.key`` (0600); processes may share
    them."""

    def __init__(self, outbox: Path, max_bytes: int) -> None:
        """``max_bytes`` limits the total size of all bodies."""
        self._folder = outbox.with_name(outbox.name + ".held")
        self._key_file = outbox.with_name(outbox.name + ".key")
        self._max_bytes = max_bytes

    def hold(self, document: Mapping[str, Any], reason: str, error: str, now: datetime) -> Held:
        """Encrypts and stores a task durably; the same task again overwrites itself. Raises OutboxFullError,
        ObjectError, ConfigError (the key file contains no key)."""
        from onward.capture import sealing

        body = json.dumps(document, default=str).encode()
        held = Held(_name(str(document.get("trajectory_id"))), utc_text(now), reason, error, len(body))
        sealed = sealing.seal(
            json.dumps(asdict(held)).encode(), body, sealing.read_or_create_key(self._key_file)
        )
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            taken = sum(path.stat().st_size for path in self._folder.iterdir() if path.name != held.held_id)
            if taken + len(sealed) > self._max_bytes:
                raise OutboxFullError(
                    f"{self._folder} holds {taken} of {self._max_bytes} bytes: call retry_held(), or "
                    "drop_held() what is not needed."
                )
            self._write(held.held_id, sealed)
        except OSError as failure:
            raise ObjectError(f"{self._folder} cannot be written: {failure.strerror}.") from None
        return held

    def names(self) -> list[str]:
        """Returns the ids of all held tasks. Raises ObjectError if the folder cannot be read."""
        try:
            return sorted(name for name in os.listdir(self._folder) if not name.startswith(_DRAFT))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise ObjectError(f"{self._folder} cannot be read: {error.strerror}.") from None

    def all(self) -> list[Held]:
        """Returns the facts by time; unreadable ones have the reason ``damaged``."""
        found = []
        for name in self.names():
            try:
                data = (self._folder / name).read_bytes()
            except FileNotFoundError:
                continue  # recorded by another process in the meantime
            except OSError:
                data = b""
            try:
                facts = json.loads(data.partition(b"\n")[0])
                found.append(Held(**{field.name: facts[field.name] for field in fields(Held)}))
            except (ValueError, KeyError, TypeError):
                found.append(Held(name, "", "damaged", "", len(data)))
        return sorted(found, key=lambda held: (held.since, held.held_id))

    def open(self, held_id: str) -> dict[str, Any]:
        """Returns the document, decrypted in memory only. Raises TamperedError, ObjectError, ConfigError."""
        from onward.capture import sealing

        try:
            facts, sealed = sealing.split_sealed((self._folder / held_id).read_bytes())
        except OSError as error:
            raise ObjectError(f"The held task {held_id} cannot be read: {error.strerror}.") from None
        if not self._key_file.exists():
            raise ConfigError(f"{self._key_file} is not here: put it back to open what is held.")
        return json.loads(sealing.unseal(facts, sealed, sealing.read_or_create_key(self._key_file), held_id))

    def drop(self, held_id: str) -> None:
        if held_id in self.names():
            (self._folder / held_id).unlink(missing_ok=True)

    def _write(self, name: str, data: bytes) -> None:
        write_whole(self._folder / name, data, 0o600)
        sync_folder(self._folder.parent)


def _name(trajectory_id: str) -> str:
    return trajectory_id if is_id(trajectory_id) else hashlib.sha256(trajectory_id.encode()).hexdigest()[:32]
