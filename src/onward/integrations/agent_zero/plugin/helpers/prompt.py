"""Finds the new part of a prompt since the previous call of the same agent.

Agent Zero rebuilds the whole prompt for each call, from a history that it also compresses in place. Its last
message of the user carries extras (date, memories) that are gone in the next call. So a prompt continues the
previous one if all messages before the last are equal, and the last one still begins like before, or begins
the earlier one.
"""

from __future__ import annotations

from typing import Any

Line = tuple[str, Any]
"""Role and content of one message."""
_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}


def lines(messages: Any) -> list[Line]:
    """Returns role and content of LangChain's messages. Contents are shared, not copied."""
    found: list[Line] = []
    for message in messages or ():
        kind = getattr(message, "type", "human")
        found.append((_ROLES.get(kind, kind), getattr(message, "content", message)))
    return found


def new_lines(before: list[Line], now: list[Line]) -> tuple[list[Line], bool]:
    """Returns the messages of ``now`` that the model has not seen yet, without its own answer, and whether
    the history between the two calls was rewritten; then the whole prompt is new."""
    if not before:
        return list(now), False
    changed: list[Line] = []
    first_before, first_now = before, now
    if before[0][0] == "system" and now and now[0][0] == "system":
        if before[0][1] != now[0][1]:
            changed = [now[0]]
        first_before, first_now = before[1:], now[1:]
    last = len(first_before) - 1
    if last < 0:
        return [*changed, *first_now], False
    if len(first_now) <= last or first_now[:last] != first_before[:last]:
        return list(now), True
    if not _continues(first_before[last], first_now[last]):
        return list(now), True
    rest = first_now[last + 1 :]
    if rest and rest[0][0] == "assistant":
        rest = rest[1:]
        if not _is_part(first_now[last], first_before[last]):
            rest = [first_now[last], *rest]
    elif not rest and first_now[last] != first_before[last]:
        rest = [first_now[last]]
    return [*changed, *rest], False


def _continues(before: Line, now: Line) -> bool:
    """Returns whether two messages are the same but for what was appended to one of them."""
    if before[0] != now[0]:
        return False
    old, new = before[1], now[1]
    if old == new:
        return True
    if isinstance(old, str) and isinstance(new, str):
        return _same_beginning(old, new)
    return isinstance(old, list) and isinstance(new, list) and bool(new) and old[:1] == new[:1]


def _is_part(now: Line, before: Line) -> bool:
    """Returns whether the model has seen all of a message before."""
    if isinstance(now[1], str) and isinstance(before[1], str):
        return before[1].startswith(now[1])
    return now == before


def _same_beginning(old: str, new: str) -> bool:
    """The message proper comes first and is the same; the extras behind it differ."""
    shorter = min(len(old), len(new))
    return shorter > 0 and (old.startswith(new[:shorter]) or old[: shorter // 2] == new[: shorter // 2])
