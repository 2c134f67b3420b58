"""Reads an answer of Agent Zero's language model: one JSON object with thoughts, a tool and its arguments.

Agent Zero reads it with a tolerant parser of its own. Here the strict one tries the text between the first
and the last brace; tool and arguments come from the host, so only thoughts depend on it.
"""

from __future__ import annotations

from typing import Any

from onward.capture.conversations.turns import CALL_DEPTH
from onward.contracts import decode_document
from onward.errors import ContractError

DELEGATIONS = frozenset({"call_subordinate", "delegate"})
_MEMORY = "memory_"


def read(response: str) -> dict[str, Any]:
    """Returns the object in an answer; an empty one if it has none."""
    first, last = response.find("{"), response.rfind("}")
    if first < 0 or last <= first:
        return {}
    try:
        found = decode_document(response[first : last + 1].encode(), max_depth=CALL_DEPTH)
    except (ContractError, UnicodeEncodeError):
        return {}
    return found if isinstance(found, dict) else {}


def thoughts(answer: dict[str, Any], reasoning: str) -> list[str]:
    """Returns the model's reasoning, then the thoughts that it wrote down."""
    told = answer.get("thoughts", answer.get("thought"))
    written = [told] if isinstance(told, str) else told if isinstance(told, list) else []
    return [one for one in (reasoning, *map(_text, written)) if one]


def kind_of(tool: str) -> str:
    """Returns the type of an action by the name of its tool."""
    if tool == "response":
        return "response"
    if tool in DELEGATIONS:
        return "subordinate_call"
    return "memory_update" if tool.startswith(_MEMORY) and tool != "memory_load" else "tool_call"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
