"""The OpenAI shapes: a chat request in, a completion out (``sse.py`` has its stream). Pure.

A parameter that cannot be applied exactly is refused by name, never ignored: the behaviour of an agent whose
stop sequence was ignored would be hard to understand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onward.capture.conversations.answers import Said
from onward.http.app import HttpError
from onward.serving.engines import Generation
from onward.serving.protocol.tools import check_choice, check_tools

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MAX_MESSAGES = 2000
_REFUSED = ("stop", "functions", "function_call", "logit_bias", "audio", "prediction", "web_search_options")
_NOT_ASKED = (None, [], {}, "auto", "none")
_ZERO = ("frequency_penalty", "presence_penalty", "top_logprobs")
ROUTED = "onward"
"""The model name that follows releases; any other name must be a model id that is served now."""


@dataclass(frozen=True)
class ChatRequest:
    model: str
    messages: list[dict[str, Any]]
    """``role`` and ``content``; an assistant's ``tool_calls`` and a tool's ``tool_call_id`` if given."""
    temperature: float
    top_p: float
    top_k: int | None
    max_tokens: int | None
    seed: int | None
    stream: bool
    user: str | None
    tools: list[dict[str, Any]]
    calls_tools: bool
    """False: every answer is text, even if it looks like a call (no tools, or ``tool_choice`` "none")."""
    parallel: bool
    include_usage: bool
    """True if a stream ends with a chunk that holds the usage."""

    @property
    def first_user_message(self) -> str:
        return next((m["content"] for m in self.messages if m["role"] == "user"), "")


def parse_chat(document: dict[str, Any]) -> ChatRequest:
    """Parses a chat request. Raises HttpError 400 that names the parameter."""
    _refuse(document)
    limit = document.get("max_completion_tokens")
    limit = document.get("max_tokens") if limit is None else limit
    tools = check_tools(document.get("tools"))
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
        stream=_flag(document, "stream", False),
        user=user or None,
        tools=tools,
        calls_tools=check_choice(document.get("tool_choice"), tools),
        parallel=_flag(document, "parallel_tool_calls", True),
        include_usage=_flag(document.get("stream_options") or {}, "include_usage", False),
    )


def _refuse(document: dict[str, Any]) -> None:
    for name in _REFUSED:
        if document.get(name) not in _NOT_ASKED:
            raise _bad(f"{name!r} is not supported by this engine: leave it out.", name)
    for name in _ZERO:
        if document.get(name) not in (None, 0, 0.0):
            raise _bad(f"{name!r} is not supported by this engine: leave it out or give 0.", name)
    if document.get("n") not in (None, 1):
        raise _bad("'n' must be 1: make several calls for several answers.", "n")
    if document.get("logprobs"):
        raise _bad(
            "'logprobs' is not supported in this form: every answer has the exact ones in onward.sampling.",
            "logprobs",
        )
    if (document.get("response_format") or {"type": "text"}) != {"type": "text"}:
        raise _bad("'response_format' other than text is not supported: leave it out.", "response_format")
    if document.get("modalities") not in (None, ["text"]):
        raise _bad("'modalities' other than text are not supported: leave it out.", "modalities")
    if not isinstance(document.get("stream_options") or {}, dict):
        raise _bad("'stream_options' must be an object.", "stream_options")


def _messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given or len(given) > MAX_MESSAGES:
        raise _bad(f"'messages' must be a list of 1 to {MAX_MESSAGES} messages.", "messages")
    messages = []
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise _bad(f"{where} must have a role: system, user, assistant or tool.", where)
        calls = _calls(message.get("tool_calls"), where) if message["role"] == "assistant" else []
        content = message.get("content")
        text = "" if calls and content is None else _text(content, where)
        kept: dict[str, Any] = {"role": ROLES[message["role"]], "content": text}
        if calls:
            kept["tool_calls"] = calls
        if message["role"] == "tool" and isinstance(message.get("tool_call_id"), str):
            kept["tool_call_id"] = message["tool_call_id"]
        messages.append(kept)
    return messages


def _calls(given: Any, where: str) -> list[dict[str, Any]]:
    if given is None:
        return []
    place = f"{where}.tool_calls"
    if not isinstance(given, list):
        raise _bad(f"{place} must be a list.", place)
    calls = []
    for call in given:
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if not isinstance(name, str) or not isinstance(arguments, str):
            raise _bad(f"{place} must hold functions with a name and arguments as JSON text.", place)
        _encodable(name + arguments, place)
        calls.append(
            {
                "id": str(call.get("id") or ""),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
        )
    return calls


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
    return _encodable(text, f"{where}.content")


def _encodable(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _bad(f"{where} holds half of a surrogate pair.", where) from None
    return text


def _flag(document: dict[str, Any], name: str, default: bool) -> bool:
    value = document.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _bad(f"{name!r} must be true or false.", name)
    return value


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


def completion(generation: Generation, said: Said, onward: dict[str, Any], created: int) -> dict[str, Any]:
    """Returns the answer to a chat request; ``onward`` is Onward's own part of it."""
    message: dict[str, Any] = {"role": "assistant", "content": said.content}
    reason = generation.sampling["finish_reason"]
    if said.calls:
        message["tool_calls"] = [call.document() for call in said.calls]
        reason = "tool_calls"
    return {
        "id": f"chatcmpl-{generation.sampling['generation_id']}",
        "object": "chat.completion",
        "created": created,
        "model": onward["model_id"],
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": generation.usage,
        "onward": onward,
    }
