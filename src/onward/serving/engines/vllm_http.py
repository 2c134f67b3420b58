"""The HTTP calls of vLLM's server that Onward makes, with the field names of vLLM's protocol classes.

Errors become EngineError (away, overloaded, wrong key) or RequestRefusedError (the caller's fault). The key
is never part of a message. Closing a connection aborts its request. Checked against vLLM's
``entrypoints/openai/completion/protocol.py`` and ``serve/lora/api_router.py`` of autumn 2026.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx

from onward.errors import EngineError
from onward.lm.request import Alternatives
from onward.serving.engines import CONTEXT_EXCEEDED, RequestRefusedError

TOLD = 200  # characters of a server's message that are passed on
PROBE_SECONDS = 5.0
OnTokens = Callable[[list[int], list[float], list[Alternatives]], None]


class Greedy(NamedTuple):
    """The tokens of a greedy answer, by name (``token_id:5``), and their log-probs."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]

    def distance(self, other: Greedy) -> float:
        """Returns the largest difference in log-probs, up to the first token that differs: from there on the
        two continue different texts."""
        apart = 0.0
        pairs = zip(self.tokens, self.logprobs, other.tokens, other.logprobs, strict=False)
        for mine, here, theirs, there in pairs:
            apart = max(apart, abs(here - there))
            if mine != theirs:
                break
        return apart


class UnknownModelError(EngineError):
    """The server does not know the model or adapter (any more)."""


