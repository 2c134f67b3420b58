"""Anthropic's messages API, passed through to a provider that serves it. Pure."""

from __future__ import annotations

import json
from typing import Any

from onward.serving.protocol.openai import ChatRequest
from onward.serving.providers.dialect import Document, call, chat_request, completion, count, objects, text_of

REASONS = {
    "end_turn": "stop", "stop_sequence": "stop", "pause_turn": "stop", "max_tokens": "length",
    "model_context_window_exceeded": "length", "tool_use": "tool_calls", "refusal": "content_filter",
}  # fmt: skip
"""Anthropic's reason for an end → OpenAI's."""
_ERRORS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip


class Messages:
    path = "/v1/messages"

    def request(self, document: Document, model: str) -> Document:
        return {**document, "model": model}

    def observed(self, document: Document) -> ChatRequest:
        system = text_of(document.get("system"))
        head = [{"role": "system", "content": system}] if system else []
        messages = [one for message in objects(document.get("messages")) for one in _chat_messages(message)]
        described = document.get("metadata")
        user = described.get("user_id") if isinstance(described, dict) else None
        tools = [_function(tool) for tool in objects(document.get("tools"))]
        return chat_request({**document, "user": user}, [*head, *messages], tools)

    def answer(self, body: Document) -> Document:
        return as_completion(body)

    def reply(self, body: Document) -> Document:
        return body

    def reader(self, document: Document) -> MessagesReader:
        return MessagesReader()


class MessageBuilder:
    """Joins the events of a stream into the message that they describe."""

    def __init__(self) -> None:
        self.ended = False
        self.message: Document = {}
        self._blocks: dict[int, Document] = {}
        self._json: dict[int, str] = {}

    def add(self, data: Document) -> None:
        kind, index = data.get("type"), count(data.get("index"))
        delta = data.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        if kind == "message_start" and isinstance(data.get("message"), dict):
            self.message = dict(data["message"])
        elif kind == "content_block_start" and isinstance(data.get("content_block"), dict):
            self._blocks[index] = dict(data["content_block"])
        elif kind == "content_block_delta":
            block = self._blocks.setdefault(index, {"type": "text", "text": ""})
            if isinstance(delta.get("text"), str):
                block["text"] = block.get("text", "") + delta["text"]
            elif isinstance(delta.get("partial_json"), str):
                self._json[index] = self._json.get(index, "") + delta["partial_json"]
        elif kind == "message_delta":
            self.message["stop_reason"] = delta.get("stop_reason")
            used = data.get("usage")
            before = self.message.get("usage")
            if isinstance(used, dict):
                self.message["usage"] = {**(before if isinstance(before, dict) else {}), **used}
        elif kind == "message_stop":
            self.ended = True

    def whole(self) -> Document:
        """Returns the message so far. A call whose arguments are not complete is left out."""
        content: list[Document] = []
        for index in sorted(self._blocks):
            block = dict(self._blocks[index])
            if self._json.get(index):
                try:
                    block["input"] = json.loads(self._json[index])
                except ValueError:
                    continue
            content.append(block)
        return {**self.message, "content": content}


class MessagesReader:
    """Passes events on and joins them."""

    def __init__(self) -> None:
        self._builder = MessageBuilder()

    @property
    def ended(self) -> bool:
        return self._builder.ended

    def read(self, event: str, data: Document | None, block: bytes) -> bytes:
        if data is not None:
            self._builder.add(data)
        return block

    def answer(self) -> Document:
        return as_completion(self._builder.whole())

    def failure(self, message: str) -> bytes:
        return b"event: error\ndata: " + json.dumps(error(529, message)).encode() + b"\n\n"


def error(status: int, message: str) -> Document:
    """Returns an error in Anthropic's form."""
    kind = _ERRORS.get(status, "overloaded_error" if status == 529 else "api_error")
    kind = "invalid_request_error" if kind == "api_error" and status < 500 else kind
    return {"type": "error", "error": {"type": kind, "message": message}}


def as_completion(body: Document, **more: Any) -> Document:
    """Returns a message as a chat completion. Thoughts are left out."""
    texts: list[str] = []
    calls: list[Document] = []
    for block in objects(body.get("content")):
        if block.get("type") == "text":
            texts.append(text_of([block]))
        elif block.get("type") == "tool_use":
            calls.append(_tool_call(block))
    used = body.get("usage")
    reason = REASONS.get(str(body.get("stop_reason")))
    return completion("".join(texts) or None, calls, reason, tokens_of(used), **more)


def tokens_of(used: Any) -> tuple[int, int]:
    """Returns tokens of prompt and answer; those that a cache had count as well."""
    used = used if isinstance(used, dict) else {}
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(count(used.get(name)) for name in names), count(used.get("output_tokens"))


def _tool_call(block: Document) -> Document:
    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
    return call(str(block.get("name") or ""), arguments, str(block.get("id") or ""))


def _function(tool: Document) -> Document:
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }
    return {"type": "function", "function": {n: v for n, v in function.items() if v is not None}}


def _chat_messages(message: Document) -> list[Document]:
    """Returns what one message amounts to in a chat: results of tools first, each as its own message."""
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else objects(content)
    results = [
        {
            "role": "tool",
            "content": text_of(block.get("content")),
            "tool_call_id": str(block.get("tool_use_id")),
        }
        for block in blocks
        if block.get("type") == "tool_result"
    ]
    special = ("tool_result", "tool_use", "thinking", "redacted_thinking")
    text = text_of([block for block in blocks if block.get("type") not in special])
    calls = [_tool_call(block) for block in blocks if block.get("type") == "tool_use"]
    if message.get("role") == "assistant":
        return [{"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}]
    return [*results, *([{"role": "user", "content": text}] if text or not results else [])]
