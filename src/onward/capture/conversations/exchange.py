"""Converts one exchange, a request with its answer, into turns: one for each tool call and each answer. Pure.

Wrapped clients, LangChain and the gateway share it, so their trajectories have the same form.

Invariants: all content of the prompt goes into the document (system text, tool schemas, history). The
redactor cannot find in the token ids what it does not see as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onward.capture.attachments import shown
from onward.capture.conversations.content import is_text, text_of
from onward.capture.conversations.turns import plain

Message = Mapping[str, Any]
WRITTEN = ""
"""Id of a call that was written as text, as Agent Zero does."""
_OBSERVED = {
    "user": "user_message",
    "tool": "tool_result",
    "function": "tool_result",
    "system": "system_message",
    "developer": "system_message",
}


def request_observation(new: Sequence[Message], tools: Any) -> dict[str, Any]:
    """Returns the observation of a request: a single new message as its text, several unchanged. ``tools``
    are those that it offers, or None if they are the same as before."""
    alone = len(new) == 1 and not new[0].get("tool_calls") and is_text(new[0].get("content"))
    shown: dict[str, Any] = {
        "type": _OBSERVED.get(str(new[-1].get("role")), "user_message"),
        "content": text(new[0].get("content")) if alone else {"messages": list(new)},
    }
    if tools is not None:
        listed = map(name_of, tools if isinstance(tools, list) else [])
        names = [name for name in listed if name is not None]
        shown["context"] = {"available_tools": names, "tools": tools}
    return shown


def answer(
    seen: dict[str, Any], action: Mapping[str, Any], calls: Sequence[Mapping[str, Any]], first: int
) -> list[dict[str, Any]]:
    """Returns the turns of an answer, without results: ``calls`` are the actions of its tool calls,
    ``action`` the fields of the whole answer, for its first turn alone, which has the number ``first``."""
    if not calls:
        return [{"observation": seen, "action": dict(action)}]
    whole = {**action, **calls[0]}
    if len(calls) > 1:
        whole["parallel_calls"] = [
            {name: one[name] for name in ("tool_name", "tool_args")} for one in calls[1:]
        ]
    same = {"type": seen["type"], "content": {"same_as_turn": first}}
    beside = [{"observation": dict(same), "action": dict(one)} for one in calls[1:]]
    return [{"observation": seen, "action": whole}, *beside]


def results(waiting: Sequence[str], new: Sequence[Message]) -> dict[int, str]:
    """Returns the results that new messages report: index of the waiting call → text. They are matched by the
    ids in ``waiting``, the rest in order. A written call takes the next message of the user as its result."""
    told = [message for message in new if message.get("role") in ("tool", "function")]
    if not told and list(waiting) == [WRITTEN]:
        told = [message for message in new if message.get("role") == "user"][:1]
    places = {name: index for index, name in enumerate(waiting)}
    found: dict[int, str] = {}
    unnamed = []
    for message in told:
        place = places.get(message.get("tool_call_id") or "")
        if place is None or place in found:
            unnamed.append(message)
        else:
            found[place] = text(message.get("content"))
    free = [index for index in range(len(waiting)) if index not in found]
    found |= {index: text(message.get("content")) for index, message in zip(free, unnamed, strict=False)}
    return found


def instructions(messages: Sequence[Message]) -> str:
    """Returns the user's request: the last user message, else the last message."""
    asked = [message for message in messages if message.get("role") == "user"] or list(messages[-1:])
    return text(asked[-1].get("content")) if asked else ""


def text(content: Any) -> str:
    """Returns a message's content as text. A picture becomes its note, any other part JSON."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, (list, tuple)):
        return _shown(content)
    return ("" if is_text(content) else "\n").join(map(_shown, content))


def _shown(part: Any) -> str:
    told = text_of(part)
    return shown(plain(part)) if told is None else told


def name_of(tool: Any) -> str | None:
    """Returns the name of the function of a tool or a call; None if there is none."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None