@dataclass
class Choice:
    """One answer: the parts of a ``CompletionResponseChoice``, joined if it was streamed."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = ""
    prompt_ids: list[int] | None = None
    alternatives: list[Alternatives] = field(default_factory=list)

    def add_part(self, part: dict[str, Any]) -> tuple[list[int], list[float], list[Alternatives]]:
        """Adds one response or stream chunk and returns its new ids, log-probs and likeliest tokens. Raises
        EngineError if ids and log-probs disagree."""
        ids = part.get("token_ids")
        said = part.get("logprobs") or {}
        values = said.get("token_logprobs") or []
        if ids is None or (part.get("prompt_token_ids") is None and self.prompt_ids is None):
            raise EngineError("vLLM answered without token ids: it must be version 0.10.2 or newer.")
        tokens = [f"token_id:{token}" for token in ids]
        if tokens != list(said.get("tokens") or []) or len(values) != len(ids):
            raise EngineError(
                f"vLLM's answer has {len(ids)} token ids that are not the tokens of its {len(values)} "
                f"log-probs: it cannot be used."
            )
        if not all(
            value is not None and -9999.0 < value <= 1e-4 and math.isfinite(value) for value in values
        ):
            raise EngineError("vLLM's answer has a log-prob that is no log-probability: it cannot be used.")
        if part.get("prompt_token_ids") is not None:
            self.prompt_ids = list(part["prompt_token_ids"])
        self.text += part.get("text") or ""
        self.token_ids += ids
        self.logprobs += values
        self.finish_reason = part.get("finish_reason") or self.finish_reason
        best = [_alternatives(one) for one in said.get("top_logprobs") or [{}] * len(ids)]
        self.alternatives += best
        return list(ids), list(values), best

    def finished(self, prompt: Sequence[int]) -> Choice:
        if self.prompt_ids != list(prompt):
            raise EngineError("vLLM sampled from another prompt than it was given: its answer is refused.")
        if self.finish_reason not in ("stop", "length") or not self.token_ids:
            raise EngineError(f"vLLM ended the answer with {self.finish_reason or 'no reason'!r}: try again.")
        return self


class VllmHttp:
    server, setting = "vLLM", "vllm"
    """Name of the server in messages, and of its section in the settings."""
    remedy = "start it with --logprobs-mode processed_logprobs"
    """Cure for log-probs before temperature."""
    key_is = "its --api-key"
    """Value of the setting ``key``, in words."""

    def __init__(self, url: str, key: str = "", *, timeout_seconds: float = 600.0) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(timeout_seconds, connect=PROBE_SECONDS)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._seconds = timeout_seconds
        self._client = httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=timeout, limits=limits, trust_env=False
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def check(self) -> None:
        """Checks ``/health``; on a server in development mode also that it is neither paused nor asleep."""
        response = await self._send("GET", "/health", timeout=PROBE_SECONDS)
        if response.status_code != 200:
            raise EngineError(f"{self.server} at {self.url} is not healthy (HTTP {response.status_code}).")
        for name in ("is_paused", "is_sleeping"):
            response = await self._send("GET", f"/{name}", timeout=PROBE_SECONDS)
            if response.status_code == 200 and response.json().get(name) is True:
                raise EngineError(
                    f"{self.server} at {self.url} {name.replace('_', ' ')}: resume it or wake it up."
                )

    async def models(self) -> list[dict[str, Any]]:
        """Returns ``ModelCard``s: ``id``, ``root``, ``parent`` (of an adapter), ``max_model_len``."""
        return list((await self._json("GET", "/v1/models"))["data"])

    async def complete(
        self, body: dict[str, Any], prompt: Sequence[int], on_tokens: OnTokens | None
    ) -> Choice:
        """Calls ``/v1/completions``, streamed if ``on_tokens`` is given."""
        choice = Choice()
        if on_tokens is None:
            answer = await self._json("POST", "/v1/completions", body)
            choice.add_part(answer["choices"][0])
            return choice.finished(prompt)
        async for event in self._events("/v1/completions", {**body, "stream": True}):
            for part in event.get("choices") or []:
                ids, logprobs, alternatives = choice.add_part(part)
                if ids:
                    on_tokens(ids, logprobs, alternatives)
        return choice.finished(prompt)

    async def top_logprobs(self, model: str, prompt: Sequence[int], temperature: float) -> dict[str, float]:
        """Returns the most probable next tokens at ``temperature``, as the server reports them."""
        answer = await self._json(
            "POST",
            "/v1/completions",
            {
                "model": model, "prompt": list(prompt), "max_tokens": 1, "temperature": temperature,
                "top_p": 1.0, "top_k": 0, "min_p": 0.0, "logprobs": 5, "seed": 0,
                "return_tokens_as_token_ids": True,
            },
        )  # fmt: skip
        return dict(answer["choices"][0]["logprobs"]["top_logprobs"][0])

    async def greedy(self, model: str, prompt: Sequence[int], count: int) -> Greedy:
        """Returns the ``count`` likeliest next tokens, one after the other, and their log-probs."""
        answer = await self._json(
            "POST",
            "/v1/completions",
            {
                "model": model, "prompt": list(prompt), "max_tokens": count, "temperature": 0.0,
                "logprobs": 0, "ignore_eos": True, "repetition_penalty": 1.0,
                "return_tokens_as_token_ids": True,
            },
        )  # fmt: skip
        told = answer["choices"][0]["logprobs"]
        return Greedy(tuple(told["tokens"]), tuple(told["token_logprobs"]))

    async def load_adapter(self, name: str, path: str) -> None:
        """Loads an adapter. Idempotent: a name is a digest, so the same name means the same adapter."""
        response = await self._send("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
        if response.status_code == 200 or "already been loaded" in response.text:
            return
        if detail(response) == "Not Found":
            raise EngineError(
                "vLLM takes no adapters while it runs: start it with --enable-lora and "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True."
            )
        raise EngineError(f"vLLM did not load adapter {name[:12]}: {detail(response)}")

    async def unload_adapter(self, name: str) -> None:
        """Unloads an adapter. One that the server does not know is no error."""
        response = await self._send("POST", "/v1/unload_lora_adapter", {"lora_name": name})
        if response.status_code not in (200, 400, 404):
            raise EngineError(f"vLLM did not unload adapter {name[:12]}: {detail(response)}")

    async def _json(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        response = await self._send(method, path, body)
        self._raise_for(response)
        try:
            return response.json()
        except ValueError:
            raise EngineError(
                f"{self.server}'s answer to {path} is not JSON: is {self.url} such a server?"
            ) from None

    async def _send(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float | None = None
    ) -> httpx.Response:
        try:
            limit = self._client.timeout if timeout is None else timeout
            return await self._client.request(method, path, json=body, timeout=limit)
        except httpx.HTTPError as error:
            raise self._away(error) from None

    async def _events(self, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        try:
            async with self._client.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    self._raise_for(response)
                async for line in response.aiter_lines():
                    data = line.removeprefix("data:").strip()
                    if not line.startswith("data:") or data == "[DONE]":
                        continue
                    event = json.loads(data)
                    if event.get("error"):
                        raise EngineError(f"vLLM failed during the answer: {_message(event)}")
                    yield event
        except httpx.HTTPError as error:
            raise self._away(error) from None
        except ValueError:
            raise EngineError("vLLM sent an event that is not JSON: its answer is refused.") from None

    def _away(self, error: httpx.HTTPError) -> EngineError:
        if isinstance(error, httpx.TimeoutException):
            return EngineError(f"{self.server} at {self.url} did not answer within {self._seconds:g} s.")
        return EngineError(
            f"{self.server} at {self.url} is away ({type(error).__name__}): start it or correct the URL."
        )

    def _raise_for(self, response: httpx.Response) -> None:
        code = response.status_code
        if code == 200:
            return
        told = detail(response)
        if code in (401, 403):
            raise EngineError(
                f"{self.server} at {self.url} refuses the key: set {self.setting}.key to {self.key_is}."
            )
        if code == 404:
            raise UnknownModelError(f"{self.server} does not serve what was asked for: {told}")
        if code in (400, 413, 422):
            is_long = "maximum context length" in told
            raise RequestRefusedError(
                f"{self.server} refuses the request: {told}", code=CONTEXT_EXCEEDED if is_long else None
            )
        raise EngineError(f"{self.server} failed with HTTP {code}: {told}")


def _alternatives(told: dict[str, float] | None) -> Alternatives:
    """Reads the likeliest tokens of one position, named ``token_id:N``; the likeliest first."""
    pairs = [(int(name.removeprefix("token_id:")), value) for name, value in (told or {}).items()]
    return sorted(pairs, key=lambda pair: -pair[1])


def detail(response: httpx.Response) -> str:
    """Returns the message of a refusal."""
    try:
        document = response.json()
    except ValueError:
        is_page = response.text.lstrip().startswith("<")  # an HTML page says nothing more in one line
        return response.reason_phrase or "no reason given" if is_page else response.text[:TOLD]
    return _message(document)


def _message(document: Any) -> str:
    """Reads ``{"error": {"message"}}``, older ``{"message"}``, or FastAPI's ``{"detail"}``."""
    if not isinstance(document, dict):
        return str(document)[:TOLD]
    error = document.get("error")
    inner = error if isinstance(error, dict) else document
    return str(inner.get("message") or inner.get("detail") or error or document)[:TOLD]
