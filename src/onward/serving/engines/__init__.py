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

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        """``param``: the parameter that is at fault, if it is not the messages. ``code``: OpenAI's word."""
        super().__init__(message)
        self.param, self.code = param, code


CONTEXT_EXCEEDED = "context_length_exceeded"


def context_exceeded(
    context: int, prompt: int, wanted: int | None = None, *, at_least: bool = False, param: str = "messages"
) -> RequestRefusedError:
    """Returns the error for a prompt of ``prompt`` tokens, and ``wanted`` of an answer, that do not fit, in
    OpenAI's words: clients look for them. ``at_least``: the prompt has that many or more."""
    about = "at least " if at_least else ""
    if wanted is None:
        had = f"your {param} resulted in {about}{prompt} tokens. Please reduce the length of the {param}."
    else:
        had = (
            f"you requested {prompt + wanted} tokens ({prompt} in the {param}, {wanted} in the completion). "
            f"Please reduce the length of the {param} or completion."
        )
    return RequestRefusedError(
        f"This model's maximum context length is {context} tokens. However, {had}", param, CONTEXT_EXCEEDED
    )


@dataclass(frozen=True)
class AnswerOptions:
    """Options that few calls have. A call without any of them has None in place of this."""

    stop: Sequence[str] = field(default_factory=list)
    """The answer ends with the token that completes one of these; the text keeps what was sampled."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = field(default_factory=dict)
    """Token id, as in JSON, → a number that is added to its logit."""
    top_logprobs: int | None = None
    """Log-probs of the text's tokens, each with so many of the likeliest ones; None: none are wanted."""
    must_call: bool = False
    """The answer calls at least one of ``callable``."""
    parallel: bool = True
    callable: Sequence[str] | None = None
    """Names of the tools that a constrained answer may call; None: all that are shown."""
    schema: dict[str, Any] | None = None
    """JSON schema of an answer that calls nothing."""
    any_object: bool = False
    """True if ``schema`` only asks for some JSON object."""
    prompt: str | Sequence[int] | None = None
    """A raw prompt in place of the messages: no chat template is applied and no answer is continued."""


@dataclass(frozen=True)
class Generation:
    """One answer. ``sampling`` has the fields of ``contracts.Sampling``, not signed yet."""

    text: str
    sampling: dict[str, Any]
    usage: dict[str, int]
    """prompt_tokens, completion_tokens, total_tokens."""
    logprobs: Sequence[dict[str, Any]] = ()
    """With ``top_logprobs``: for each token of the text its ``token``, ``bytes``, ``logprob`` and
    ``top_logprobs`` as in the chat API, and ``at``, the number of characters before it."""


@dataclass(frozen=True)
class Progress:
    """Tokens sampled since the last progress. The first has the ``record``: ``sampling`` without tokens."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    record: dict[str, Any] | None = None
    alternatives: list[dict[str, Any]] = field(default_factory=list)
    """Entries of ``Generation.logprobs``."""


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
        options: AnswerOptions | None = None,
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
