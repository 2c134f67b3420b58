"""Finds the open conversation that a request continues, by a hash chain over its messages.

A request continues a conversation if it repeats everything up to its latest answer. Wrapped clients and the
gateway choose the identity of a message themselves, because messages come back to them in different forms.

Invariants: the hashes exist only in memory, so their form may change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar


class OpenConversation(Protocol):
    """An open conversation. ``touched`` is the monotonic time of its latest event."""

    touched: float


T = TypeVar("T", bound=OpenConversation)


def chain(seed: str, identities: Iterable[Any], *, after: bytes | None = None) -> list[bytes]:
    """Returns hashes; ``links[n]`` stands for the first n messages. Chains of two seeds never meet. With
    ``after``, the hash of earlier messages, it is the second of the list and the rest follows it."""
    links = [hashlib.blake2b(seed.encode("utf-8", "surrogatepass"), digest_size=16).digest()]
    if after is not None:
        links.append(after)
    for identity in identities:
        links.append(next_link(links[-1], identity))
    return links


def next_link(link: bytes, identity: Any) -> bytes:
    """Extends a hash by the identity of one message."""
    text = json.dumps(identity, sort_keys=True, default=str)
    return hashlib.blake2b(link + text.encode(), digest_size=16).digest()


class Heads(Generic[T]):
    """Open conversations by the hashes of all their messages up to the latest answer. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, list[T]] = {}
        self._heads: dict[T, frozenset[bytes]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, conversation: T, *heads: bytes) -> None:
        """Replaces the hashes by which a conversation is found."""
        self.forget(conversation)
        self._heads[conversation] = frozenset(heads)
        for head in self._heads[conversation]:
            self._waiting.setdefault(head, []).append(conversation)

    def forget(self, conversation: T) -> None:
        for head in self._heads.pop(conversation, ()):
            here = self._waiting[head]
            here.remove(conversation)
            if not here:
                del self._waiting[head]

    def find(
        self,
        links: Sequence[bytes],
        is_free: Callable[[T], bool],
        distance: Callable[[T], int] = lambda _: 0,
    ) -> T | None:
        """Returns the free conversation that shares most messages; of several the nearest, then the longest
        waiting."""
        for link in reversed(links[1:]):
            free = [one for one in self._waiting.get(link, ()) if is_free(one)]
            if free:
                return min(free, key=lambda one: (distance(one), one.touched))
        return None
