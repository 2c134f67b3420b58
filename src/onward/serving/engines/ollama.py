"""Sampling by an Ollama server, through ``/api/generate`` with ``raw``: the prompt's text in, text out.

Ollama returns no token ids, and its log-probs are before temperature and truncation. So an answer is shown
and recorded as text, and never used in a policy loss. The log-probs serve two ends: clients that ask for
them, and the checks of an adapter, which are those of ``vllm.py``. An adapter becomes a model of its own
(``/api/create`` from the base), whose digest is read back and compared at every check. Ollama 0.34.1 and
newer create none: its refusal is passed on.

Fields are those of Ollama's ``openapi.yaml`` and ``server/create.go`` of autumn 2026.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from onward.errors import ConfigError, EngineError
from onward.lm.probe import Expected, Probe
from onward.lm.request import Sample, SampleRequest
from onward.serving.engines import RequestRefusedError
from onward.serving.engines.vllm import VllmSampling, VoidSample
from onward.serving.engines.vllm_http import Choice, Greedy, OnTokens, VllmHttp, detail
from onward.telemetry import logs
from onward.training.checkpoints import ADAPTER_FILES, sha256_file

_log = logs.get("engine")
OURS = "onward:"
"""Prefix of the names of models that were made here; the adapter's digest follows."""
WHOLE: dict[str, Any] = {"min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0}
"""Options that Ollama would otherwise take from the model's own file."""


class OllamaHttp(VllmHttp):
    """The same calls as ``VllmHttp``, in the form of Ollama's own API."""

    server, setting = "Ollama", "ollama"

    def __init__(
        self, url: str, key: str = "", *, timeout_seconds: float = 600.0, keep_alive: str = "30m"
    ) -> None:
        super().__init__(url, key, timeout_seconds=timeout_seconds)
        self._keep_alive: str | int = int(keep_alive) if keep_alive.lstrip("-").isdigit() else keep_alive
        self.base = ""
        """Name of the base model on the server."""
        self.context = 2048
        self.text_of: Callable[[Sequence[int]], str] = str
        """Makes the text of a prompt."""
        self.made: dict[str, str] = {}
        """Adapter → digest of the model that was made of it, as the server reported it."""

    async def check(self) -> None:
        await self._json("GET", "/api/version")

    async def models(self) -> list[dict[str, Any]]:
        """Returns the server's models; one that was made here has its adapter as ``id``."""
        listed = (await self._json("GET", "/api/tags")).get("models") or []
        return [
            {
                "id": str(card["name"]).removeprefix(OURS),
                "parent": "base" if str(card["name"]).startswith(OURS) else None,
                "digest": str(card["digest"]),
            }
            for card in listed
        ]

    async def digests(self) -> dict[str, str]:
        """Returns model or adapter → digest on the server."""
        return {card["id"]: card["digest"] for card in await self.models()}

    async def complete(
        self, body: dict[str, Any], prompt: Sequence[int], on_tokens: OnTokens | None
    ) -> Choice:
        """Returns one answer; nothing reaches ``on_tokens``, because there are no ids."""
        answer = await self._generate({**body, "prompt": self.text_of(prompt)})
        reason = str(answer.get("done_reason") or "")
        if reason not in ("stop", "length"):
            raise EngineError(f"Ollama ended the answer with {reason or 'no reason'!r}: try again.")
        return OllamaChoice(
            text=str(answer.get("response") or ""),
            finish_reason=reason,
            entries=_entries(answer),
            used=int(answer.get("eval_count") or 0),
        )

    async def greedy(self, model: str, prompt: Sequence[int], count: int) -> Greedy:
        options = {"temperature": 0.0, "num_predict": count, "num_ctx": self.context, **WHOLE}
        body = {"model": model, "prompt": self.text_of(prompt), "options": options, "logprobs": True}
        answer = await self._generate(body)
        if "logprobs" not in answer and answer.get("response"):
            raise EngineError(
                "Ollama answered without log-probs, so no adapter can be checked: it must be a version whose "
                "/api/generate has 'logprobs'."
            )
        entries = _entries(answer)
        return Greedy(tuple(one["token"] for one in entries), tuple(float(one["logprob"]) for one in entries))

    async def load_adapter(self, name: str, path: str) -> None:
        """Makes a model of base and adapter, and reads its digest back."""
        files = {}
        for file in (Path(path) / each for each in ADAPTER_FILES):
            files[file.name] = await self._upload(file)
        made = OURS + name
        body = {"model": made, "from": self.base, "adapters": files, "stream": False}
        response = await self._send("POST", "/api/create", body)
        if response.status_code != 200 or response.json().get("status") != "success":
            told = detail(response)
            hint = (
                "use Ollama 0.34.0 or older, or another engine"
                if "no longer supported" in told
                else "it takes LoRA of the Llama and Gemma families alone"
            )
            raise EngineError(f"Ollama made no model of adapter {name[:12]}: {told} ({hint}).")
        digest = (await self.digests()).get(name)
        if digest is None:
            raise EngineError(f"Ollama made {made[:24]}… but does not list it: it is not served.")
        self.made[name] = digest

    async def unload_adapter(self, name: str) -> None:
        self.made.pop(name, None)
        with_none = {"model": OURS + name, "keep_alive": 0}
        await self._send("POST", "/api/generate", with_none)  # takes it out of memory
        response = await self._send("DELETE", "/api/delete", {"model": OURS + name})
        if response.status_code not in (200, 404):
            raise EngineError(f"Ollama did not delete the model of {name[:12]}: {detail(response)}")

    async def require_in_memory(self, name: str) -> None:
        """Raises EngineError if the model in memory is not the one that was made of this adapter."""
        loaded = (await self._json("GET", "/api/ps")).get("models") or []
        found = {str(card["name"]): str(card["digest"]) for card in loaded}
        if found.get(OURS + name) != self.made.get(name):
            raise EngineError(
                f"Ollama serves {str(found.get(OURS + name))[:12]} under the name of adapter {name[:12]}, "
                f"not {str(self.made.get(name))[:12]}, which was made of it: it is not served."
            )

    async def _upload(self, file: Path) -> str:
        digest = f"sha256:{await asyncio.to_thread(sha256_file, file)}"
        path = f"/api/blobs/{digest}"
        if (await self._send("HEAD", path)).status_code == 200:
            return digest
        data = await asyncio.to_thread(file.read_bytes)
        try:
            response = await self._client.post(path, content=data)
        except httpx.HTTPError as error:
            raise self._away(error) from None
        if response.status_code not in (200, 201):
            raise EngineError(f"Ollama did not take {file.name}: {detail(response)}")
        return digest

    async def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        name = body["model"]
        body = {
            **body,
            "model": name if name == self.base else OURS + name,
            "raw": True,
            "stream": False,
            "truncate": False,
            "shift": False,
            "keep_alive": self._keep_alive,
        }
        return await self._json("POST", "/api/generate", body)


class OllamaChoice(Choice):
    def __init__(self, *, entries: list[dict[str, Any]], used: int, **fields: Any) -> None:
        super().__init__(**fields)
        self.entries, self.used = entries, used


def _entries(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Reads the log-probs of an answer, in the form of the chat API, with each token's place ``at``."""
    found, at = [], 0
    for one in answer.get("logprobs") or []:
        best = [_entry(other) for other in one.get("top_logprobs") or []]
        found.append({**_entry(one), "top_logprobs": best, "at": at})
        at += len(one["token"])
    return found


def _entry(one: dict[str, Any]) -> dict[str, Any]:
    token = str(one["token"])
    return {
        "token": token,
        "logprob": float(one["logprob"]),
        "bytes": one.get("bytes") or list(token.encode()),
    }


class OllamaSampling(VllmSampling):
    """Same interface as ``SamplingThread``, for an Ollama server."""

    _http: OllamaHttp

    async def start(self) -> None:
        """Checks the server and its base model. Raises EngineError or ConfigError."""
        await self.check()
        bases = [card["id"] for card in await self._http.models() if not card["parent"]]
        wanted = self._base_name
        found = [name for name in bases if wanted in ("", name) or name == f"{wanted}:latest"]
        if len(found) != 1:
            raise ConfigError(
                f"Ollama at {self._http.url} has {bases}, and ollama.model is {wanted!r}: set it to the name "
                f"of the base model, which is that of model.base."
            )
        self._base_name = self._http.base = found[0]
        self._http.context, self._http.text_of = self.max_context, self._raw_text

    async def check(self) -> None:
        """Checks the server, and that each adapter's model is still the one that was made. One that was
        replaced or deleted is made again."""
        await self._http.check()
        if not self._http.made:
            return
        there = await self._http.digests()
        for digest in [name for name, made in self._http.made.items() if there.get(name) != made]:
            _log.error("ollama_model_replaced", adapter=digest[:12], now=str(there.get(digest))[:12])
            async with self._loading:
                if (folder := self._folders.get(digest)) is not None:
                    await self._load(digest, folder)

    def _body(self, request: SampleRequest) -> dict[str, Any]:
        if request.logit_bias:
            raise RequestRefusedError("Ollama's API has no 'logit_bias': leave it out.", "logit_bias")
        options: dict[str, Any] = {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k or 0,
            "num_predict": request.max_new_tokens,
            "num_ctx": self.max_context,
            "presence_penalty": request.presence_penalty,
            "frequency_penalty": request.frequency_penalty,
            **WHOLE,
        }
        if request.seed is not None:
            options["seed"] = request.seed
        if request.stop_texts:
            options["stop"] = list(request.stop_texts)
        model = self._base_name if request.adapter is None else request.adapter
        # A request does not say whether its client asked for the log-probs without alternatives.
        body: dict[str, Any] = {"model": model, "options": options, "logprobs": True}
        if request.alternatives:
            body["top_logprobs"] = request.alternatives
        if request.grammar is not None:
            body["format"] = json.loads(request.grammar.source)
        return body

    def _checked(self, request: SampleRequest, choice: Choice) -> Sample:
        assert isinstance(choice, OllamaChoice)
        return VoidSample(
            request.request_id, [], [], choice.finish_reason,
            text=choice.text, used=choice.used, entries=choice.entries,
        )  # fmt: skip

    async def _load(self, digest: str, folder: Path) -> None:
        await super()._load(digest, folder)
        try:
            await self._probe(digest)  # now it is in memory
            await self._http.require_in_memory(digest)
        except BaseException:
            await asyncio.shield(self._http.unload_adapter(digest))
            raise

    async def _along(self, model: str, stored: Probe, expected: Expected) -> list[float]:
        """Returns the likeliest token's log-prob at each position. A position whose prompt has no exact text
        is not asked, and the end of an answer has no log-prob: both count as expected."""
        found = []
        for at, (token, value) in enumerate(zip(expected.token_ids, expected.logprobs, strict=True)):
            start = [*stored.prompt_ids, *expected.token_ids[:at]]
            if token in self._control or self._encode(self._spell(start)) != start:
                found.append(value)
                continue
            answer = await self._http.greedy(model, start, 1)
            found.append(answer.logprobs[0] if answer.logprobs else float("nan"))
        return found

    @cached_property
    def _control(self) -> frozenset[int]:
        """The control tokens. Those that begin and end a header have no name of their own in Llama 3's
        settings, so transformers does not list them as special."""
        added = self.tokenizer.added_tokens_decoder
        return frozenset((*self.tokenizer.all_special_ids, *(i for i, one in added.items() if one.special)))

    def _spell(self, ids: Sequence[int]) -> str:
        return str(
            self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _raw_text(self, ids: Sequence[int]) -> str:
        """Returns the text of a prompt, without the first token of text, which the server adds itself. Raises
        RequestRefusedError if the server would read a word of a message as a control token."""
        text = self._spell(ids)
        control = self._control
        if sum(token in control for token in self._encode(text)) != sum(token in control for token in ids):
            raise RequestRefusedError(
                "A message contains a control word of this model, such as its end of a turn, and Ollama's "
                "API would read it as one: take it out."
            )
        start = self.tokenizer.bos_token
        return text.removeprefix(start) if isinstance(start, str) and start else text
