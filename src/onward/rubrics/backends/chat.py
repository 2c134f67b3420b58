"""Structured answers of a server with the chat API of OpenAI: OpenAI itself, vLLM, SGLang, and others.

The request has ``response_format = json_schema``, which all of them enforce; the fields of their own for a
schema change from version to version. An answer that is not of the type is asked for once more, with the
problem and the next seed; a refusal and a truncated answer are errors at once. Outages are tried again with
pauses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx
from pydantic import BaseModel

from onward.errors import EngineError, hide_login
from onward.rubrics.backends.base import (
    MAX_TOKENS,
    AnswerT,
    ModelAnswerError,
    RefusedAnswerError,
    TruncatedAnswerError,
    Usage,
    read_answer,
)
from onward.rubrics.backends.posting import key_header, post

SECONDS = 120.0
_SHOWN = 200
NO_TEXT = "(no text)"
"""Stands for an empty answer in a conversation: servers refuse a message without text."""
_NOT_UNDERSTOOD = frozenset((400, 422))
"""Status of a request that the server read and refuses, for example for a keyword of its schema."""
_REASONING = ("reasoning", "reasoning_content")
"""Fields with a reasoning model's thoughts: vLLM's, and SGLang's and older vLLM's."""
_UNFINISHED = frozenset(("abort", "error"))
"""Reasons for an end that is the server's fault."""


@dataclass(frozen=True)
class Dialect:
    """Differences from server to server."""

    address: str
    """Address where none is given."""
    key_variable: str
    """Environment variable with the key."""
    limit: str = "max_tokens"
    """Name of the limit of an answer."""
    strict: bool | None = None
    """Value of ``strict`` in the format; None: it is left out."""


DIALECTS = {
    "openai": Dialect("https://api.openai.com/v1", "OPENAI_API_KEY", "max_completion_tokens", strict=True),
    "vllm": Dialect("http://127.0.0.1:8000/v1", "VLLM_API_KEY"),
    "sglang": Dialect("http://127.0.0.1:30000/v1", "SGLANG_API_KEY"),
}
"""Kind of server → its dialect."""


