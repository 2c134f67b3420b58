"""A task in progress, and its turns, in the plain values that go to the worker.

A turn is one call of the language model with what was new in its prompt, its answer, the tools that the
answer called, and the warnings and errors that followed. It goes to the worker when a tool begins, and when
the next turn begins.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from .prompt import Line

OMITTED = "[left out: the task is larger than max_trajectory_mb]"


def here() -> object:
    """Returns the coroutine's task, or the thread, that runs now: it distinguishes parallel tools."""
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()


@dataclass
class Call:
    """One tool call."""

    tool: str
    args: Any
    place: object
    began: float = field(default_factory=time.monotonic)
    values: dict[str, Any] = field(default_factory=dict)
    """``result``, ``partial``, ``error``, ``ms``, ``subordinates``."""

    @property
    def is_open(self) -> bool:
        return not self.values.keys() & {"result", "error"} or bool(self.values.get("partial"))

    def end(self, name: str, value: Any, *, partial: bool = False) -> None:
        self.values[name] = value
        self.values.setdefault("ms", round(1000.0 * (time.monotonic() - self.began), 3))
        if partial:
            self.values["partial"] = True
        else:
            self.values.pop("partial", None)

    def document(self) -> dict[str, Any]:
        return {"tool": self.tool, "args": self.args, **self.values}


@dataclass
class TurnDraft:
    """One call of the language model."""

    number: int
    at: float
    new: list[Line]
    values: dict[str, Any] = field(default_factory=dict)
    """``model``, ``response``, ``reasoning``, ``ms``, ``context_break``, ``warnings``, ``messages`` …"""
    calls: list[Call] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    iteration: Any = None
    """Number of the round of the agent's loop."""
    error: Any = None
    """The latest exception."""

    def add(self, name: str, value: Any) -> None:
        self.values.setdefault(name, []).append(value)

    def open_call(self, tool: str | None = None, place: object = None) -> Call | None:
        """Returns the latest call without a result: of this place and name, else of this name."""
        waiting = [call for call in reversed(self.calls) if call.is_open and tool in (None, call.tool)]
        return next((call for call in waiting if call.place == place), waiting[0] if waiting else None)

    def last_call(self, tool: str) -> Call | None:
        return next((call for call in reversed(self.calls) if call.tool == tool), None)

    def document(self) -> dict[str, Any]:
        calls = [call.document() for call in self.calls]
        values = {name: list(one) if isinstance(one, list) else one for name, one in self.values.items()}
        return {"n": self.number, "at": self.at, "new": self.new, "calls": calls, **values}


@dataclass
class Draft:
    """One run of ``Agent.monologue``: a task of the main agent or of a subordinate."""

    trajectory_id: str
    root_id: str
    agent: Any
    context_id: str
    limit: int
    place: object = None
    """Coroutine's task, or thread, that runs it."""
    prompt: list[Line] = field(default_factory=list)
    turn: TurnDraft | None = None
    parallel: TurnDraft | None = None
    """The latest turn that started tools in parallel."""
    helpers: dict[int, TurnDraft] = field(default_factory=dict)
    """Agent that runs a parallel tool → the turn that started it."""
    turns: int = 0
    size: int = 0
    touched: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        """Returns whether the coroutine's task has ended."""
        return isinstance(self.place, asyncio.Task) and self.place.done()

    def fits(self, value: Any) -> Any:
        """Returns ``value``, or a note if the task has become too large. Whole values alone are left out: a
        part of a secret could not be recognised any more."""
        size = weight(value)
        if self.size + size > self.limit and size > 1000:
            return OMITTED
        self.size += size
        return value


def weight(value: Any) -> int:
    """Returns the characters of all texts in ``value``, roughly."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(weight(one) for one in value.values()) + 8 * len(value)
    if isinstance(value, (list, tuple)):
        return sum(map(weight, value)) + 8
    return 8


def copied(value: Any, depth: int = 0) -> Any:
    """Returns a copy of dicts and lists; texts are shared. The host changes the arguments of tools in place:
    it puts secrets in after this copy was made."""
    if depth > 40:
        return str(type(value).__name__)
    if isinstance(value, dict):
        return {str(key): copied(one, depth + 1) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [copied(one, depth + 1) for one in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return f"<{type(value).__name__}>"
