"""OpenAI's responses API in terms of the chat API: a request in, a response out, and the events of a stream.

Nothing is stored for it: a client repeats the earlier items in ``input``, and its conversation is found as
that of any chat. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from onward.http.app import HttpError
from onward.serving.protocol.events import Chunks, event
from onward.serving.protocol.openai import ROLES, ChatRequest, parse_chat
from onward.serving.protocol.parameters import RESPONSES, bad, refuse, refuse_more

_TEXT_PARTS = frozenset(("input_text", "output_text", "text"))
_MESSAGE = re.compile(r"\bmessages\[(\d+)\]")
_NAMES = {"max_tokens": "max_output_tokens", "response_format": "text.format", "messages": "input"}
"""Name of a parameter in the chat API → its name here, where they differ."""
_SAME = ("model", "temperature", "top_p", "user", "stream", "tool_choice", "parallel_tool_calls", "metadata")


def parse(document: dict[str, Any]) -> ChatRequest:
    """Parses a request for a response. Raises HttpError 400 that names the parameter."""
    refuse(document, RESPONSES)
    text = {} if document.get("text") is None else document["text"]
    if not isinstance(text, dict) or text.get("verbosity") not in (None, "medium"):
        raise bad("'text' must be an object with a 'format'; its 'verbosity' is not supported.", "text")
    refuse_more(text, ("format", "verbosity"), "text")
    instructions = document.get("instructions")
    if not (instructions is None or isinstance(instructions, str)):
        raise bad("'instructions' must be text.", "instructions")
    head = [{"role": "system", "content": instructions}] if instructions else []
    chat: dict[str, Any] = {name: document[name] for name in _SAME if document.get(name) is not None}
    messages, places = _messages(document.get("input"))
    chat["messages"] = [*head, *messages]
    chat["max_tokens"] = document.get("max_output_tokens")
    if text.get("format") is not None:
        chat["response_format"] = text["format"]
    if document.get("tools"):
        chat["tools"] = _tools(document["tools"])
    try:
        return parse_chat(chat)
    except HttpError as error:
        raise renamed(error, ["instructions"] * len(head) + places) from None


def renamed(error: HttpError, places: Sequence[str] = ()) -> HttpError:
    """Returns an error about a chat request with the names of the responses API. ``places`` has the item that
    each message was made of."""

    def place(found: re.Match[str]) -> str:
        index = int(found[1])
        return places[index] if index < len(places) else "input"

    param, message = error.param, _MESSAGE.sub(place, error.message)
    for name, ours in _NAMES.items():
        message = message.replace(f"'{name}'", f"'{ours}'")
        param = ours if param == name else param
    param = param if param is None else _MESSAGE.sub(place, param)
    return HttpError(error.status, message, type=error.type, param=param, headers=error.headers)


def _tools(given: Any) -> list[Any]:
    """Returns functions in the nested form of the chat API."""
    if not isinstance(given, list):
        raise bad("'tools' must be a list.", "tools")
    tools = []
    for index, tool in enumerate(given):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != "function":
            raise bad(f"tools[{index}] must have the type 'function'; other tools are refused.", "tools")
        tools.append({"type": "function", "function": {n: v for n, v in tool.items() if n != "type"}})
    return tools


def _messages(given: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the messages, and for each the place of the item that begins it."""
    if isinstance(given, str) and given:
        return [{"role": "user", "content": given}], ["input"]
    if not isinstance(given, list) or not given:
        raise bad("'input' must be text or a list of items.", "input")
    messages: list[dict[str, Any]] = []
    places: list[str] = []
    for index, item in enumerate(given):
        where = f"input[{index}]"
        kind = item.get("type") or "message" if isinstance(item, dict) else None
        role = item.get("role") if isinstance(item, dict) else None
        if kind == "message" and isinstance(role, str) and role in ROLES:
            messages.append({"role": role, "content": _text(item.get("content"), where)})
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            if not all(isinstance(part, str) for part in function.values()):
                raise bad(f"{where} must have a name and arguments as JSON text.", where)
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            text = _text(item.get("output"), where)
            messages.append({"role": "tool", "content": text, "tool_call_id": item.get("call_id")})
        else:
            raise bad(
                f"{where} of the type {str(kind)[:64]!r} is not supported: send messages of text, "
                f"function_call and function_call_output.",
                where,
            )
        places += [where] * (len(messages) - len(places))
    return messages, places


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    parts: list[Any] = content if isinstance(content, list) else [{}]
    for part in (one if isinstance(one, dict) else {} for one in parts):
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in _TEXT_PARTS or not isinstance(part.get("text"), str):
            raise bad(f"{where} has a part of the type {str(kind)[:64]!r}, but the model takes text alone: "
                      f"send text.", where)  # fmt: skip
    return "".join(part["text"] for part in parts)


