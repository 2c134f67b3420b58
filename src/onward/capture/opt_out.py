"""Opt-out: patterns decide whose work is not stored, before anything is written.

Agents import this through the recorder, so it is pure and uses only the standard library. The patterns are
trusted settings; the ids that they are matched against are untrusted.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from onward.errors import ConfigError

VARIABLE = "RL_CAPTURE_OPT_OUT"
FIELDS = ("session", "agent", "user")
"""Fields that a pattern can match; ``user`` is ``metadata.user_hash``."""
MIN_KEY_BYTES = 16
_IN_HASH_PATTERNS = frozenset("0123456789abcdef*?[]!-")
_PREFIX = re.compile(r"[A-Za-z]+")
_log = logging.getLogger("onward.capture")


@dataclass(frozen=True)
class OptOut:
    """Shell patterns (``*``, ``?``, ``[ab]``; capitals matter), each for one field or for all three."""

    patterns: tuple[tuple[str, str], ...] = ()
    """Pairs of field (empty for all three) and pattern."""

    @classmethod
    def parse(cls, text: str) -> OptOut:
        """Parses comma-separated patterns, such as ``demo-*, agent:tester, user:3f2a*``; empty ones are
        skipped.

        A prefix ``session:``, ``agent:`` or ``user:`` limits a pattern to that field. Raises ConfigError for
        patterns that could never match: a prefix without a pattern, a name or address after ``user:``.
        Another ``word:`` logs a warning: only an agent id may contain a colon.
        """
        found: list[tuple[str, str]] = []
        for part in (piece.strip() for piece in text.split(",")):
            field, colon, rest = part.partition(":")
            if not (colon and field in FIELDS):
                _warn_of_prefix(field, colon)
                field, rest = "", part
            elif not rest.strip():
                raise ConfigError(
                    f"{VARIABLE} names {field!r} without a pattern: give for example '{field}:name-*'."
                )
            elif field == "user" and not set(rest.strip()) <= _IN_HASH_PATTERNS:
                raise ConfigError(
                    f"{VARIABLE} holds a pattern behind 'user:' that no user hash can match: give the hash "
                    "that user_hash(user, key) returns, 32 digits of 0-9 and a-f, or a part of it with '*'."
                )
            if rest.strip():
                found.append((field, rest.strip()))
        return cls(tuple(found))

    def matches(self, session_id: str | None, agent_id: str | None, user_hash: str | None) -> bool:
        """Returns whether a trajectory with these ids must not be stored. None never matches, not even
        ``*``."""
        values = {"session": session_id, "agent": agent_id, "user": user_hash}
        for field, pattern in self.patterns:
            for value in (values[field],) if field else values.values():
                if value is not None and fnmatchcase(value, pattern):
                    return True
        return False

    def matches_document(self, document: Mapping[str, Any]) -> bool:
        """Like ``matches``, for a trajectory's document; a field that is not text counts as absent."""
        metadata = document.get("metadata")
        user = metadata.get("user_hash") if isinstance(metadata, Mapping) else None
        return self.matches(_text(document.get("session_id")), _text(document.get("agent_id")), _text(user))

    def __bool__(self) -> bool:
        return bool(self.patterns)


def _warn_of_prefix(word: str, colon: str) -> None:
    if colon and _PREFIX.fullmatch(word):
        _log.warning(
            "%s: '%s:' is none of session:, agent:, user:, so the pattern is taken as it is for all three, "
            "and only an agent id may hold a colon",
            VARIABLE,
            word,
        )


def user_hash(user_id: str, key: str | bytes) -> str:
    """Returns 32 hex digits that identify a user: the first half of HMAC-SHA-256 (RFC 2104) under ``key``.

    The same user under the same key always gets the same hash, so that a pattern can name it. Without the key
    no one can test guesses against it, unlike a plain hash. Raises ConfigError for a key under 16 bytes.
    """
    secret = key.encode() if isinstance(key, str) else key
    if len(secret) < MIN_KEY_BYTES:
        raise ConfigError(f"A key for user hashes has {MIN_KEY_BYTES} bytes or more: give a longer one.")
    return hmac.new(secret, user_id.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
