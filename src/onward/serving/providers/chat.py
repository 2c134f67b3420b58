"""OpenAI's chat completions, passed through to a provider that serves them. Pure."""

from __future__ import annotations

from typing import Any

from onward.http.app import error_body
from onward.serving.protocol.events import event
from onward.serving.protocol.openai import ROLES, ChatRequest
from onward.serving.providers.dialect import Document, call, chat_request, completion, count, objects, text_of


class Chat:
    path = "/chat/completions"

    def request(self, document: Document, model: str) -> Document:
        body = {**document, "model": model}
        if body.get("stream") is True:  # the record needs the usage; the reader drops it again
            options = body.get("stream_options")
            body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        return body

    def observed(self, document: Document) -> ChatRequest:
        return chat_request(document, messages_of(document), document.get("tools"))

    def answer(self, body: Document) -> Document:
        choice: Document = next(iter(objects(body.get("choices"))), {})
        message = choice.get("message")
        message = message if isinstance(message, dict) else {}
        used = body.get("usage")
        used = used if isinstance(used, dict) else {}
        return completion(
            _said(message),
            calls_of(message.get("tool_calls")),
            choice.get("finish_reason"),
            (count(used.get("prompt_tokens")), count(used.get("completion_tokens"))),
        )

    def reply(self, body: Document) -> Document:
        return body

    def reader(self, document: Document) -> ChatReader:
        options = document.get("stream_options")
        return ChatReader(wants_usage=isinstance(options, dict) and options.get("include_usage") is True)


class ChatReader:
    """Passes chunks on, and joins those of the first choice."""

    def __init__(self, *, wants_usage: bool) -> None:
        self.ended = False
        self._wants_usage = wants_usage
        self._text: list[str] = []
        self._calls: dict[int, Document] = {}
        self._reason: str | None = None
        self._tokens = (0, 0)

    def read(self, event: str, data: Document | None, block: bytes) -> bytes:
        if data is None:
            self.ended = self.ended or b"[DONE]" in block
            return block
        used = data.get("usage")
        if isinstance(used, dict):
            self._tokens = (count(used.get("prompt_tokens")), count(used.get("completion_tokens")))
            if not data.get("choices") and not self._wants_usage:
                return b""
        for choice in objects(data.get("choices")):
            if choice.get("index", 0) == 0:
                self._add(choice)
        return block

    def _add(self, choice: Document) -> None:
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        if text := _said(delta):
            self._text.append(text)
        for part in objects(delta.get("tool_calls")):
            function = part.get("function")
            function = function if isinstance(function, dict) else {}
            held = self._calls.setdefault(count(part.get("index")), call("", "", ""))
            held["id"] = held["id"] or str(part.get("id") or "")
            held["function"]["name"] += str(function.get("name") or "")
            held["function"]["arguments"] += str(function.get("arguments") or "")
        self._reason = choice.get("finish_reason") or self._reason

    def answer(self) -> Document:
        calls = [self._calls[index] for index in sorted(self._calls)]
        return completion("".join(self._text), calls, self._reason, self._tokens)

    def failure(self, message: str) -> bytes:
        return event(error_body("provider_error", message))


def messages_of(document: Document) -> list[Document]:
    """Returns the messages of a chat request with text alone."""
    found: list[Document] = []
    for message in objects(document.get("messages")):
        kept: Document = {
            "role": ROLES.get(str(message.get("role")), "user"),
            "content": text_of(message.get("content")),
        }
        if calls := calls_of(message.get("tool_calls")):
            kept["tool_calls"] = calls
        if isinstance(message.get("tool_call_id"), str):
            kept["tool_call_id"] = message["tool_call_id"]
        found.append(kept)
    return found


def calls_of(given: Any) -> list[Document]:
    """Returns the calls of functions in a message, without what else a provider puts there."""
    found: list[Document] = []
    for one in objects(given):
        function = one.get("function")
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            found.append(
                call(function["name"], str(function.get("arguments") or "{}"), str(one.get("id") or ""))
            )
    return found


def _said(message: Document) -> str:
    """Returns the words of a message or delta: its text, else its refusal."""
    return text_of(message.get("content")) or text_of(message.get("refusal"))
