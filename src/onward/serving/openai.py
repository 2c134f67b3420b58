"""The OpenAI shapes: a chat request in, a completion (or its SSE chunks) out. Pure.

What cannot be done exactly is refused with the parameter's name, never ignored: an agent that asked
for a stop sequence and did not get it would be hard to understand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from onward.httpbase import HttpError
from onward.serving.engines import Generation

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MAX_MESSAGES = 2000
_REFUSED = ("stop", "tools", "functions", "tool_choice", "function_call", "logit_bias", "modalities", "audio")
_ZERO = ("frequency_penalty", "presence_penalty")
ROUTED = "onward"
"""The model name that follows releases; any other name must be a model id that is served now."""


@dataclass(frozen=True)
class ChatRequest:
    model: str
    messages: list[dict[str, str]]
    temperature: float
    top_p: float
    top_k: int | None
    max_tokens: int | None
    seed: int | None
    stream: bool
    user: str | None

    @property
    def first_user_message(self) -> str:
        return next((m["content"] for m in self.messages if m["role"] == "user"), "")


def parse_chat(document: dict[str, Any]) -> ChatRequest:
    """Raises HttpError 400 that names the parameter."""
    for name in _REFUSED:
        if document.get(name) not in (None, [], {}, "auto", "none"):
            raise _bad(f"{name!r} is not supported by this engine: leave it out.", name)
    for name in _ZERO:
        if document.get(name) not in (None, 0, 0.0):
            raise _bad(f"{name!r} is not supported by this engine: leave it out or give 0.", name)
    if document.get("n") not in (None, 1):
        raise _bad("'n' must be 1: make several calls for several answers.", "n")
    if (document.get("response_format") or {"type": "text"}) != {"type": "text"}:
        raise _bad("'response_format' other than text is not supported: leave it out.", "response_format")
    limit = document.get("max_completion_tokens", document.get("max_tokens"))
    model = document.get("model") or ROUTED
    user = document.get("user")
    if not isinstance(model, str) or not (user is None or isinstance(user, str)):
        raise _bad("'model' and 'user' must be text.", "model" if not isinstance(model, str) else "user")
    return ChatRequest(
        model=model,
        messages=_messages(document.get("messages")),
        temperature=_number(document, "temperature", 1.0, 0.0, 2.0),
        top_p=_number(document, "top_p", 1.0, 1e-6, 1.0),
        top_k=_whole("top_k", document.get("top_k"), 1),
        max_tokens=_whole("max_tokens", limit, 1),
        seed=_whole("seed", document.get("seed"), 0),
        stream=document.get("stream") is True,
        user=user or None,
    )


def _messages(given: Any) -> list[dict[str, str]]:
    if not isinstance(given, list) or not given or len(given) > MAX_MESSAGES:
        raise _bad(f"'messages' must be a list of 1 to {MAX_MESSAGES} messages.", "messages")
    messages = []
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise _bad(f"{where} must have a role: system, user, assistant or tool.", where)
        if message.get("tool_calls"):
            raise _bad(f"{where}.tool_calls is not supported: write the call into the content.", where)
        messages.append({"role": ROLES[message["role"]], "content": _text(message.get("content"), where)})
    return messages


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        text = content
    elif isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in content
    ):
        text = "".join(part["text"] for part in content)
    else:
        raise _bad(f"{where}.content must be text or a list of text parts.", f"{where}.content")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _bad(f"{where}.content holds half of a surrogate pair.", f"{where}.content") from None
    return text


def _number(document: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = document.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _bad(f"{name!r} must be a number from {low:g} to {high:g}.", name)
    return float(value)


def _whole(name: str, value: Any, low: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**63:
        raise _bad(f"{name!r} must be a whole number of at least {low}.", name)
    return value


def _bad(message: str, param: str) -> HttpError:
    return HttpError(400, message, param=param)


def completion(generation: Generation, onward: dict[str, Any], created: int) -> dict[str, Any]:
    """The answer to a chat request; ``onward`` is our own part of it."""
    return {
        "id": f"chatcmpl-{generation.sampling['generation_id']}",
        "object": "chat.completion",
        "created": created,
        "model": onward["model_id"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": generation.text},
                "finish_reason": generation.sampling["finish_reason"],
                "logprobs": None,
            }
        ],
        "usage": generation.usage,
        "onward": onward,
    }


def chunks(answer: dict[str, Any]) -> bytes:
    """The same answer as server-sent events: role, content, end, [DONE]."""
    head = {name: answer[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    choice = answer["choices"][0]
    parts: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]},
        {
            **head,
            "choices": [
                {"index": 0, "delta": {"content": choice["message"]["content"]}, "finish_reason": None}
            ],
        },
        {
            **head,
            "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}],
            "usage": answer["usage"],
            "onward": answer["onward"],
        },
    ]
    events = "".join(f"data: {json.dumps(part, ensure_ascii=False)}\n\n" for part in parts)
    return (events + "data: [DONE]\n\n").encode()
