"""Reads the text of an answer as tool calls. Pure.

Two written forms are read. The first is JSON: one object ``{"tool_name": …, "tool_args": {…}}`` or a list of
them (``name`` with ``arguments`` or ``parameters`` is accepted too). A model without a tool template is
instructed to use it. The second is ``<tool_call>`` blocks around such JSON, which most tool templates teach.
Any other text stays content, word for word: no output of the model is lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from onward.contracts import decode_document
from onward.errors import ContractError

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_DEPTH = 20
"""Maximum levels of arguments and schemas. A trajectory nests them some levels down and has its own limit."""


@dataclass(frozen=True)
class ToolCall:
    id: str
    name: str
    arguments: dict[str, Any]

    def document(self) -> dict[str, Any]:
        """Returns an entry of ``tool_calls`` of the chat API: arguments are JSON in a text."""
        arguments = json.dumps(self.arguments, ensure_ascii=False)
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


@dataclass(frozen=True)
class ParsedAnswer:
    """The parsed answer. Without calls ``content`` is the whole text."""

    content: str | None
    calls: tuple[ToolCall, ...] = ()
    malformed: bool = False
    """True if the text begins an unreadable tool call: bad JSON, or a tool that was not offered."""


def read_answer(
    text: str, names: Collection[str], generation_id: str, *, parallel: bool = True
) -> ParsedAnswer:
    """Parses ``text`` as content and calls of the tools in ``names``. Without ``parallel`` it keeps one call.
    Ids of calls are derived from generation and position, so they are the same wherever they are made."""
    if not names:
        return ParsedAnswer(text)
    outside, blocks = _blocks(text)
    items = [item for block in blocks for item in _items(block)] if blocks else _items(text)
    pairs = [_named(item) for item in items]
    if not pairs or not all(pair is not None and pair[0] in names for pair in pairs):
        return ParsedAnswer(text, malformed=bool(blocks) or any(pairs) or _begins_call(text))
    if not parallel:
        pairs = pairs[:1]
    calls = tuple(
        ToolCall(call_id(generation_id, index), pair[0], pair[1])
        for index, pair in enumerate(pairs)
        if pair is not None
    )
    return ParsedAnswer(outside if blocks and outside.strip() else None, calls)


def call_id(generation_id: str, index: int) -> str:
    return "call_" + hashlib.sha256(f"{generation_id}\x1f{index}".encode()).hexdigest()[:24]


def streamable_text(text: str) -> str:
    """Returns the part of an unfinished answer that is certainly content and may be streamed."""
    start = text.lstrip()
    if not start or start[0] in "{[":
        return ""
    at = text.find(OPEN)
    if at >= 0:
        return text[:at] if text[:at].strip() else ""
    for length in range(min(len(OPEN) - 1, len(text)), 0, -1):
        if OPEN.startswith(text[-length:]):
            text = text[:-length]
            break
    return text if text.strip() else ""


def _blocks(text: str) -> tuple[str, list[str]]:
    """Returns the text outside of ``<tool_call>`` blocks, and their contents; the last may lack its end."""
    outside, *parts = text.split(OPEN)
    blocks = []
    for part in parts:
        block, _, after = part.partition(CLOSE)
        blocks.append(block)
        outside += after if after.strip() else ""
    return outside, blocks


def _items(text: str) -> list[Any]:
    """Returns the JSON objects in ``text``; None in place of an unreadable one."""
    body = text.strip()
    if not body.startswith(("{", "[")):
        return [None]
    try:
        value = decode_document(body.encode(), max_depth=MAX_DEPTH)
    except (ContractError, UnicodeEncodeError):
        return [None]
    return value if isinstance(value, list) and value else [value]


def _named(item: Any) -> tuple[str, dict[str, Any]] | None:
    if not isinstance(item, dict):
        return None
    for name_key, keys in (("tool_name", ("tool_args",)), ("name", ("arguments", "parameters"))):
        name = item.get(name_key)
        if not isinstance(name, str):
            continue
        for key in keys:
            if isinstance(item.get(key), dict):
                return name, item[key]
    return None


def _begins_call(text: str) -> bool:
    start = text.lstrip()
    return start[:1] in ("{", "[") and '"tool_name"' in start[:64]
