"""Tools of a chat request: checks their schemas, and reads an answer's text as tool calls. Pure.

Two written forms are read. The first is JSON: one object ``{"tool_name": …, "tool_args": {…}}`` or a list of
them (``name`` with ``arguments`` or ``parameters`` is accepted too). A model without a tool template is
instructed to use it. The second is ``<tool_call>`` blocks around such JSON, which most tool templates teach.
Any other text stays content, word for word: no output of the model is lost.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from onward.contracts import decode_document
from onward.errors import ContractError
from onward.http.app import HttpError

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_TOOLS = 128
MAX_DEPTH = 20
"""Maximum levels of arguments and schemas. A trajectory nests them some levels down and has its own limit."""
TOOL_DEPTH = MAX_DEPTH + 2
"""Maximum levels of a whole tool, around its schema: all of it is recorded, whatever its keys are."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


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
class Said:
    """The parsed answer. Without calls ``content`` is the whole text."""

    content: str | None
    calls: tuple[ToolCall, ...] = ()
    malformed: bool = False
    """True if the text begins an unreadable tool call: bad JSON, or a tool that was not offered."""


def check_tools(given: Any) -> list[dict[str, Any]]:
    """Checks ``tools`` of a request and returns it unchanged. Raises HttpError 400 that names the place."""
    if given is None:
        return []
    if not isinstance(given, list) or len(given) > MAX_TOOLS:
        raise _bad(f"'tools' must be a list of at most {MAX_TOOLS} tools.", "tools")
    names: set[str] = set()
    for index, tool in enumerate(given):
        where = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise _bad(f"{where} must have the type 'function'.", where)
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise _bad(f"{where}.function.name must be 1 to 64 letters, digits, '_' or '-'.", where)
        if name in names:
            raise _bad(f"{where} has the name {name!r} of another tool: give each its own.", where)
        names.add(name)
        if not isinstance(function.get("description") or "", str):
            raise _bad(f"{where}.function.description must be text.", where)
        parameters = function.get("parameters") or {}
        if not isinstance(parameters, dict) or _too_deep(parameters, MAX_DEPTH):
            raise _bad(
                f"{where}.function.parameters must be a JSON Schema object of at most {MAX_DEPTH} levels.",
                where,
            )
        if _too_deep(tool, TOOL_DEPTH):
            raise _bad(f"{where} must be JSON of at most {TOOL_DEPTH} levels.", where)
        if function.get("strict"):
            raise _bad(
                f"{where}.function.strict cannot be enforced by this engine: leave it out.",
                where,
            )
    return given


def check_choice(given: Any, tools: Collection[Any]) -> bool:
    """Returns whether ``tool_choice`` allows calls. Raises HttpError 400 if it cannot be enforced."""
    if given is None or given == "auto":
        return bool(tools)
    if given == "none":
        return False
    raise _bad(
        "'tool_choice' must be 'auto' or 'none': this engine cannot force a call, so 'required' and a named "
        "tool are refused.",
        "tool_choice",
    )


def read_answer(text: str, names: Collection[str], generation_id: str, *, parallel: bool = True) -> Said:
    """Parses ``text`` as content and calls of the tools in ``names``. Without ``parallel`` it keeps one call.

    Ids of calls are derived from generation and position, so they are the same wherever they are made.
    """
    if not names:
        return Said(text)
    outside, blocks = _blocks(text)
    items = [item for block in blocks for item in _items(block)] if blocks else _items(text)
    pairs = [_named(item) for item in items]
    if not pairs or not all(pair is not None and pair[0] in names for pair in pairs):
        return Said(text, malformed=bool(blocks) or any(pairs) or _begins_call(text))
    if not parallel:
        pairs = pairs[:1]
    calls = tuple(
        ToolCall(call_id(generation_id, index), pair[0], pair[1])
        for index, pair in enumerate(pairs)
        if pair is not None
    )
    return Said(outside if blocks and outside.strip() else None, calls)


def call_id(generation_id: str, index: int) -> str:
    return "call_" + hashlib.sha256(f"{generation_id}\x1f{index}".encode()).hexdigest()[:24]


def settled(text: str) -> str:
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


def _too_deep(given: dict[str, Any], levels: int) -> bool:
    try:
        decode_document(json.dumps(given).encode(), max_depth=levels)
    except (ContractError, ValueError, RecursionError):
        return True
    return False


def _begins_call(text: str) -> bool:
    start = text.lstrip()
    return start[:1] in ("{", "[") and '"tool_name"' in start[:64]


def _bad(message: str, param: str) -> HttpError:
    return HttpError(400, message, param=param)
