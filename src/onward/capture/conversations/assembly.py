"""Assembles a chat completion from the chunks of a stream.

Servers differ in how they send tool calls: with or without an index or an id, both once or in each chunk, the
name in pieces or repeated, one index for several calls. ``_Calls`` has the rules.

Invariants: a chunk that cannot be read is skipped: the caller has priority. The work for a chunk does not
grow with what came before, as it delays the caller: pieces are joined at the end.
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
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._others: list[Any] = []
        self._reasoning: dict[str, list[str]] = {}
        self._details: dict[tuple[Any, Any], tuple[dict[str, Any], list[str]]] = {}
        self._transcript: list[str] = []
        self._images: list[Any] = []
        self._calls = _Calls()
        self._legacy: _Function | None = None
        self._finish: str | None = None

    def add(self, choice: Mapping[str, Any]) -> None:
        self._finish = choice.get("finish_reason") or self._finish
        _append(self._text, choice.get("text"))  # a legacy completion
        delta = choice.get("delta") or {}
        self._add_content(delta.get("content"))
        _append(self._refusal, delta.get("refusal"))
        for name in _REASONING:
            if isinstance(delta.get(name), str):
                self._reasoning.setdefault(name, []).append(delta[name])
        for detail in delta.get("reasoning_details") or ():
            self._add_detail(detail)
        _append(self._transcript, (delta.get("audio") or {}).get("transcript"))
        self._images += delta.get("images") or ()
        for part in delta.get("tool_calls") or ():
            self._calls.add(part)
        if delta.get("function_call"):
            self._legacy = self._legacy or _Function()
            self._legacy.extend(delta["function_call"], is_repeat=self._legacy.has_arguments)

    def _add_content(self, content: Any) -> None:
        """Adds content; a thought in pieces becomes one thought."""
        if isinstance(content, str):
            self._text.append(content)
            return
        pieces = MessageParts()
        read_content(content, pieces)
        self._text.append(pieces.text)
        self._refusal.append(pieces.refusal)
        self._others += pieces.others
        if pieces.thoughts:
            self._reasoning.setdefault("parts", []).extend(pieces.thoughts)

    def _add_detail(self, detail: Any) -> None:
        if not isinstance(detail, Mapping):
            return
        place = (detail.get("type"), detail.get("index"))
        _, pieces = self._details.setdefault(place, (dict(detail), []))
        _append(pieces, detail.get("text") or detail.get("summary"))

    def document(self) -> dict[str, Any]:
        text, refusal, transcript = map("".join, (self._text, self._refusal, self._transcript))
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if self._others:
            message["content"] = [*([{"type": "text", "text": text}] if text else []), *self._others]
        if refusal:
            message["refusal"] = refusal
        whole = {name: "".join(pieces) for name, pieces in self._reasoning.items()}
        thoughts: dict[str, Any] = {name: text for name, text in whole.items() if text}
        if "parts" in thoughts:
            thoughts["thinking_blocks"] = [{"type": "thinking", "thinking": thoughts.pop("parts")}]
        message |= thoughts
        if self._details:
            message["reasoning_details"] = [
                {
                    **{name: value for name, value in first.items() if name != "summary"},
                    "text": "".join(pieces),
                }
                for first, pieces in self._details.values()
            ]
        if transcript:
            message["audio"] = {"transcript": transcript}
        if self._images:
            message["images"] = self._images
        if calls := self._calls.in_order():
            message["tool_calls"] = calls
        if self._legacy is not None:
            message["function_call"] = self._legacy.document()
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
        self._all: list[_Call] = []
        self._named: dict[str, list[_Call]] = {}

    def add(self, part: Mapping[str, Any]) -> None:
        function = part.get("function") or part.get("custom") or {}
        index, identity = part.get("index"), part.get("id") or None
        name, arguments = function.get("name") or "", function.get("arguments") or function.get("input") or ""
        call = self._continued(index, identity, bool(name), bool(arguments))
        if call is None:
            call = _Call(index)
            self._all.append(call)
        is_repeat = call.function.has_arguments or (identity is not None and bool(name))
        if call.identity is None and identity is not None:
            call.identity = identity
            self._named.setdefault(str(identity), []).append(call)
        call.function.extend({"name": name, "arguments": arguments}, is_repeat=is_repeat)

    def in_order(self) -> list[dict[str, Any]]:
        """Returns the calls by their indexes if all have one, else as they came."""
        calls = self._all
        if all(call.index is not None for call in calls):
            calls = sorted(calls, key=lambda call: call.index or 0)
        return [call.document() for call in calls]

    def _continued(
        self, index: int | None, identity: str | None, has_name: bool, has_arguments: bool
    ) -> _Call | None:
        """Returns the call that a chunk continues; None for a new call."""
        latest = next((call for call in reversed(self._all) if call.is_at(index)), None)
        for call in reversed(self._named.get(str(identity), ())):
            if call.is_at(index) or (latest is None and not has_name):
                return call
        if latest is None:
            return None
        if identity is not None and latest.identity is not None:
            only_arguments = has_arguments and not has_name
            return latest if only_arguments and not latest.function.is_complete() else None
        if has_name and has_arguments and latest.function.is_complete():
            return None
        return latest


class _Function:
    """A function that is called: its name and its arguments, in pieces."""

    def __init__(self) -> None:
        self._name = ""
        self._pieces: list[str] = []
        self._end = _JsonEnd()
        self._examined = 0
        self._is_json: bool | None = None
        """Known once the end is reached."""

    @property
    def has_arguments(self) -> bool:
        return bool(self._pieces)

    def extend(self, more: Mapping[str, Any], *, is_repeat: bool) -> None:
        """Adds a piece. A name that is sent whole again (``is_repeat``) is not added twice."""
        name, arguments = more.get("name") or "", more.get("arguments") or ""
        if not (is_repeat and name == self._name):
            self._name += name
        if arguments:
            whole = not isinstance(arguments, str)
            self._pieces.append(json.dumps(arguments, ensure_ascii=False) if whole else arguments)

    def is_complete(self) -> bool:
        """Returns whether the arguments so far are a JSON object or list. Each piece is examined once."""
        for piece in self._pieces[self._examined :]:
            self._end.add(piece)
        self._examined = len(self._pieces)
        if not self._end.is_reached:
            return False
        if self._is_json is None:
            self._is_json = _is_json("".join(self._pieces))
        return self._is_json

    def document(self) -> dict[str, Any]:
        return {"name": self._name, "arguments": "".join(self._pieces)}


class _Call:
    def __init__(self, index: int | None) -> None:
        self.index = index
        self.identity: str | None = None
        self.function = _Function()

    def is_at(self, index: int | None) -> bool:
        return index is None or self.index is None or self.index == index

    def document(self) -> dict[str, Any]:
        return {"id": self.identity, "type": "function", "function": self.function.document()}


class _JsonEnd:
    """Finds the end of a JSON object or list by its brackets, piece by piece."""

    def __init__(self) -> None:
        self.is_reached = False
        """True while all brackets are closed and nothing but blanks follows."""
        self._depth = 0
        self._in_text = False
        self._is_escaped = False
        self._is_broken = False

    def add(self, piece: str) -> None:
        for letter in piece:
            if self._is_broken:
                return
            self._add(letter)

    def _add(self, letter: str) -> None:
        if self._in_text:
            if self._is_escaped:
                self._is_escaped = False
            elif letter == "\\":
                self._is_escaped = True
            elif letter == '"':
                self._in_text = False
        elif letter in "{[" and not self.is_reached:
            self._depth += 1
        elif letter in "}]" and self._depth:
            self._depth -= 1
            self.is_reached = self._depth == 0
        elif self._depth:
            self._in_text = letter == '"'
        elif not letter.isspace():
            self._is_broken, self.is_reached = True, False


def _append(pieces: list[str], piece: Any) -> None:
    if isinstance(piece, str):
        pieces.append(piece)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