def response(answer: dict[str, Any], request: dict[str, Any], status: str = "") -> dict[str, Any]:
    """Returns a chat completion as a response; ``request`` is the document that asked for it."""
    choice, number = answer["choices"][0], answer["id"].removeprefix("chatcmpl-")
    is_short = not status and _status(choice) == "incomplete"
    usage = answer["usage"]
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": answer["created"],
        "status": status or _status(choice),
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_short else None,
        "model": answer["model"],
        "output": [] if status else _output(choice, number),
        "usage": None if status else {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
        **{name: request.get(name) for name in ("instructions", "max_output_tokens", "metadata", "user")},
        "previous_response_id": None,
        "parallel_tool_calls": request.get("parallel_tool_calls") is not False,
        "temperature": 1.0 if request.get("temperature") is None else request["temperature"],
        "top_p": 1.0 if request.get("top_p") is None else request["top_p"],
        "tool_choice": request.get("tool_choice") or "auto",
        "tools": request.get("tools") or [],
        "text": request.get("text") or {"format": {"type": "text"}},
        "truncation": "disabled",
        "store": False,
        "onward": answer.get("onward"),
    }  # fmt: skip


def _output(choice: dict[str, Any], number: str) -> list[dict[str, Any]]:
    message = choice["message"]
    calls, text = message.get("tool_calls") or [], message["content"] or ""
    items = [] if calls and not text else [_message_item(number, text, _status(choice))]
    return [*items, *(_call_item(call, number, index) for index, call in enumerate(calls))]


def _status(choice: dict[str, Any]) -> str:
    """Returns the status of a finished response and of its message."""
    return "incomplete" if choice["finish_reason"] == "length" else "completed"


def _message_item(number: str, text: str | None, status: str) -> dict[str, Any]:
    content = [] if text is None else [_part(text)]
    return {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": status,
            "content": content}  # fmt: skip


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call_item(call: dict[str, Any], number: str, index: int) -> dict[str, Any]:
    return {"id": f"fc_{number}_{index}", "type": "function_call", "status": "completed",
            "call_id": call["id"], **call["function"]}  # fmt: skip


class ResponseChunks(Chunks):
    """The events of a response: created, in progress, items with their text and calls, completed."""

    def __init__(
        self,
        generation_id: str,
        model: str,
        created: int,
        *,
        include_usage: bool,
        request: dict[str, Any],
    ) -> None:
        """``request``: the document that asked for the response."""
        self._request = request
        super().__init__(generation_id, model, created, include_usage=include_usage)
        self._number = generation_id
        self._sequence = 0
        self._text: str | None = None
        """Text that was sent; None before its item began."""
        self._items = 0

    def role(self) -> bytes:
        empty = {**self._head, "choices": [{"finish_reason": None, "message": {}}], "usage": None}
        begun = response(empty, self._request, "in_progress")
        return self._event("response.created", response=begun) + self._event(
            "response.in_progress", response=begun
        )

    def content(self, text: str, logprobs: Any = None) -> bytes:
        events = b"" if self._text is not None else self._begin_text()
        self._text = (self._text or "") + text
        return events + self._event(
            "response.output_text.delta", item_id=f"msg_{self._number}", output_index=0, content_index=0,
            delta=text, logprobs=[],
        )  # fmt: skip

    def _begin_text(self) -> bytes:
        self._items = 1
        item = _message_item(self._number, None, "in_progress")
        return self._event("response.output_item.added", output_index=0, item=item) + self._event(
            "response.content_part.added", item_id=item["id"], output_index=0, content_index=0, part=_part("")
        )

    def calls(self, calls: list[dict[str, Any]]) -> bytes:
        return b""  # ``end`` sends them: the text before them ends with a status that is known there

    def _end_items(self, choice: dict[str, Any]) -> bytes:
        calls, events = choice["message"].get("tool_calls") or [], b""
        if self._text is None and not calls:
            events = self._begin_text()
        if self._items:
            events += self._end_text(self._text or "", _status(choice))
        for index, call in enumerate(calls):
            item, place = _call_item(call, self._number, index), self._items + index
            at = {"item_id": item["id"], "output_index": place}
            begun = {**item, "arguments": "", "status": "in_progress"}
            events += self._event("response.output_item.added", output_index=place, item=begun)
            events += self._event("response.function_call_arguments.delta", **at, delta=item["arguments"])
            events += self._event(
                "response.function_call_arguments.done", **at, arguments=item["arguments"], name=item["name"]
            )
            events += self._event("response.output_item.done", output_index=place, item=item)
        return events

    def _end_text(self, text: str, status: str) -> bytes:
        at = {"item_id": f"msg_{self._number}", "output_index": 0}
        item = _message_item(self._number, text, status)
        return (
            self._event("response.output_text.done", **at, content_index=0, text=text, logprobs=[])
            + self._event("response.content_part.done", **at, content_index=0, part=_part(text))
            + self._event("response.output_item.done", output_index=0, item=item)
        )

    def end(self, answer: dict[str, Any]) -> bytes:
        whole = response(answer, self._request)
        items = self._end_items(answer["choices"][0])
        return items + self._event(f"response.{whole['status']}", response=whole)

    def failure(self, body: dict[str, Any]) -> bytes:
        error = body["error"]
        return self._event("error", code=error["type"], message=error["message"], param=error["param"])

    def _event(self, kind: str, **content: Any) -> bytes:
        document = {"type": kind, "sequence_number": self._sequence, **content}
        self._sequence += 1
        return b"event: " + kind.encode() + b"\n" + event(document)
