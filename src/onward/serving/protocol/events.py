"""The events of a streamed answer, in the form of the chat API. Pure."""

from __future__ import annotations

import json
from typing import Any, Protocol

DONE = b"data: [DONE]\n\n"


class Chunks:
    """Events of one answer: ``role`` first, any ``content``, then ``calls``, ``end`` and ``DONE``. With
    ``include_usage`` a chunk without choices before the end holds the usage; all others have null usage."""

    def __init__(self, generation_id: str, model: str, created: int, *, include_usage: bool) -> None:
        self._head = {
            "id": f"chatcmpl-{generation_id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }
        self._include_usage = include_usage

    def role(self) -> bytes:
        return self._delta({"role": "assistant", "content": ""})

    def content(self, text: str, logprobs: dict[str, Any] | None = None) -> bytes:
        return self._delta({"content": text}, logprobs)

    def calls(self, calls: list[dict[str, Any]]) -> bytes:
        """Returns events for each tool call: its name, then its arguments in one piece."""
        events = b""
        for index, call in enumerate(calls):
            function = call["function"]
            opening = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
            events += self._delta({"tool_calls": [opening]})
            arguments = {"index": index, "function": {"arguments": function["arguments"]}}
            events += self._delta({"tool_calls": [arguments]})
        return events

    def end(self, answer: dict[str, Any]) -> bytes:
        """Returns the finish reason with the ``onward`` part, the usage if requested, and the end."""
        reason = answer["choices"][0]["finish_reason"]
        events = self._delta({}, finish_reason=reason, onward=answer["onward"])
        if self._include_usage:
            events += event({**self._head, "choices": [], "usage": answer["usage"]})
        return events + DONE

    def failure(self, body: dict[str, Any]) -> bytes:
        """Returns an error for a stream that has begun. Clients raise it: no ``[DONE]`` follows."""
        return event(body)

    def _delta(
        self,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
        **more: Any,
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": logprobs}
        usage = {"usage": None} if self._include_usage else {}
        return event({**self._head, "choices": [choice], **usage, **more})


class MakeChunks(Protocol):
    """The class of the events, or a function that makes one."""

    def __call__(self, generation_id: str, model: str, created: int, *, include_usage: bool) -> Chunks: ...


def event(document: dict[str, Any]) -> bytes:
    """Returns one server-sent event."""
    return f"data: {json.dumps(document, ensure_ascii=False)}\n\n".encode()
