"""Function calls in a chat file of a newer Agent Zero, which stores them in a message's metadata.

With the Responses API the model calls tools in items of their own. The text of the message is then a remark
beside them, or a final answer in plain words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from onward.integrations.agent_zero.worker import action


def items_of(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the stored part of the API's answer; empty for a message of another kind."""
    metadata = message.get("metadata")
    found = metadata.get("responses") if isinstance(metadata, Mapping) else None
    return found if isinstance(found, Mapping) and found.get("mode") == "responses" else {}


def calls_of(message: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Returns tool and arguments of each call in an item of its own."""
    items = items_of(message).get("output_items")
    calls = []
    for item in items if isinstance(items, list) else ():
        if isinstance(item, Mapping) and item.get("type") == "function_call" and item.get("name"):
            calls.append((str(item["name"]), _arguments(item.get("arguments"))))
    return calls


def is_final(message: Mapping[str, Any], text: str) -> bool:
    """Returns whether a message is a final answer in plain words."""
    is_plain = bool(text.strip()) and not action.read(text).get("tool_name")
    return bool(items_of(message)) and is_plain and not calls_of(message)


def reasoning_of(message: Mapping[str, Any]) -> str:
    """Returns the summary of the model's reasoning, which is all that is stored of it."""
    items = items_of(message).get("output_items")
    parts = []
    for item in items if isinstance(items, list) else ():
        summary = (
            item.get("summary") if isinstance(item, Mapping) and item.get("type") == "reasoning" else None
        )
        for part in summary if isinstance(summary, list) else ():
            if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                parts.append(part["text"])
    return "".join(parts)


def _arguments(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}")
        except (ValueError, RecursionError):
            return {"arguments": value}
    return value if isinstance(value, dict) else {"arguments": value}
