"""Reads a model's message in any usual form: text, thoughts, refusal, calls, and other parts. Pure.

A message has its content as text or as a list of typed parts. The forms of OpenAI (chat and responses),
Anthropic, LangChain, Ollama, Bedrock and Gemini are read. A part of an unknown type is kept as it is.

Invariants: nothing that a model wrote is lost, and no form raises an error: recording must not disturb the
agent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_TEXTS = frozenset(("text", "output_text", "input_text"))
_THOUGHTS = frozenset(
    ("thinking", "thought", "reasoning", "reasoning_content", "reasoning_text", "reasoning.text")
) | {"reasoning.summary", "redacted_thinking", "reasoning.encrypted"}
_CALLS = frozenset(("tool_use", "function_call", "tool_call", "custom_tool_call", "invalid_tool_call"))
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking", "reasoning_details", "thinking_blocks")
"""Fields of a message beside its content."""
_WORDS = ("thinking", "reasoning", "reasoning_content", "reasoningText", "text", "summary", "content")
"""Fields of a thought that hold its words, by falling priority."""
_ARGUMENTS = ("input", "args", "arguments")


@dataclass
class MessageParts:
    text: str = ""
    thoughts: list[str] = field(default_factory=list)
    refusal: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Entries in the form of ``tool_calls`` of the chat API; arguments are JSON text or an object."""
    others: list[Any] = field(default_factory=list)
    """Parts that are none of these, such as pictures."""


def document_of(value: Any) -> Mapping[str, Any]:
    """Returns a mapping, or an object of a client as one. Clients accept values of other types than their
    models declare, so pydantic's warnings about these are off."""
    if isinstance(value, Mapping):
        return value
    try:
        return value.model_dump(mode="json", warnings=False)
    except TypeError:
        return value.model_dump(mode="json")


def read_message(message: Mapping[str, Any]) -> MessageParts:
    """Reads the message of an answer. Equal thoughts in several fields, and calls that are both in the
    content and beside it, count once."""
    found = MessageParts()
    for name in _REASONING_FIELDS:
        _think(found, message.get(name))
    read_content(message.get("content"), found)
    if isinstance(message.get("refusal"), str):
        found.refusal += message["refusal"]
    audio = message.get("audio")
    if not found.text and isinstance(audio, Mapping) and isinstance(audio.get("transcript"), str):
        found.text = audio["transcript"]
    found.others += _listed(message.get("images"))
    beside = [_call(one) for one in _listed(message.get("tool_calls"))]
    ids = {str(call.get("id")) for call in beside}
    within = [one for one in found.calls if not beside or (one.get("id") and str(one["id"]) not in ids)]
    found.calls = beside + within
    legacy = message.get("function_call")
    if not found.calls and isinstance(legacy, Mapping):
        found.calls = [_call({"function": legacy})]
    return found


def read_content(content: Any, found: MessageParts) -> None:
    """Adds content (text, a part, or a list of parts) to ``found``."""
    if content is None:
        return
    if isinstance(content, str):
        found.text += content
    elif isinstance(content, Mapping):
        _read_part(content, found)
    elif isinstance(content, Sequence):
        for part in content:
            read_content(part, found)
    else:
        found.others.append(content)


def _read_part(part: Mapping[str, Any], found: MessageParts) -> None:
    kind = str(part.get("type"))
    text = text_of(part)
    if part.get("thought") is True or kind in _THOUGHTS:
        _think(found, part)
    elif text is not None:
        found.text += text
    elif kind == "refusal":
        found.refusal += str(part.get("refusal") or "")
    elif kind in _CALLS:
        found.calls.append(_call(part))
    elif kind == "message":  # an item of a response
        read_content(part.get("content"), found)
    elif isinstance(part.get("toolUse"), Mapping):
        found.calls.append(_call(part["toolUse"]))
    elif isinstance(part.get("functionCall"), Mapping):
        found.calls.append(_call(part["functionCall"]))
    elif isinstance(part.get("reasoningContent"), Mapping):
        _think(found, part["reasoningContent"])
    else:
        found.others.append(part)


def _listed(value: Any) -> list[Any]:
    """Returns the items of a list; one value alone is its only item."""
    if not value:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def text_of(part: Any) -> str | None:
    """Returns the text of a text part; None for any other part."""
    if not isinstance(part, Mapping):
        return part if isinstance(part, str) else None
    if str(part.get("type", "text")) not in _TEXTS:
        return None
    text = part.get("text")
    if isinstance(text, Mapping):
        text = text.get("value")
    return text if isinstance(text, str) else None


def is_text(content: Any) -> bool:
    """Returns whether content holds nothing but text."""
    if content is None or isinstance(content, str):
        return True
    return isinstance(content, (list, tuple)) and all(text_of(part) is not None for part in content)


def _think(found: MessageParts, value: Any) -> None:
    """Adds thoughts. Servers repeat a thought in several fields, in one whole or in pieces."""
    new = [thought for thought in _thoughts(value) if thought.strip() and thought not in found.thoughts]
    if "".join(new) not in found.thoughts and "\n".join(new) not in found.thoughts:
        found.thoughts += new


def _thoughts(value: Any) -> Iterator[str]:
    """Yields the words of a thought: text, a part, or a list of these. Encrypted ones have none."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        if value.get("type") in ("redacted_thinking", "reasoning.encrypted"):
            return
        words = next((value[name] for name in _WORDS if value.get(name)), None)
        yield from _thoughts(words)
    elif isinstance(value, Sequence):
        for one in value:
            yield from _thoughts(one)


def _call(given: Any) -> dict[str, Any]:
    """Returns a call, in whatever form, as an entry of ``tool_calls``."""
    one: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    name_of_id = next((n for n in ("call_id", "id", "toolUseId") if one.get(n)), None)
    identity = None if name_of_id is None else str(one[name_of_id])
    if isinstance(one.get("function"), Mapping):
        return dict(one)
    if isinstance(one.get("custom"), Mapping):
        name, arguments = one["custom"].get("name"), {"input": one["custom"].get("input")}
    else:
        name = one.get("name")
        arguments = next((one[n] for n in _ARGUMENTS if one.get(n) is not None), {})
        if one.get("type") == "custom_tool_call":
            arguments = {"input": arguments}
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, default=str)
    return {"id": identity, "type": "function", "function": {"name": str(name or ""), "arguments": arguments}}
