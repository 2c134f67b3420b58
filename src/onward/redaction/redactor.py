"""``Redactor``: how one process redacts, made once and handed to whatever redacts.

Know before changing: the policy version is part of a trajectory's identity, so everything here that decides
what is redacted must be in it, except known secrets, which are each client's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from onward.redaction.engine import POLICY_VERSION, Redacted, redact
from onward.redaction.known import NOTHING_KNOWN, Known
from onward.redaction.rules.personal_optional import OPTIONAL, Finder, optional
from onward.redaction.trajectory import redact_trajectory


@dataclass(frozen=True)
class Redactor:
    """All rules, and beside them what was chosen. Thread-safe.

    Raises ConfigError, when it is made, for an optional kind that there is not.
    """

    known: Known = NOTHING_KNOWN
    """Secrets of the client, replaced wherever they stand."""
    optional_kinds: tuple[str, ...] = ()
    """Of ``personal_optional.OPTIONAL``: off unless named here."""
    finders: tuple[Finder, ...] = ()
    """Further finders, such as ``entities(…)``. The policy version has their names, not what they do."""
    policy_version: str = field(init=False)
    """``POLICY_VERSION``; with optional kinds or finders, eight hex digits more that say which."""
    _also: tuple[Finder, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kinds = tuple(sorted(set(self.optional_kinds)))
        also = (optional(kinds), *self.finders) if kinds else self.finders
        object.__setattr__(self, "optional_kinds", kinds)
        object.__setattr__(self, "_also", also)
        object.__setattr__(self, "policy_version", POLICY_VERSION + _suffix(kinds, self.finders))

    def document(self, document: dict[str, Any] | list[Any] | str) -> Redacted:
        """As ``redact``. Raises RedactionError: the document must then be held back."""
        return self._signed(redact(document, known=self.known, also=self._also))

    def trajectory(self, document: dict[str, Any]) -> Redacted:
        """As ``redact_trajectory``, token ids included. Raises RedactionError."""
        return self._signed(redact_trajectory(document, known=self.known, also=self._also))

    def _signed(self, redacted: Redacted) -> Redacted:
        if redacted.policy_version == self.policy_version:
            return redacted
        return replace(redacted, policy_version=self.policy_version)


def _suffix(kinds: Iterable[str], finders: Iterable[Finder]) -> str:
    rules = [[rule.kind, rule.pattern, rule.take, rule.checks] for kind in kinds for rule in OPTIONAL[kind]]
    names = [getattr(finder, "__qualname__", type(finder).__qualname__) for finder in finders]
    if not rules and not names:
        return ""
    return hashlib.sha256(json.dumps([rules, names]).encode()).hexdigest()[:8]


PLAIN = Redactor()
"""The rules alone."""
