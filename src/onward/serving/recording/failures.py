"""Kinds of failures of an engine, for the outcome of a session. The engine's own words are not passed on,
since they may hold parts of the request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

CHARACTERS_PER_TOKEN = 4
"""Rule of thumb: the tokenizer of a request that the engine could not serve is not at hand."""
_KINDS = (
    ("out_of_memory", re.compile(r"out of memory|\boom\b|cannot allocate|memoryerror", re.IGNORECASE)),
    ("timeout", re.compile(r"timed? ?out|deadline", re.IGNORECASE)),
)


class Failure(NamedTuple):
    """Facts about a failed request. None: not known."""

    error: str | None = None
    context_tokens: int | None = None
    domain: str | None = None
    tool: str | None = None


UNKNOWN_FAILURE = Failure()


def failure_of(error: Exception, messages: Sequence[dict[str, Any]]) -> Failure:
    """Returns the facts about a request with ``messages`` at which an engine failed with ``error``."""
    text = str(error)
    kind = next((name for name, pattern in _KINDS if pattern.search(text)), "engine")
    characters = sum(len(str(message.get("content") or "")) for message in messages)
    return Failure(kind, characters // CHARACTERS_PER_TOKEN, tool=_last_tool(messages))


def _last_tool(messages: Sequence[dict[str, Any]]) -> str | None:
    """Returns the name of the last tool that a message calls."""
    for message in reversed(messages):
        calls = message.get("tool_calls")
        if calls:
            name = (calls[-1].get("function") or {}).get("name")
            return str(name) if name else None
    return None
