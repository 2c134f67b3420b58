"""Converts LangChain's messages to those of the chat API, without LangChain's own code.

Its own conversion raises for content blocks that it does not know, such as thoughts. Content stays as it is:
``content.py`` reads blocks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_ROLES = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "function",
    "developer": "developer",
}
_BESIDE = ("function_call", "refusal", "reasoning_content", "reasoning", "reasoning_details", "audio")
"""Fields that integrations put into ``additional_kwargs``."""


def chat_message(message: Any) -> dict[str, Any]:
    """Returns a message (``BaseMessage``, or a chunk of one) in the form of the chat API."""
    kind = str(message.type).removesuffix("MessageChunk").lower()
    made: dict[str, Any] = {
        "role": _ROLES.get(kind) or str(getattr(message, "role", None) or "user"),
        "content": message.content,
    }
    beside: Mapping[str, Any] = getattr(message, "additional_kwargs", None) or {}
    made |= {name: beside[name] for name in _BESIDE if beside.get(name)}
    calls = [_call(call) for call in getattr(message, "tool_calls", None) or ()]
    calls += [_call(call) for call in getattr(message, "invalid_tool_calls", None) or ()]
    if calls:
        made["tool_calls"] = calls
        made.pop("function_call", None)
    for name in ("tool_call_id", "name"):
        if isinstance(getattr(message, name, None), str):
            made[name] = getattr(message, name)
    return made


def chat_completion(response: Any) -> dict[str, Any]:
    """Returns an ``LLMResult`` in the form of a chat completion."""
    choices, model, tokens = [], None, 0
    for index, generation in enumerate(response.generations[0]):
        message = getattr(generation, "message", None)
        described: Mapping[str, Any] = getattr(message, "response_metadata", None) or {}
        ended: Mapping[str, Any] = {**described, **(getattr(generation, "generation_info", None) or {})}
        said = {"role": "assistant", "content": generation.text} if message is None else chat_message(message)
        choices.append({"index": index, "message": said, "finish_reason": _reason(ended)})
        model = model or described.get("model_name") or described.get("model")
        tokens = tokens or (getattr(message, "usage_metadata", None) or {}).get("total_tokens") or 0
    return {"model": model, "usage": {"total_tokens": tokens}, "choices": choices}


def _reason(described: Mapping[str, Any]) -> str | None:
    for name in ("finish_reason", "stop_reason", "stopReason", "done_reason", "status"):
        if isinstance(described.get(name), str) and described[name]:
            return described[name]
    return None


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call.get("args")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False, default=str)
    function = {"name": call.get("name") or "", "arguments": arguments}
    return {"id": call.get("id"), "type": "function", "function": function}
