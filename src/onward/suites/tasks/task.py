"""The form of a benchmark task: items that are played with a policy, and judged by a program."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Protocol

Messages = list[dict[str, str]]
Complete = Callable[[Messages], Awaitable[str]]
"""``await complete(messages) -> text``: one answer of the policy under test."""


@dataclass(frozen=True)
class Judgement:
    """The judgement of an item's answers."""

    score: float
    note: str

    @property
    def success(self) -> bool:
        return self.score == 1.0


@dataclass(frozen=True)
class Item:
    """One item. ``reference`` and ``wrong`` are answers that score 1 and 0, in the order of the turns."""

    item_id: str
    kind: str
    messages: tuple[Mapping[str, str], ...]
    reference: tuple[str, ...]
    wrong: tuple[str, ...]
    play: Callable[[Messages, Complete], Awaitable[Judgement]]
    """Asks the policy until the item ends. Appends answers and tool results to the messages."""


class Task(Protocol):
    """A benchmark task."""

    @property
    def name(self) -> str: ...

    @property
    def max_tokens(self) -> int:
        """Limit for one answer."""
        ...

    def items(self) -> Sequence[Item]: ...

    async def check(self) -> None:
        """Raises ConfigError if this machine cannot judge the items."""
        ...

    def digest(self) -> str:
        """Returns the SHA-256 of items and judgement, in hex."""
        ...


def rows(name: str) -> list[dict[str, Any]]:
    """Returns the objects of a shipped file of JSON lines."""
    text = files("onward.suites.tasks").joinpath("data", f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def digest_of(*modules: str, data: Sequence[str] = (), more: str = "") -> str:
    """Returns the SHA-256 of modules of this package, shipped data, and a text."""
    hasher = hashlib.sha256(more.encode())
    folder = files("onward.suites.tasks")
    for module in modules:
        hasher.update(folder.joinpath(f"{module}.py").read_bytes())
    for name in data:
        hasher.update(folder.joinpath("data", f"{name}.jsonl").read_bytes())
    return hasher.hexdigest()


async def ask(messages: Messages, complete: Complete) -> str:
    """Asks the policy once, and appends its answer."""
    answer = await complete(messages)
    messages.append({"role": "assistant", "content": answer})
    return answer
