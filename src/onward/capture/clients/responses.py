"""Converts requests, answers and streams of OpenAI's Responses API to the form of chat completions. Pure.

The API speaks in items where the chat API has messages. Items of the model that follow one another
(reasoning, text, calls) are one message, so that an answer that comes back in a later request is recognised.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from onward.capture.conversations.content import document_of

Item = Mapping[str, Any]
_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "summary_text": "text"}
_ENDS = {"max_output_tokens": "length", "content_filter": "content_filter"}
_TERMINAL = ("completed", "incomplete", "failed", "cancelled")


def messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the messages of a request: its instructions, then its input."""
    given = body.get("input")
    items: list[Any] = [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())
    if isinstance(body.get("prompt"), Mapping):  # a stored prompt: the server has its text
        items.insert(0, {"role": "user", "content": json.dumps(body["prompt"], ensure_ascii=False)})
    told = _messages(item for item in items if isinstance(item, Mapping))
    if body.get("instructions"):
        return [{"role": "system", "content": str(body["instructions"])}, *told]
    return told


def tools(body: Mapping[str, Any]) -> list[Any] | None:
    """Returns the tools of a request. A tool that the server runs stays as it is."""
    given = body.get("tools")
    if not isinstance(given, (list, tuple)):
        return None
    made = []
    for tool in given:
        if isinstance(tool, Mapping) and tool.get("type") in ("function", "custom"):
            function = {name: value for name, value in tool.items() if name != "type" and value is not None}
            tool = {"type": "function", "function": function}
        made.append(tool)
    return made


