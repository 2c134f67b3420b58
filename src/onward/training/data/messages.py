"""Messages and tools of a record, in any variant of OpenAI's format, brought into the one form that the chat
template gets at the gateway. Pure.

Call arguments become objects, a list of text parts one text, a ``function_call`` a tool call. What no text
can stand for (a picture, a sound) is a reason to leave a record out; what is no message at all is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from onward.errors import ConfigError
from onward.lm.tool_words import with_objects

Message = dict[str, Any]
ROLES = {"developer": "system", "function": "tool"}
"""Names of a role that another one replaces, as at the gateway."""
_TEXT_PARTS = ("text", "input_text", "output_text")


class LeftOutError(Exception):
    """A record that cannot be used. ``reason`` is the name that it is counted under."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def messages_of(where: str, given: object) -> list[Message]:
    """Returns ``given`` in the common form. ``where`` names the record. Raises ConfigError for anything but
    messages, LeftOutError (``not_text``) for contents that are no text."""
    if not isinstance(given, list):
        raise ConfigError(f"{where} has messages that are not a list of {{role, content}} with texts.")
    return with_objects([_message(f"{where} message {n},", one) for n, one in enumerate(given, 1)])


def tools_of(where: str, tools: object, functions: object = None) -> list[dict[str, Any]]:
    """Returns the offered tools; they may be JSON text, or ``functions``, the older form. Raises
    ConfigError."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError:
            tools = tools or None
    if not tools and isinstance(functions, list):
        tools = [{"type": "function", "function": one} for one in functions]
    offered = tools or []
    if not isinstance(offered, list) or not all(_is_function(tool) for tool in offered):
        raise ConfigError(
            f"{where} has tools that are not a list of {{type, function: {{name, parameters}}}}: give them "
            f"as the chat API takes them."
        )
    return offered


def problem(messages: Sequence[Message]) -> str | None:
    """Returns the reason for which a conversation cannot be learnt from, or None.

    ``no_answer``: the assistant has no message after the first one. ``answers_in_a_row``: two answers with
    nothing between them. ``empty_answer``: the last answer has neither a text nor a call.
    """
    roles = [message["role"] for message in messages]
    if "assistant" not in roles[1:]:
        return "no_answer"
    if any(roles[n] == roles[n + 1] == "assistant" for n in range(1, len(roles) - 1)):
        return "answers_in_a_row"
    last = messages[len(roles) - 1 - roles[::-1].index("assistant")]
    return None if last["content"].strip() or last.get("tool_calls") else "empty_answer"


def _message(where: str, given: object) -> Message:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise ConfigError(f"{where} is not a message: give messages that are a list of {{role, content}}.")
    calls = _calls(where, given)
    text = _text(where, given.get("content"), absent=bool(calls) or given["role"] == "assistant")
    if not text and not calls and isinstance(given.get("refusal"), str):
        text = given["refusal"]
    kept: Message = {"role": ROLES.get(given["role"], given["role"]), "content": text}
    if calls:
        kept["tool_calls"] = calls
    for name in ("tool_call_id", "name"):
        if kept["role"] == "tool" and isinstance(given.get(name), str):
            kept[name] = given[name]
    weight = given.get("weight", 1)
    if weight not in (0, 1):
        raise ConfigError(f"{where} has a weight other than 0 and 1: give one of them, or leave it out.")
    if weight == 0:
        kept["weight"] = 0
    return kept


def _calls(where: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls = given.get("tool_calls")
    if not calls and given.get("function_call"):
        calls = [{"type": "function", "function": given["function_call"]}]
    if not calls:
        return []
    if not isinstance(calls, list) or not all(_is_function(call) for call in calls):
        raise ConfigError(
            f"{where} has tool_calls that are not a list of {{type, function: {{name, arguments}}}}: give "
            f"messages as the chat API takes them."
        )
    return [
        {
            "id": str(call.get("id") or ""),
            "type": "function",
            "function": {
                "name": call["function"]["name"],
                "arguments": call["function"].get("arguments") or "{}",
            },
        }
        for call in calls
    ]


def _text(where: str, content: object, *, absent: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None and absent:
        return ""
    if isinstance(content, list) and all(isinstance(part, str | dict) for part in content):
        return "".join(_part(part) for part in content)
    raise ConfigError(
        f"{where} has neither a text nor tool calls: give messages that are a list of {{role, content}} with "
        f"texts."
    )


def _part(part: str | dict[str, Any]) -> str:
    if isinstance(part, str):
        return part
    if part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
        return part["text"]
    if part.get("type") == "refusal" and isinstance(part.get("refusal"), str):
        return part["refusal"]
    raise LeftOutError("not_text")


def _is_function(given: object) -> bool:
    function = given.get("function") if isinstance(given, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)
