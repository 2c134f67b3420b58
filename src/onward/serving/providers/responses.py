"""OpenAI's responses API, passed through to a provider that serves it. Pure."""

from __future__ import annotations

from typing import Any

from onward.serving.protocol.events import event as sse
from onward.serving.protocol.openai import ROLES, ChatRequest
from onward.serving.providers.dialect import Document, call, chat_request, completion, count, objects, text_of

_ENDS = {"response.completed", "response.incomplete", "response.failed"}


class Responses:
    path = "/responses"

    def request(self, document: Document, model: str) -> Document:
        return {**document, "model": model}

    def observed(self, document: Document) -> ChatRequest:
        instructions = document.get("instructions")
        head = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
        tools = [
            {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
            for tool in objects(document.get("tools"))
            if tool.get("type") == "function"
        ]
        return chat_request(document, [*head, *_messages(document.get("input"))], tools)

    def answer(self, body: Document) -> Document:
        calls, texts = [], []
        for item in objects(body.get("output")):
            if item.get("type") == "message":
                texts += [_part(part) for part in objects(item.get("content"))]
            elif item.get("type") == "function_call":
                calls.append(_call(item))
        used = body.get("usage")
        used = used if isinstance(used, dict) else {}
        reason = "length" if body.get("status") == "incomplete" else "tool_calls" if calls else "stop"
        tokens = (count(used.get("input_tokens")), count(used.get("output_tokens")))
        return completion("".join(texts), calls, reason, tokens)

    def reply(self, body: Document) -> Document:
        return body

    def reader(self, document: Document) -> ResponsesReader:
        return ResponsesReader(self)


class ResponsesReader:
    """Passes events on. The last one repeats the whole response; until then the text is joined."""

    def __init__(self, dialect: Responses) -> None:
        self.ended = False
        self._dialect = dialect
        self._text: list[str] = []
        self._whole: Document | None = None

    def read(self, event: str, data: Document | None, block: bytes) -> bytes:
        kind = event or (str(data.get("type")) if data is not None else "")
        if data is not None and kind == "response.output_text.delta" and isinstance(data.get("delta"), str):
            self._text.append(data["delta"])
        elif data is not None and kind in _ENDS and isinstance(data.get("response"), dict):
            self.ended, self._whole = True, data["response"]
        return block

    def answer(self) -> Document:
        if self._whole is not None:
            return self._dialect.answer(self._whole)
        return completion("".join(self._text), [], None, (0, 0))

    def failure(self, message: str) -> bytes:
        error = {"type": "error", "code": "provider_error", "message": message, "param": None}
        return b"event: error\n" + sse(error)


def _messages(given: Any) -> list[Document]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[Document] = []
    for item in objects(given):
        kind = item.get("type") or "message"
        if kind == "message":
            role = ROLES.get(str(item.get("role")), "user")
            messages.append({"role": role, "content": "".join(_parts(item.get("content")))})
        elif kind == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(_call(item))
        elif kind == "function_call_output":
            output = "".join(_parts(item.get("output")))
            messages.append({"role": "tool", "content": output, "tool_call_id": str(item.get("call_id"))})
    return messages


def _parts(content: Any) -> list[str]:
    return [content] if isinstance(content, str) else [_part(part) for part in objects(content)]


def _part(part: Document) -> str:
    return part["refusal"] if isinstance(part.get("refusal"), str) else text_of([part])


def _call(item: Document) -> Document:
    return call(
        str(item.get("name") or ""), str(item.get("arguments") or "{}"), str(item.get("call_id") or "")
    )
