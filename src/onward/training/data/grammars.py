"""Grammars of recorded answers, as far as the records of a trajectory state them. Pure.

The gateway signs the source of a grammar in the record of the first answer under it; a record that continues
this one has its hash alone. Redaction empties a record whose source it changed, and all that continue it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

FIELDS = ("kind", "form", "source", "engine", "fingerprint")
"""Parts of a record's ``constraint`` that are needed to compute its masks again, all of them texts."""
Stated = Mapping[str, Mapping[str, str]]
"""Hash of a grammar → its ``FIELDS``."""


def stated(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Returns the grammars that these records state. A voided record states none: no signature covers it."""
    found: dict[str, dict[str, str]] = {}
    for record in records:
        constraint = record.get("constraint")
        if record.get("tokens_void") or not isinstance(constraint, Mapping):
            continue
        parts = {name: constraint[name] for name in FIELDS if isinstance(constraint.get(name), str)}
        if len(parts) == len(FIELDS):
            found.setdefault(name_of(record), shared(parts))
    return found


def shared(value: Any) -> Any:
    """Returns texts, at any depth of dicts, as one object for all equal ones: thousands of answers may have
    one schema of 64 KiB."""
    if isinstance(value, dict):
        return {name: shared(part) for name, part in value.items()}
    return sys.intern(value) if isinstance(value, str) else value


def is_stated(record: Mapping[str, Any], grammars: Stated) -> bool:
    """Returns whether the grammar of a record that has one is among ``grammars``. The fingerprint decides,
    since the hash is short."""
    known = grammars.get(name_of(record))
    return known is not None and known["fingerprint"] == record["constraint"].get("fingerprint")


def name_of(record: Mapping[str, Any]) -> str:
    """Returns the hash of the grammar of a record that has one; empty without a hash."""
    constraint = record["constraint"]
    return str(constraint.get("hash") or "") if isinstance(constraint, Mapping) else ""
