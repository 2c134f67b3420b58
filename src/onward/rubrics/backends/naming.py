"""Backends by the name that a user gives: ``openai:NAME``, ``vllm:NAME@URL``, ``sglang:NAME@URL``,
``local:FOLDER``."""

from __future__ import annotations

from onward.errors import ConfigError
from onward.rubrics.backends.base import MAX_TOKENS, Backend
from onward.rubrics.backends.chat import DIALECTS, ChatBackend
from onward.spelling import closest_name

LOCAL = "local"
KINDS = (LOCAL, *DIALECTS)


def open_backend(name: str, *, max_tokens: int = MAX_TOKENS) -> Backend:
    """Returns the backend of ``name``. Raises ConfigError for a name of no backend."""
    kind, colon, rest = name.partition(":")
    model, _, url = rest.partition("@")
    if kind == LOCAL and rest:
        from onward.rubrics.backends.local import VLLMInterface  # loads torch

        return VLLMInterface(rest, max_tokens=max_tokens)
    if kind in DIALECTS and model:
        if url and not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"The model {name!r} has the address {url!r}: give one such as http://host:8000/v1."
            )
        return ChatBackend(kind, model, url, max_tokens=max_tokens)
    near = closest_name(kind, KINDS) if colon and kind not in KINDS else None
    forms = "give openai:NAME, vllm:NAME@URL, sglang:NAME@URL or local:FOLDER."
    raise ConfigError(f"{name!r} is no model: {f'did you mean {near}:?' if near else forms}")
