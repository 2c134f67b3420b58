"""Types of an evaluation suite: the endpoint that answers, the result of an item, the suite.

Invariants: an item that could not be judged has no score, and says whose fault that is. A comparison decides
what it counts as. Two runs with the same seed ask the same items in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible address that answers as one policy."""

    base_url: str
    """Address with the version: ``http://127.0.0.1:8000/v1``."""
    model: str
    key: str = field(repr=False)


@dataclass(frozen=True)
class ItemResult:
    """The judgement of one item."""

    item_id: str
    kind: str
    """Group within the suite, such as a kind of task or a category of harm."""
    score: float | None
    """In [0, 1]; None if the item could not be judged."""
    success: bool
    """True if the item counts as solved."""
    transcript: Sequence[Mapping[str, Any]] = ()
    """Messages of the item with the policy's answers, as ``{"role", "content", …}``."""
    note: str = ""
    """Reason of the judgement, in one sentence."""
    fault: Literal["policy", "judge"] = "policy"
    """Cause of a missing score: the policy (an error, a timeout, an answer that cannot be parsed), or the
    judge and what is around it."""


OnItem = Callable[[ItemResult], None]
"""Called after each item, for progress."""


class Suite(Protocol):
    """A named set of items with its judgement."""

    @property
    def name(self) -> str: ...

    @property
    def purpose(self) -> Literal["benchmark", "safety"]:
        """``benchmark``: counts for the improvement. ``safety``: may only stop a release."""
        ...

    @property
    def size(self) -> int:
        """Number of items."""
        ...

    def digest(self) -> str:
        """Returns the SHA-256 of items and judgement, in hex: equal digests mean comparable results."""
        ...

    async def run(self, policy: Endpoint, *, seed: int, on_item: OnItem | None = None) -> list[ItemResult]:
        """Returns one result per item, in the suite's order. Raises EngineError if the endpoint is away, and
        ConfigError if this machine cannot run the suite."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """A suite that can be played in parts, since each of its items is judged by itself."""

    @property
    def item_ids(self) -> Sequence[str]:
        """Ids of the items, in the suite's order."""
        ...

    def without(self, done: Collection[str]) -> Suite:
        """Returns the suite without these items."""
        ...
