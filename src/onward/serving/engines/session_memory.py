"""Tokens of conversations in the engine child: a prompt extends those of the answer before it. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onward.serving.engines import Messages


@dataclass(frozen=True)
class FinishedGeneration:
    """One finished generation, with all that is needed to continue it."""

    generation_id: str
    adapter: str | None
    messages: Messages
    text: str
    ids: list[int]
    """Prompt and completion, as the engine saw them."""
    finished: bool
    """True if the completion ends with the sampled end-of-turn token."""
    tools: Sequence[dict[str, Any]] = ()
    """Tools that the prompt showed."""
    grammars: frozenset[str] = frozenset()
    """Hashes of the grammars whose source its record has, or that of a generation that it continues."""


class SessionMemory:
    """Tokens of sessions: the next prompt of a conversation extends the tokens of the last one.

    A call extends an earlier one only if its messages start with that call's messages followed by exactly the
    returned text, under the same adapter and with the same tools. Anything else (edited history, another
    policy) is a new row with its full prompt. Limited in tokens and in generations per session; evicts the
    least recently used session first.
    """

    def __init__(self, max_tokens: int = 2_000_000, per_session: int = 8) -> None:
        self._max_tokens = max_tokens
        self._per_session = per_session
        self._sessions: OrderedDict[str, OrderedDict[str, FinishedGeneration]] = OrderedDict()
        self._tokens = 0

    def find(
        self, session_id: str, adapter: str | None, messages: Messages, tools: Sequence[dict[str, Any]] = ()
    ) -> FinishedGeneration | None:
        """Returns the longest remembered generation that ``messages`` continues, or None."""
        known = self._sessions.get(session_id)
        if not known:
            return None
        self._sessions.move_to_end(session_id)
        for length in range(len(messages) - 1, 0, -1):
            if messages[length - 1]["role"] == "assistant":
                found = known.get(_key(adapter, tools, messages[:length]))
                if found is not None:
                    return found
        return None

    def put(self, session_id: str, generation: FinishedGeneration) -> None:
        known = self._sessions.setdefault(session_id, OrderedDict())
        self._sessions.move_to_end(session_id)
        said = [*generation.messages, {"role": "assistant", "content": generation.text}]
        key = _key(generation.adapter, generation.tools, said)
        replaced = known.pop(key, None)
        known[key] = generation
        self._tokens += len(generation.ids) - (len(replaced.ids) if replaced else 0)
        while len(known) > self._per_session:
            self._tokens -= len(known.popitem(last=False)[1].ids)
        while self._tokens > self._max_tokens and len(self._sessions) > 1:
            _, oldest = self._sessions.popitem(last=False)
            self._tokens -= sum(len(item.ids) for item in oldest.values())

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def tokens(self) -> int:
        return self._tokens


def _key(adapter: str | None, tools: Sequence[dict[str, Any]], messages: Messages) -> str:
    said = [[message["role"], message["content"], message.get("tool_calls")] for message in messages]
    plain = json.dumps([adapter or "", list(tools), said], ensure_ascii=False)
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()
