"""Asks a policy at its endpoint, and plays items, as every suite of this package does: so many at once.

Invariants: the seed of an answer depends on the run's seed, the item and the turn alone, so two policies meet
the same random numbers. A policy that is away raises; a request that it refuses is an answer of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import httpx

from onward.errors import EngineError
from onward.suites.suite import Endpoint, ItemResult, OnItem

T = TypeVar("T")
AT_ONCE = 64
SECONDS = 600.0
"""Longest wait for one answer."""


@dataclass(frozen=True)
class Answer:
    """One answer: its text, and its tool calls in the form of the chat API."""

    text: str
    calls: tuple[Mapping[str, Any], ...] = ()
    refused: str = ""
    """Reason why the policy did not answer, such as a prompt longer than its context; empty if it did."""

    def message(self) -> dict[str, Any]:
        """Returns the answer as a message of the conversation."""
        said: dict[str, Any] = {"role": "assistant", "content": self.text}
        return {**said, "tool_calls": list(self.calls)} if self.calls else said


def seed_of(seed: int, item_id: str, turn: int) -> int:
    """Returns the seed of one answer."""
    text = f"{seed}:{item_id}:{turn}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


async def play_each(
    items: Iterable[T],
    play: Callable[[T], Awaitable[ItemResult]],
    *,
    at_once: int = AT_ONCE,
    on_item: OnItem | None = None,
) -> list[ItemResult]:
    """Plays the items, at most ``at_once`` of them at a time. Results have the order of the items."""
    free = asyncio.Semaphore(at_once)

    async def one(item: T) -> ItemResult:
        async with free:
            result = await play(item)
        if on_item is not None:
            on_item(result)
        return result

    return list(await asyncio.gather(*(one(item) for item in items)))


class Asker:
    """A client of one endpoint: ``async with Asker(policy, seed=0) as asker: await asker.ask(…)``."""

    def __init__(
        self, policy: Endpoint, *, seed: int, at_once: int = AT_ONCE, max_tokens: int | None = None
    ) -> None:
        """``max_tokens``: limit of one answer; None: the endpoint's own."""
        self._policy, self._seed = policy, seed
        self._limit = {} if max_tokens is None else {"max_tokens": max_tokens}
        self._free = asyncio.Semaphore(at_once)
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {policy.key}"},
            timeout=SECONDS,
            limits=httpx.Limits(max_connections=at_once),
            trust_env=False,
        )

    async def __aenter__(self) -> Asker:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        item_id: str,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        max_tokens: int | None = None,
    ) -> Answer:
        """Returns the next answer in the item's conversation, of ``max_tokens`` at most (None: the endpoint's
        limit). Raises EngineError if the policy is away."""
        body = {
            "model": self._policy.model,
            "messages": list(messages),
            "temperature": 1.0,
            **self._limit,
            "seed": seed_of(self._seed, item_id, len(messages)),
            "user": f"{self._seed}-{item_id}",
            **({"tools": list(tools)} if tools else {}),
            **({} if max_tokens is None else {"max_tokens": max_tokens}),
        }
        async with self._free:
            try:
                response = await self._http.post(f"{self._policy.base_url}/chat/completions", json=body)
            except httpx.RequestError as error:
                raise EngineError(
                    f"The policy under validation did not answer ({type(error).__name__}): try again."
                ) from None
        if response.status_code == 400:
            return Answer("", refused=_reason(response))
        try:
            response.raise_for_status()
            said = response.json()["choices"][0]["message"]
        except (httpx.HTTPStatusError, ValueError, LookupError, TypeError):
            raise EngineError(
                f"The policy under validation answered with {response.status_code}: {_reason(response)}"
            ) from None
        return Answer(said.get("content") or "", tuple(said.get("tool_calls") or ()))


def _reason(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])[:200]
    except (json.JSONDecodeError, LookupError, TypeError):
        return "no reason was given"