def completion(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a response as a chat completion. One without output has an empty message."""
    said = _Message()
    for item in document.get("output") or ():
        if isinstance(item, Mapping):
            said.add(item)
    message = said.document()
    reason = (document.get("incomplete_details") or {}).get("reason")
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    if document.get("status") in ("incomplete", "failed", "cancelled"):
        finish = _ENDS.get(str(reason), reason or document["status"])
    made: dict[str, Any] = {
        name: document[name] for name in ("id", "model", "usage", "onward") if document.get(name)
    }
    return {**made, "choices": [{"index": 0, "message": message, "finish_reason": finish}]}


def is_pending(document: Mapping[str, Any]) -> bool:
    """Returns whether the server still works on the response, which was requested with ``background``."""
    return document.get("status") in ("queued", "in_progress")


def names(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the ids by which a later request may continue this response, instead of repeating it."""
    conversation = document.get("conversation")
    told = [document.get("id"), conversation.get("id") if isinstance(conversation, Mapping) else conversation]
    return tuple(name for name in told if isinstance(name, str))


def continued(body: Mapping[str, Any]) -> str | None:
    """Returns the id that a request continues."""
    conversation = body.get("conversation")
    told = body.get("previous_response_id") or (
        conversation.get("id") if isinstance(conversation, Mapping) else conversation
    )
    return told if isinstance(told, str) else None


class ResponseAssembly:
    """Assembles a response from the events of a stream, as a chat completion."""

    def __init__(self) -> None:
        self._latest: dict[str, Any] = {}
        """The response as an event repeated it, whole in the last event."""
        self._items: dict[Any, dict[str, Any]] = {}
        self._texts: dict[Any, dict[str, list[str]]] = {}
        """Pieces of the texts of an item that is still being sent."""
        self.is_complete = False

    @property
    def document(self) -> Mapping[str, Any]:
        """The response so far, in the API's own form."""
        if self.is_complete and self._latest.get("output"):
            return self._latest
        items = [self._item(place) for place in sorted(self._items, key=_order)]
        status = self._latest.get("status") if self.is_complete else "incomplete"
        return {**self._latest, "status": status, "output": items}

    def add_chunk(self, chunk: Any) -> None:
        told = document_of(chunk)
        kind, place = str(told.get("type") or ""), told.get("output_index")
        if isinstance(told.get("response"), Mapping):
            self._latest = dict(told["response"])
            self.is_complete = kind.removeprefix("response.") in _TERMINAL
        elif kind == "error":
            error = told.get("error")
            self._latest["error"] = dict(error) if isinstance(error, Mapping) else dict(told)
            self.is_complete = True
        elif isinstance(told.get("item"), Mapping):
            self._items[place] = dict(told["item"])
            if kind.endswith(".done"):
                self._texts.pop(place, None)
        elif kind.endswith(".delta") and isinstance(told.get("delta"), str):
            texts = self._texts.setdefault(place, {})
            name = kind.removeprefix("response.").removesuffix(".delta")
            texts.setdefault(name, []).append(told["delta"])

    def completion(self) -> dict[str, Any]:
        return completion(self.document)

    def _item(self, place: Any) -> dict[str, Any]:
        """Returns an item of the output; one that is still being sent has the pieces that came."""
        item = dict(self._items[place])
        texts = {name: "".join(pieces) for name, pieces in (self._texts.get(place) or {}).items()}
        if "output_text" in texts or "refusal" in texts:
            item["content"] = [
                {"type": name, "text" if name == "output_text" else name: texts[name]}
                for name in ("output_text", "refusal")
                if name in texts
            ]
        for name, target in (("function_call_arguments", "arguments"), ("custom_tool_call_input", "input")):
            if name in texts:
                item[target] = texts[name]
        thought = texts.get("reasoning_text") or texts.get("reasoning_summary_text")
        if thought:
            item["summary"] = [{"type": "summary_text", "text": thought}]
        return item


class _Message:
    """The items of the model that make up one assistant message."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._refusals: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._others: list[Item] = []
        self.is_empty = True

    def add(self, item: Item) -> None:
        self.is_empty = False
        kind = str(item.get("type") or "message")
        if kind == "message":
            self._add_content(item.get("content"))
        elif kind == "reasoning":
            parts = item.get("content") or item.get("summary") or ()
            self._thoughts += [str(part.get("text") or "") for part in parts if isinstance(part, Mapping)]
        elif kind.endswith("_call") and item.get("call_id"):
            self._calls.append(_call(item, kind))
        else:  # run by the server, such as a web search
            self._others.append({name: value for name, value in item.items() if value is not None})

    def _add_content(self, content: Any) -> None:
        for part in [content] if isinstance(content, (str, Mapping)) else content or ():
            if isinstance(part, str):
                self._texts.append(part)
            elif part.get("type") == "refusal":
                self._refusals.append(str(part.get("refusal") or ""))
            elif part.get("type") in _PARTS:
                self._texts.append(str(part.get("text") or ""))
            else:
                self._others.append(part)

    def document(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._texts) or None}
        if self._refusals:
            message["refusal"] = "".join(self._refusals)
        if any(self._thoughts):
            message["reasoning_content"] = "\n\n".join(thought for thought in self._thoughts if thought)
        if self._calls:
            message["tool_calls"] = self._calls
        if self._others:
            text = [{"type": "text", "text": message["content"]}] if message["content"] else []
            message["content"] = [*text, *self._others]
        return message


def _call(item: Item, kind: str) -> dict[str, Any]:
    """Returns a call whose result the caller reports, in the form of the chat API."""
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        shown = {name: item[name] for name in ("input", "action", "actions", "operation") if item.get(name)}
        arguments = json.dumps(shown, ensure_ascii=False, default=str)
    name = str(item.get("name") or kind.removesuffix("_call"))
    return {
        "id": str(item["call_id"]),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _messages(items: Iterable[Item]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    said = _Message()
    for item in items:
        kind = str(item.get("type") or "message")
        role = item.get("role") or "user"
        is_output = kind.endswith("_output") and item.get("call_id")
        if not is_output and (kind != "message" or role == "assistant") and kind != "item_reference":
            said.add(item)
            continue
        if not said.is_empty:
            told.append(said.document())
            said = _Message()
        if is_output:
            told.append(
                {
                    "role": "tool",
                    "tool_call_id": str(item["call_id"]),
                    "content": _content(item.get("output")),
                }
            )
        elif kind == "item_reference":
            told.append({"role": "system", "content": f"(refers to the item {item.get('id')})"})
        else:
            told.append({"role": str(role), "content": _content(item.get("content"))})
    return told if said.is_empty else [*told, said.document()]


def _content(content: Any) -> Any:
    """Returns content with its parts in the form of the chat API; only text becomes one text."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, Mapping):
        content = [content]
    parts = [_part(part) for part in content]
    if all(isinstance(part, Mapping) and part.get("type") == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    if part.get("type") in _PARTS:
        return {"type": "text", "text": str(part.get("text") or "")}
    if isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return dict(part)


def _order(place: Any) -> int:
    return place if isinstance(place, int) else 0
