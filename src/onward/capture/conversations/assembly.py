"""Assembles a chat completion from the chunks of a stream.

Servers differ in how they send tool calls: with or without an index or an id, both once or in each chunk, the
name in pieces or repeated, one index for several calls. ``_Calls`` has the rules.

Invariants: a chunk that cannot be read is skipped: the caller has priority.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from onward.capture.conversations.content import MessageParts, document_of, read_content

_WHOLE = ("id", "model", "usage", "onward")
_REASONING = ("reasoning_content", "reasoning", "thinking")


class Assembly:
    """The completion so far. All choices are assembled; the first has the index 0."""

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}
        self._whole: dict[str, Any] = {}

    def add_chunk(self, chunk: Any) -> None:
        """Adds one chunk: a mapping, or an object of the client."""
        document = document_of(chunk)
        for name in _WHOLE:
            if document.get(name):
                self._whole[name] = document[name]
        for choice in document.get("choices") or ():
            self._choices.setdefault(choice.get("index") or 0, _Choice()).add(choice)

    def completion(self) -> dict[str, Any]:
        places = sorted(self._choices.keys() | {0})
        choices = [{"index": place, **self._choices.get(place, _Choice()).document()} for place in places]
        return {**self._whole, "choices": choices}


class _Choice:
    def __init__(self) -> None:
        self._parts = MessageParts()
        self._reasoning: dict[str, str] = {}
        self._details: dict[tuple[Any, Any], dict[str, Any]] = {}
        self._transcript = ""
        self._images: list[Any] = []
        self._calls = _Calls()
        self._legacy: dict[str, str] | None = None
        self._finish: str | None = None

    def add(self, choice: Mapping[str, Any]) -> None:
        self._finish = choice.get("finish_reason") or self._finish
        if isinstance(choice.get("text"), str):  # a legacy completion
            self._parts.text += choice["text"]
        delta = choice.get("delta") or {}
        self._add_content(delta.get("content"))
        self._parts.refusal += delta.get("refusal") or ""
        for name in _REASONING:
            if isinstance(delta.get(name), str):
                self._reasoning[name] = self._reasoning.get(name, "") + delta[name]
        for detail in delta.get("reasoning_details") or ():
            self._add_detail(detail)
        self._transcript += (delta.get("audio") or {}).get("transcript") or ""
        self._images += delta.get("images") or ()
        for part in delta.get("tool_calls") or ():
            self._calls.add(part)
        if delta.get("function_call"):
            self._legacy = self._legacy or {"name": "", "arguments": ""}
            _extend(self._legacy, delta["function_call"], is_repeat=bool(self._legacy["arguments"]))

    def _add_content(self, content: Any) -> None:
        """Adds content; a thought in pieces becomes one thought."""
        pieces = MessageParts()
        read_content(content, pieces)
        self._parts.text += pieces.text
        self._parts.refusal += pieces.refusal
        self._parts.others += pieces.others
        if pieces.thoughts:
            self._reasoning["parts"] = self._reasoning.get("parts", "") + "".join(pieces.thoughts)

    def _add_detail(self, detail: Any) -> None:
        if not isinstance(detail, Mapping):
            return
        kept = self._details.setdefault((detail.get("type"), detail.get("index")), {**detail, "text": ""})
        kept["text"] += detail.get("text") or detail.get("summary") or ""
        kept.pop("summary", None)

    def document(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self._parts.text or None}
        if self._parts.others:
            text = [{"type": "text", "text": self._parts.text}] if self._parts.text else []
            message["content"] = [*text, *self._parts.others]
        if self._parts.refusal:
            message["refusal"] = self._parts.refusal
        thoughts: dict[str, Any] = {name: text for name, text in self._reasoning.items() if text}
        if "parts" in thoughts:
            thoughts["thinking_blocks"] = [{"type": "thinking", "thinking": thoughts.pop("parts")}]
        message |= thoughts
        if self._details:
            message["reasoning_details"] = list(self._details.values())
        if self._transcript:
            message["audio"] = {"transcript": self._transcript}
        if self._images:
            message["images"] = self._images
        if calls := self._calls.in_order():
            message["tool_calls"] = calls
        if self._legacy is not None:
            message["function_call"] = self._legacy
        return {"message": message, "finish_reason": self._finish}


class _Calls:
    """The calls of one answer, assembled by these rules, in this order:

    1. A known id without an index, or with its own index, continues its call.
    2. A new index is a new call, unless the chunk has a known id and no name.
    3. A new id at a known index is a new call, unless the chunk has only arguments while those of the call
       are not complete: some servers make up an id for each chunk.
    4. A chunk without an id continues the latest call at its index, or the latest call. It is a new call if
       it has a name and arguments while the arguments of that call are complete.
    """

    def __init__(self) -> None:
        self._all: list[tuple[int | None, dict[str, Any]]] = []

    def add(self, part: Mapping[str, Any]) -> None:
        function = part.get("function") or part.get("custom") or {}
        index, identity = part.get("index"), part.get("id") or None
        name, arguments = function.get("name") or "", function.get("arguments") or function.get("input") or ""
        call = self._continued(index, identity, bool(name), bool(arguments))
        if call is None:
            call = {"id": identity, "type": "function", "function": {"name": "", "arguments": ""}}
            self._all.append((index, call))
        is_repeat = bool(call["function"]["arguments"]) or (identity is not None and bool(name))
        call["id"] = call["id"] or identity
        _extend(call["function"], {"name": name, "arguments": arguments}, is_repeat=is_repeat)

    def in_order(self) -> list[dict[str, Any]]:
        """Returns the calls by their indexes if all have one, else as they came."""
        if any(index is None for index, _ in self._all):
            return [call for _, call in self._all]
        return [call for _, call in sorted(self._all, key=lambda one: one[0] or 0)]

    def _continued(
        self, index: int | None, identity: str | None, has_name: bool, has_arguments: bool
    ) -> dict[str, Any] | None:
        """Returns the call that a chunk continues; None for a new call."""
        here = [call for place, call in self._all if index is None or place in (index, None)]
        same = [(place, call) for place, call in self._all if identity and call["id"] == identity]
        for place, call in reversed(same):
            if index is None or place in (index, None) or (not here and not has_name):
                return call
        if not here:
            return None
        latest = here[-1]
        complete = _is_complete(latest["function"]["arguments"])
        if identity is not None and latest["id"] is not None:
            return latest if has_arguments and not has_name and not complete else None
        if has_name and has_arguments and complete:
            return None
        return latest


def _extend(function: dict[str, str], more: Mapping[str, Any], *, is_repeat: bool) -> None:
    """Adds a piece of a call. A name that is sent whole again (``is_repeat``) is not added twice."""
    name, arguments = more.get("name") or "", more.get("arguments") or ""
    if not (is_repeat and name == function["name"]):
        function["name"] += name
    function["arguments"] += (
        arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    )


def _is_complete(arguments: str) -> bool:
    if not arguments.strip().startswith(("{", "[")):
        return False
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return True