class ChatBackend:
    """A model behind a chat API: ``async with ChatBackend("vllm", "qwen", url) as backend``."""

    def __init__(
        self,
        kind: str,
        model: str,
        url: str = "",
        *,
        key: str | None = None,
        max_tokens: int = MAX_TOKENS,
        least_pause: float = 0.5,
        most_pause: float = 8.0,
    ) -> None:
        """``kind``: one of ``DIALECTS``. ``key``: None takes it from the environment. Raises ConfigError for
        a key together with a login in the address."""
        dialect = DIALECTS[kind]
        self.name, self.usage = f"{kind}:{model}", Usage()
        self._dialect, self._model, self._max_tokens = dialect, model, max_tokens
        self._pauses = (least_pause, most_pause)
        self._url = f"{(url or dialect.address).rstrip('/')}/chat/completions"
        self._shown = hide_login(self._url)
        key = os.environ.get(dialect.key_variable, "") if key is None else key
        self._key = key
        self._headers = key_header(self._url, key)
        self._http: httpx.AsyncClient | None = None

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(headers=self._headers, timeout=SECONDS, trust_env=False)

    async def __aenter__(self) -> ChatBackend:
        """Keeps connections open until the end of the block. Without a block each request has its own."""
        self._http = self._client()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def generate_structured(
        self,
        system_prompt: str,
        user_prompt: str,
        response_type: type[AnswerT],
        temperature: float = 1.0,
        seed: int = 0,
    ) -> AnswerT:
        """Returns an answer of ``response_type``; asks twice. Raises ModelAnswerError and EngineError."""
        messages = [_said_by("system", system_prompt), _said_by("user", user_prompt)]
        text = await self._answer(messages, response_type, temperature, seed)
        try:
            return read_answer(text, response_type)
        except ModelAnswerError as error:
            told = f"This answer is not valid ({error.problem}). Answer again, with valid JSON alone."
        messages += [_said_by("assistant", text or NO_TEXT), _said_by("user", told)]
        return read_answer(await self._answer(messages, response_type, temperature, seed + 1), response_type)

    async def answer(self, prompt: str, *, model: str = "", seed: int = 0) -> str:
        """Returns the whole text of an answer to a prompt without a type: what a judge rule needs. ``model``
        is not used: a backend has its own."""
        body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0.0, "seed": seed}
        return self._read(await self._post(body))

    async def _answer(
        self,
        messages: Sequence[dict[str, str]],
        response_type: type[BaseModel],
        temperature: float,
        seed: int,
    ) -> str:
        form: dict[str, Any] = {
            "name": response_type.__name__,
            "schema": response_type.model_json_schema(),
        }
        if self._dialect.strict is not None:
            form["strict"] = self._dialect.strict
        body = {
            "messages": list(messages),
            "temperature": temperature,
            "seed": seed,
            "response_format": {"type": "json_schema", "json_schema": form},
        }
        return self._read(await self._post(body))

    def _read(self, document: Any) -> str:
        """Returns the text of a completion, and counts its tokens."""
        try:
            choice, usage = document["choices"][0], document.get("usage") or {}
            message = choice["message"]
            self.usage.prompt_tokens += int(usage.get("prompt_tokens") or 0)
            self.usage.completion_tokens += int(usage.get("completion_tokens") or 0)
            refusal, text, reason = message.get("refusal"), _text(message), choice["finish_reason"]
        except (LookupError, TypeError, ValueError, AttributeError):
            raise EngineError(
                f"{self._shown} answered something else than a chat completion: check the address."
            ) from None
        if refusal or reason == "content_filter":
            said = str(refusal or "its content filter stopped it")[:_SHOWN]
            raise RefusedAnswerError(
                f"{self._model} refused to answer ({said}): change the brief, or use another model."
            )
        if reason == "length":
            raise TruncatedAnswerError(
                f"The answer of {self._model} was cut off after {self._max_tokens} tokens: allow more with "
                "max_tokens."
            )
        if reason in _UNFINISHED:
            raise EngineError(
                f"The server at {self._shown} ended the answer of {self._model} ({reason}): see its log."
            )
        return text

    async def _post(self, body: dict[str, Any]) -> Any:
        full = {"model": self._model, self._dialect.limit: self._max_tokens, **body}
        remedy = f"check the address, the name of the model and the key in {self._dialect.key_variable}"
        try:
            return (await post(lambda: self._sent(full), self._pauses)).json()
        except httpx.HTTPStatusError as error:
            reason = f"status {error.response.status_code}: {self._said(error.response)}"
            if error.response.status_code in _NOT_UNDERSTOOD:
                remedy = "change what it names, or use another server"
        except httpx.RequestError as error:
            reason = type(error).__name__
        except ValueError:
            reason = "no JSON"
        raise EngineError(f"The model {self._model} at {self._shown} gave no answer ({reason}): {remedy}.")

    async def _sent(self, body: dict[str, Any]) -> httpx.Response:
        self.usage.requests += 1
        if self._http is not None:
            return await self._http.post(self._url, json=body)
        async with self._client() as client:
            return await client.post(self._url, json=body)

    def _said(self, response: httpx.Response) -> str:
        """Returns what a server says about an error, shortened, and without the key: some repeat it."""
        try:
            document = response.json()
            error = document.get("error") or document.get("message") or {}
            text = str(error.get("message", error) if isinstance(error, dict) else error)
        except (ValueError, AttributeError):
            text = response.text
        return (text.replace(self._key, "the key") if self._key else text)[:_SHOWN]


def _said_by(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _text(message: Mapping[str, Any]) -> str:
    """Returns the text of a message. Servers with a parser of thoughts take an answer without any for
    thoughts (sgl-project/sglang#14821): JSON there is the answer if there is no other."""
    if text := message.get("content"):
        return str(text)
    thoughts = next((str(message[name]) for name in _REASONING if message.get(name)), "")
    return thoughts if thoughts.lstrip().startswith("{") else ""
