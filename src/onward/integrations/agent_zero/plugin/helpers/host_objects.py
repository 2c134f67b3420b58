"""Facts read from Agent Zero's own objects: chats, agents and messages, of all versions that are supported.

Invariant: nothing here raises for an object that lacks a field, and nothing changes one.
"""

from __future__ import annotations

from typing import Any


def kind(context: Any) -> str:
    """Returns the kind of a chat, such as "user" or "background"."""
    found = getattr(context, "type", None)
    return str(getattr(found, "value", found) or "user")


def parent_chat(context: Any) -> str:
    """Returns the chat that a parallel job belongs to; newer versions run each job in a chat of its own."""
    data = getattr(context, "data", None)
    if not isinstance(data, dict):
        return ""
    return str(data.get("_parallel_parent_context_id") or data.get("parent_context_id") or "")


def can_be_stopped(context: Any) -> bool:
    """Returns whether a chat has a task of its own that runs. The chat of a subordinate has none: to stop it
    stops nothing."""
    task = getattr(context, "task", None)
    is_alive = getattr(task, "is_alive", None)
    return bool(is_alive()) if callable(is_alive) else task is not None


def trigger(agent: Any) -> Any:
    """Returns the message that a run answers: the latest of the history. After a restart this is the result
    of a subordinate, and not a message of the user."""
    current = getattr(getattr(agent, "history", None), "current", None)
    messages = getattr(current, "messages", None)
    return messages[-1] if messages else getattr(agent, "last_user_message", None)


def runs_unknown_tool(agent: Any) -> bool:
    """Returns whether the tool that runs is Agent Zero's stand-in for an unknown one. Its answer lists those
    that exist."""
    tool = getattr(getattr(agent, "loop_data", None), "current_tool", None)
    return type(tool).__name__ == "Unknown"
