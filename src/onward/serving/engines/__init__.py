"""Engines turn messages into tokens. The gateway knows only this protocol.

An engine answers with the exact ids it saw and sampled; text that must be encoded again is not an answer.
Adapters are named by digest, and ``None`` is the base model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from onward.errors import OnwardError

Messages = Sequence[dict[str, Any]]
"""``[{"role": "system" | "user" | "assistant" | "tool", "content": text}, …]``; an assistant's message may
have ``tool_calls`` (arguments as objects), a tool's a ``tool_call_id``."""


class RequestRefusedError(OnwardError):
    """A request that cannot be served (too long, a role the template refuses). Not an engine failure."""


@dataclass(frozen=True)
class Generation:
    """One answer. ``sampling`` has the fields of ``contracts.Sampling``, not signed yet."""

    text: str
    sampling: dict[str, Any]
    usage: dict[str, int]
    """prompt_tokens, completion_tokens, total_tokens."""


@dataclass(frozen=True)
class Progress:
    """Tokens sampled since the last progress. The first has the ``record``: ``sampling`` without tokens."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    record: dict[str, Any] | None = None


OnProgress = Callable[[Progress], None]


class Engine(Protocol):
    async def generate(
        self,
        messages: Messages,
        *,
        session_id: str,
        adapter: str | None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        tools: Sequence[dict[str, Any]] = (),
        on_progress: OnProgress | None = None,
    ) -> Generation:
        """Returns one answer. ``temperature`` 0 is greedy.

        ``max_tokens`` None means the free context, at most a few hundred. ``tools`` are shown to the model,
        by its template or in words; its answer is text either way. ``on_progress`` is called while tokens
        arrive; its texts, joined, are a prefix of the answer's text. An engine without progress never calls
        it. Cancelling the call ends the sampling.

        Raises RequestRefusedError (the caller's fault) or EngineError (the engine's, or an adapter that is
        not currently loaded).
        """
        ...

    async def load_adapter(self, digest: str, folder: Path) -> None:
        """Verifies and loads. Idempotent. Raises TamperedError, EngineError."""
        ...

    async def unload_adapter(self, digest: str) -> None:
        """Releases an adapter. An unknown digest is no error."""
        ...

    async def adapters(self) -> list[str]:
        """Returns the digests that are loaded and were checked against their files."""
        ...

    async def health(self) -> dict[str, Any]:
        """Returns at least ``base_digest``, ``adapters``, ``running``. Raises EngineError if away."""
        ...
