"""Any server with OpenAI's chat API as the engine: a closed model, whose answers are only recorded.

No child process and no torch: the server renders the messages and samples. It gives no token ids, and it
takes no adapters, so nothing of it is used in a policy loss and no release can change it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onward.config import Settings
from onward.errors import ConfigError, EngineError
from onward.ids import new_id
from onward.lm.tool_words import arguments_of
from onward.serving.engines import AnswerOptions, Generation, Messages, OnProgress, RequestRefusedError
from onward.serving.engines.capabilities import WITHOUT_TOKENS
from onward.serving.engines.vllm_http import PROBE_SECONDS, VllmHttp

_REASONS = {"length": "length", "max_tokens": "length"}


class ChatHttp(VllmHttp):
    server, setting = "The server of [openai]", "openai"
    key_is = "a key of that server"

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self._json("POST", "/v1/chat/completions", body)

    async def check(self) -> None:
        """Raises EngineError if the server is away or refuses the key. Some servers list no models."""
        response = await self._send("GET", "/v1/models", timeout=PROBE_SECONDS)
        if response.status_code not in (404, 405):
            self._raise_for(response)


class ClosedEngine:
    """See ``Engine``."""

    def __init__(self, http: ChatHttp, model: str) -> None:
        self._http, self._model, self._running = http, model, 0
        self._digest = hashlib.sha256(f"{http.url}\n{model}".encode()).hexdigest()

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
        """Returns one answer, without progress. Its calls are text, in ``<tool_call>`` blocks."""
        if adapter is not None:
            raise _no_adapters(adapter)
        if top_k is not None:
            raise RequestRefusedError("The closed model's API has no 'top_k': leave it out.", "top_k")
        body: dict[str, Any] = {"model": self._model, "messages": [_sent(one) for one in messages]}
        limit = "max_completion_tokens" if "openai.com" in self._http.url else "max_tokens"
        asked = {limit: max_tokens, "seed": seed, "tools": list(tools) or None}
        asked |= {"temperature": temperature if temperature != 1.0 else None}
        asked |= {"top_p": top_p if top_p != 1.0 else None}
        if options is not None:
            asked |= _asked_for(options, bool(tools))
        body |= {name: value for name, value in asked.items() if value is not None}
        self._running += 1
        try:
            answer = await self._http.chat(body)
        finally:
            self._running -= 1
        return self._generation(answer, {"temperature": temperature, "top_p": top_p, "top_k": None})

    async def load_adapter(self, digest: str, folder: Path) -> None:
        raise _no_adapters(digest)

    async def unload_adapter(self, digest: str) -> None:
        """Does nothing: none is ever loaded."""

    async def adapters(self) -> list[str]:
        return []

    async def health(self) -> dict[str, Any]:
        await self._http.check()
        return {"base_digest": self._digest, "adapters": [], "running": self._running}

    async def close(self) -> None:
        await self._http.close()

    def _generation(self, answer: dict[str, Any], asked: dict[str, Any]) -> Generation:
        try:
            choice = answer["choices"][0]
            text, reason = _text(choice["message"]), str(choice.get("finish_reason"))
            used = {
                name: int((answer.get("usage") or {}).get(name) or 0)
                for name in ("prompt_tokens", "completion_tokens")
            }
            entries = _with_places((choice.get("logprobs") or {}).get("content") or [])
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            raise EngineError(
                f"{self._http.server} at {self._http.url} sent no chat completion: does it have OpenAI's API?"
            ) from None
        sampling = {
            "generation_id": new_id(), **asked, **WITHOUT_TOKENS,
            "finish_reason": _REASONS.get(reason, "stop"), "model_digest": self._digest,
        }  # fmt: skip
        return Generation(text, sampling, {**used, "total_tokens": sum(used.values())}, entries)


class ClosedProcess:
    """The engine's life, with the surface of ``EngineProcess``; there is no process to keep alive."""

    keeper = None

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigError for an address or a model that is missing."""
        given = settings.openai
        for name in ("url", "model"):
            if not getattr(given, name):
                raise ConfigError(
                    f'model.engine is "openai" and openai.{name} is empty: give the address of the server '
                    f"and the name of its model."
                )
        http = ChatHttp(given.url, given.key.get_secret_value(), timeout_seconds=given.timeout_seconds)
        self.engine = ClosedEngine(http, given.model)

    async def start(self) -> ClosedEngine:
        """Raises EngineError for a server that is away or refuses the key."""
        await self.engine.health()
        return self.engine

    async def stop(self) -> None:
        await self.engine.close()


def _no_adapters(digest: str) -> EngineError:
    return EngineError(
        f"Adapter {digest[:12]} cannot be loaded: model.engine is 'openai', a closed model takes none."
    )


def _sent(message: dict[str, Any]) -> dict[str, Any]:
    """Returns a message in the API's form, where the arguments of a call are JSON in a text."""
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "type": "function", "function": _function(call["function"])}
        for call in message["tool_calls"]
    ]
    return {**message, "content": message.get("content") or None, "tool_calls": calls}


def _function(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return {"name": function["name"], "arguments": text}


def _text(message: dict[str, Any]) -> str:
    """Returns the words and the calls of an answer as one text, which ``read_answer`` reads again."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    blocks = [
        json.dumps({"name": one["name"], "arguments": arguments_of(one)}, ensure_ascii=False) for one in calls
    ]
    blocks = [block.replace("tool_call>", "tool_call\\u003e") for block in blocks]  # an argument's own words
    said = str(message.get("content") or message.get("refusal") or "")
    return "\n".join(
        [*([said] if said or not blocks else []), *(f"<tool_call>{b}</tool_call>" for b in blocks)]
    )


def _asked_for(options: AnswerOptions, has_tools: bool) -> dict[str, Any]:
    """Returns the fields of what few calls ask for. Raises RequestRefusedError for a raw prompt."""
    if options.prompt is not None:
        raise RequestRefusedError("A closed model takes messages alone: use /v1/chat/completions.", "prompt")
    asked: dict[str, Any] = {
        "stop": list(options.stop) or None,
        "presence_penalty": options.presence_penalty or None,
        "frequency_penalty": options.frequency_penalty or None,
        "logit_bias": options.logit_bias or None,
    }
    if options.top_logprobs is not None:
        asked |= {"logprobs": True, "top_logprobs": options.top_logprobs}
    if has_tools:
        asked |= {"parallel_tool_calls": None if options.parallel else False}
        asked |= {"tool_choice": _choice(options)}
    if options.any_object:
        asked["response_format"] = {"type": "json_object"}
    elif options.schema is not None:
        schema = {"name": "answer", "schema": options.schema, "strict": True}
        asked["response_format"] = {"type": "json_schema", "json_schema": schema}
    return asked


def _choice(options: AnswerOptions) -> Any:
    if not options.must_call:
        return None
    names = options.callable
    if names is not None and len(names) == 1:
        return {"type": "function", "function": {"name": names[0]}}
    return "required"


def _with_places(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the API's log-probs with each token's place in the text."""
    found, at = [], 0
    for one in entries:
        found.append({**one, "at": at})
        at += len(one["token"])
    return found
