"""Engines: what turns messages into tokens. The gateway knows only this protocol.

An engine answers with the exact ids it saw and sampled; a text that has to be encoded again is not
an answer. Adapters are named by digest, and ``None`` is the base model.
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
    """The caller asked for what cannot be done (too long, a role the template refuses): not a failure."""


@dataclass(frozen=True)
class Generation:
    """One answer. ``sampling`` has the fields of ``contracts.Sampling``, not signed yet."""

    text: str
    sampling: dict[str, Any]
    usage: dict[str, int]
    """prompt_tokens, completion_tokens, total_tokens."""


@dataclass(frozen=True)
class Progress:
    """What was sampled since the last one. The first has the ``record``: ``sampling`` without tokens."""

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
        """``max_tokens`` None: what the context holds, at most a few hundred. ``temperature`` 0 is greedy.

        ``tools`` are shown to the model, by its template or in words; its answer is text either way.
        ``on_progress`` is called while tokens come; texts put together begin the answer's text. An engine
        that cannot tell never calls it. Cancelling the call ends the sampling.

        Raises RequestRefusedError (the caller's fault) or EngineError (the engine's, or an adapter that
        is not loaded).
        """
        ...

    async def load_adapter(self, digest: str, folder: Path) -> None:
        """Verify and load. Idempotent. Raises TamperedError, EngineError."""
        ...

    async def unload_adapter(self, digest: str) -> None:
        """Let go of an adapter; unknown digests are fine."""
        ...

    async def adapters(self) -> list[str]:
        """Digests that are loaded and were checked against their files."""
        ...

    async def health(self) -> dict[str, Any]:
        """At least ``base_digest``, ``adapters``, ``running``. Raises EngineError when away."""
        ...
