"""Sampling by an SGLang server, through ``/generate``: prompt ids in, sampled ids and log-probs out.

The checks are those of ``vllm.py``: the probe, the move of an adapter, ids against text. Only the HTTP calls
differ, so this module translates them. SGLang's log-probs are after temperature, but before top-p and top-k:
an answer with either is shown and never trained on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from onward.errors import EngineError
from onward.lm.request import Alternatives, Sample, SampleRequest
from onward.serving.engines.vllm import VllmSampling, VoidSample
from onward.serving.engines.vllm_http import Choice, Greedy, OnTokens, UnknownModelError, VllmHttp, detail

PASSED_ON = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "stop_token_ids", "stop", "logit_bias", "skip_special_tokens",
)  # fmt: skip
"""Fields of a completion request that ``sampling_params`` has under the same name."""


class SglangHttp(VllmHttp):
    """The same calls as ``VllmHttp``, in the form of SGLang's own API."""

    server, setting = "SGLang", "sglang"
    remedy = "start it without SGLANG_RETURN_ORIGINAL_LOGPROB"

    def __init__(self, url: str, key: str = "", *, timeout_seconds: float = 600.0) -> None:
        super().__init__(url, key, timeout_seconds=timeout_seconds)
        self._adapters: set[str] = set()
        self._bases: set[str] = set()

    async def models(self) -> list[dict[str, Any]]:
        """Returns the base models that the server lists, and the adapters that it confirmed since."""
        cards = list((await self._json("GET", "/v1/models"))["data"])
        bases = [card for card in cards if not card.get("parent") and card["id"] not in self._adapters]
        self._bases = {str(card["id"]) for card in bases}
        return bases + [{"id": name, "parent": "base"} for name in sorted(self._adapters)]

    async def complete(
        self, body: dict[str, Any], prompt: Sequence[int], on_tokens: OnTokens | None
    ) -> Choice:
        """Returns one answer. Its tokens reach ``on_tokens`` together, at the end."""
        choice = await self._generate(body, prompt)
        if on_tokens is not None:
            on_tokens(list(choice.token_ids), list(choice.logprobs), list(choice.alternatives))
        return choice

    async def top_logprobs(self, model: str, prompt: Sequence[int], temperature: float) -> dict[str, float]:
        body = {"model": model, "max_tokens": 1, "temperature": temperature, "top_p": 1.0, "logprobs": 5}
        choice = await self._generate(body, prompt)
        return {f"token_id:{token}": value for token, value in choice.alternatives[0]}

    async def greedy(self, model: str, prompt: Sequence[int], count: int) -> Greedy:
        body = {"model": model, "max_tokens": count, "temperature": 0.0, "ignore_eos": True}
        choice = await self._generate(body, prompt)
        return Greedy(tuple(f"token_id:{token}" for token in choice.token_ids), tuple(choice.logprobs))

    async def load_adapter(self, name: str, path: str) -> None:
        response = await self._send("POST", "/load_lora_adapter", {"lora_name": name, "lora_path": path})
        if _succeeded(response) or "already" in response.text:
            self._adapters.add(name)
            return
        raise EngineError(
            f"SGLang did not load adapter {name[:12]}: {detail(response)} (it is started with --enable-lora, "
            f"--max-lora-rank and --lora-target-modules)."
        )

    async def unload_adapter(self, name: str) -> None:
        self._adapters.discard(name)
        response = await self._send("POST", "/unload_lora_adapter", {"lora_name": name})
        if response.status_code not in (200, 400, 404):
            raise EngineError(f"SGLang did not unload adapter {name[:12]}: {detail(response)}")

    async def _generate(self, body: dict[str, Any], prompt: Sequence[int]) -> Choice:
        parameters = {name: body[name] for name in PASSED_ON if name in body}
        parameters |= {"max_new_tokens": body["max_tokens"], "top_k": body.get("top_k") or -1}
        parameters |= {"ignore_eos": bool(body.get("ignore_eos")), "no_stop_trim": "stop" in body}
        if "seed" in body:
            parameters["sampling_seed"] = body["seed"]
        if "structured_outputs" in body:
            parameters["json_schema"] = json.dumps(body["structured_outputs"]["json"])
        asked: dict[str, Any] = {
            "input_ids": list(prompt), "sampling_params": parameters, "return_logprob": True,
            "top_logprobs_num": body.get("logprobs") or 0,
        }  # fmt: skip
        adapter = None if body["model"] in self._bases else body["model"]
        if adapter is not None:
            if adapter not in self._adapters:  # without ``lora_path`` the base model would answer
                raise UnknownModelError(f"SGLang has not loaded adapter {adapter[:12]}: load it first.")
            asked["lora_path"] = adapter
        response = await self._send("POST", "/generate", asked)
        if adapter is not None and response.status_code == 400 and "lora" in response.text.lower():
            self._adapters.discard(adapter)  # the server was restarted
            raise UnknownModelError(f"SGLang has lost adapter {adapter[:12]}: {detail(response)}")
        self._raise_for(response)
        return _choice(response.json(), prompt)


def _succeeded(response: Any) -> bool:
    try:
        return response.status_code == 200 and response.json().get("success", False) is True
    except ValueError:
        return False


def _choice(answer: dict[str, Any], prompt: Sequence[int]) -> Choice:
    """Reads an answer of ``/generate``. Raises EngineError if its ids and log-probs disagree."""
    try:
        meta = answer["meta_info"]
        told = [(float(value), int(token)) for value, token, *_ in meta["output_token_logprobs"]]
        ids = [int(token) for token in answer.get("output_ids") or [token for _, token in told]]
        best: list[Alternatives] = [
            [(int(token), float(value)) for value, token, *_ in one or []]
            for one in meta.get("output_top_logprobs") or [[]] * len(ids)
        ]
        reason, count = (meta["finish_reason"] or {}).get("type", ""), int(meta["prompt_tokens"])
    except (KeyError, TypeError, ValueError):
        raise EngineError(
            "SGLang's answer has no token ids and log-probs: it must be a server with /generate."
        ) from None
    if ids != [token for _, token in told]:
        raise EngineError(
            f"SGLang's answer has {len(ids)} token ids that are not the tokens of its {len(told)} log-probs: "
            f"it cannot be used."
        )
    if any(not -9999.0 < value <= 1e-4 for value, _ in told):
        raise EngineError("SGLang's answer has a log-prob that is no log-probability: it cannot be used.")
    if count != len(prompt):
        raise EngineError(f"SGLang sampled from {count} prompt tokens, not from the {len(prompt)} it got.")
    choice = Choice(answer["text"], ids, [value for value, _ in told], reason, list(prompt), best)
    return choice.finished(prompt)


class SglangSampling(VllmSampling):
    """Same interface as ``SamplingThread``, for an SGLang server."""

    def _checked(self, request: SampleRequest, choice: Choice) -> Sample:
        sample = super()._checked(request, choice)
        cut_off = request.top_p < 1 or bool(request.top_k) or request.grammar is not None
        if cut_off and request.temperature and not isinstance(sample, VoidSample):
            return VoidSample(request.request_id, [], [], choice.finish_reason, text=choice.text)
        return sample
