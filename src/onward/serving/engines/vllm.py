"""Sampling by a vLLM server: prompt ids in, sampled ids and log-probs out.

The engine child renders and remembers as for the local sampler (``child.py``); only the sampling happens
elsewhere. No report of the server is trusted without a check. Ids are compared with the tokens beside the
log-probs and with the text. The mode of the log-probs is measured at the start. An adapter serves only after
it changed the log-probs of a probe prompt. Base and adapter are then asked in one batch, because there are
servers that compute the one with parts of the other there (vllm-project/vllm#48421). Such a server gets the
requests of one policy at a time.

Fields are those of vLLM's ``/v1/completions``. Every field that would change the distribution (penalties,
min_p, the server's own defaults) is sent explicitly, because vLLM fills missing ones from the model's
generation_config.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.errors import ConfigError, EngineError
from onward.lm.probe import Expected, Probe
from onward.lm.request import Sample, SampleRequest
from onward.lm.sizes import folder_digest
from onward.lm.stop_text import cut
from onward.lm.tokenizer import load_tokenizer
from onward.serving.engines.capabilities import WITHOUT_TOKENS
from onward.serving.engines.turns import Turns
from onward.serving.engines.vllm_http import Choice, Greedy, OnTokens, UnknownModelError, VllmHttp
from onward.telemetry import logs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from onward.lm.constrained import Grammar

_log = logs.get("engine")

FULL_SUPPORT: dict[str, Any] = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Defaults that vLLM would otherwise take from the model's generation_config."""
PROBE = "The quick brown fox jumps over the lazy dog. 1 + 1 = 2."
LEAST_MOVE = 1e-6  # nats; an adapter that changes the weights changes the probe's log-probs by more
MOST_MIXED = 1e-3  # nats; rounding in another batch moves a float32 log-prob by less
PROBE_TOKENS = 8  # the fault of mixed batches shows in the steps of decoding, not in the prompt's
MIXED = 4  # requests of each policy in the probe of a mixed batch


@dataclass(frozen=True)
class VoidSample(Sample):
    """An answer without ids, or whose ids contradict its text. ``text`` may be shown, and nothing of it is
    used in a policy loss."""

    text: str = ""
    used: int = 0
    """Tokens of the answer, if the server counts them."""
    entries: Sequence[dict[str, Any]] = ()
    """Log-probs as ``Generation.logprobs``, if the server gives them."""

    def answer(self, record: dict[str, Any], prompt: int) -> dict[str, Any]:
        """Returns an answer to show and never to train on: its tokens are neither recorded nor continued."""
        usage = {"prompt_tokens": prompt, "completion_tokens": self.used, "total_tokens": prompt + self.used}
        sampling = record | WITHOUT_TOKENS | {"finish_reason": self.finish_reason}
        return {"text": self.text, "sampling": sampling, "usage": usage}


class VllmSampling:
    """Same interface as ``SamplingThread``, for a vLLM server."""

    json_only = True
    """Other grammars depend on the backend of the server."""

    def __init__(
        self,
        model: Path,
        http: VllmHttp,
        *,
        served_model: str = "",
        adapters_dir: str = "",
        max_context: int = 2048,
    ) -> None:
        """``model``: the base model's local folder, for tokenizer and identity. ``served_model``: its name on
        the server (default: the first that is no adapter). ``adapters_dir``: path of the adapters as the
        server sees it."""
        self._model, self._http = model, http
        self._base_name, self._adapters_dir = served_model, adapters_dir
        self._asked_context = self.max_context = max_context
        self._folders: dict[str, Path] = {}
        self._loading = asyncio.Lock()
        self._turns = Turns()
        self.running = 0
        self.mismatches = 0
        """Number of answers whose ids and text did not agree."""

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer(self._model)

    @cached_property
    def base_digest(self) -> str:
        return folder_digest(self._model)

    @property
    def vocab(self) -> int:
        return len(self.tokenizer)

    def compiled(self, grammar: Grammar, stop_ids: Sequence[int]) -> Grammar:
        """Returns the grammar as it is: the server judges schemas, and its refusal is passed on."""
        return grammar

    async def start(self) -> None:
        """Checks the server. Raises EngineError (away, wrong key) or ConfigError (unknown model, log-probs
        before temperature and truncation)."""
        await self.check()
        served = await self._http.models()
        bases = [card for card in served if not card.get("parent")]
        found = [card for card in bases if self._base_name in ("", card["id"])]
        if not found:
            raise ConfigError(
                f"{self._http.server} at {self._http.url} serves {[card['id'] for card in bases]}, not "
                f"{self._base_name!r}: set {self._http.setting}.model to one of them."
            )
        self._base_name = str(found[0]["id"])
        longest = found[0].get("max_model_len")
        if longest:
            self.max_context = min(self._asked_context, int(longest))
        await self._require_processed_logprobs()

    async def check(self) -> None:
        """Raises EngineError if the server is away, paused or asleep."""
        await self._http.check()

    def check_moving(self) -> None:
        """Raises EngineError if sampling is stuck; here every call to the server has a time limit."""

    async def sample(self, request: SampleRequest, on_tokens: OnTokens | None = None) -> Sample:
        """Samples one answer; see ``SamplingThread.sample``. Cancelling closes the connection, which makes
        vLLM abort the request."""
        request.check(self.max_context)
        body = self._body(request)
        self.running += 1
        try:
            try:
                async with self._turns.turn(request.adapter):
                    choice = await self._http.complete(body, request.prompt_ids, on_tokens)
            except UnknownModelError:
                if request.adapter is None or request.adapter not in self._folders:
                    raise
                await self._load_again(request.adapter)  # the server was restarted and lost it
                async with self._turns.turn(request.adapter):
                    choice = await self._http.complete(body, request.prompt_ids, on_tokens)
        finally:
            self.running -= 1
        return self._checked(request, choice)

    def _body(self, request: SampleRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._base_name if request.adapter is None else request.adapter,
            "prompt": [int(token) for token in request.prompt_ids],
            "max_tokens": request.max_new_tokens,
            "n": 1,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k or 0,
            "stop_token_ids": [int(token) for token in request.stop_ids],
            "skip_special_tokens": True,
            "logprobs": request.alternatives,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if request.seed is not None:
            body["seed"] = request.seed
        return body | FULL_SUPPORT | _asked_for(request)

    def _checked(self, request: SampleRequest, choice: Choice) -> Sample:
        ids, logprobs = choice.token_ids, choice.logprobs
        if request.temperature == 0:
            logprobs = [0.0] * len(ids)  # greedy is a point mass; vLLM reports the softmax beside it
        if not self._says(ids, choice, request.stop_texts):
            self.mismatches += 1
            return VoidSample(request.request_id, [], [], choice.finish_reason, text=choice.text)
        best = choice.alternatives if request.alternatives else []
        if request.temperature == 0:
            best = [[(token, 0.0)] for token in ids] if best else []
        return Sample(
            request.request_id,
            ids,
            logprobs,
            choice.finish_reason,
            [one[: request.alternatives] for one in best],
        )

    def _says(self, ids: Sequence[int], choice: Choice, stops: Sequence[str]) -> bool:
        """Returns whether the ids spell the text. The token that ended the answer may be a visible one, or
        go on after a stop string, where the server cuts the text."""
        told = _plain(choice.text)
        spelled = _plain(self._decode(ids))
        if spelled == told:
            return True
        if choice.finish_reason == "stop" and stops:
            before = cut(spelled, stops)
            if before != spelled and cut(told, stops) == before:
                return True
        return choice.finish_reason == "stop" and _plain(self._decode(ids[:-1])) == told

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    # Adapters.

    async def load(self, digest: str, folder: Path) -> None:
        """Loads an adapter under its digest as the name, and checks with a probe prompt that it applies."""
        async with self._loading:
            await self._load(digest, folder)
            self._folders[digest] = folder

    async def unload(self, digest: str) -> None:
        async with self._loading:
            if self._folders.pop(digest, None) is not None:
                await self._http.unload_adapter(digest)

    async def _load_again(self, digest: str) -> None:
        async with self._loading:
            if digest not in {card["id"] for card in await self._http.models()}:
                await self._load(digest, self._folders[digest])

    async def _load(self, digest: str, folder: Path) -> None:
        changes = await asyncio.to_thread(_changes_weights, folder)
        path = f"{self._adapters_dir.rstrip('/')}/{folder.name}" if self._adapters_dir else str(folder)
        await self._http.load_adapter(digest, path)
        try:
            if digest not in {card["id"] for card in await self._http.models()}:
                raise EngineError(
                    f"{self._http.server} took adapter {digest[:12]} but does not list it: it is not served."
                )
            if changes:
                await self._require_separate_answers(digest, await self._require_move(digest))
            if (stored := await asyncio.to_thread(Probe.read, folder)) is not None:
                base = await self._along(self._base_name, stored, stored.base)
                stored.check(digest, base, await self._along(digest, stored, stored.adapter))
        except BaseException:
            await asyncio.shield(self._http.unload_adapter(digest))
            raise

    async def _probe(self, model: str) -> Greedy:
        """Returns the greedy answer to the probe prompt, asked in the turn of ``model``.

        Log-probs of the prompt itself would be cheaper. But with adapters on, vLLM 0.32 ends with an error
        when it computes them beside another request.
        """
        ids = self.tokenizer.encode(PROBE, add_special_tokens=False)
        async with self._turns.turn(None if model == self._base_name else model):
            return await self._http.greedy(model, ids, PROBE_TOKENS)

    async def _along(self, model: str, stored: Probe, expected: Expected) -> list[float]:
        """Returns the likeliest token's log-prob at each position of the expected answer.

        One short request for each: so a token that is likeliest by a rounding error changes nothing after it.
        """
        starts = [[*stored.prompt_ids, *expected.token_ids[:at]] for at in range(len(expected.token_ids))]
        async with self._turns.turn(None if model == self._base_name else model):
            answers = await asyncio.gather(*(self._http.greedy(model, start, 1) for start in starts))
        return [answer.logprobs[0] for answer in answers]

    async def _require_move(self, digest: str) -> Greedy:
        base, again = await self._probe(self._base_name), await self._probe(self._base_name)
        adapted = await self._probe(digest)
        if base.distance(adapted) <= max(LEAST_MOVE, 2 * base.distance(again)):
            raise EngineError(
                f"{self._http.server} lists adapter {digest[:12]}, but answers a probe prompt as the base "
                f"model does: the "
                f"server did not apply it, so it is not served."
            )
        return adapted

    async def _require_separate_answers(self, digest: str, adapted: Greedy) -> None:
        """Asks base and adapter at the same time. If either answers otherwise than alone, and by more than
        a batch of one policy differs from a single request, the two get no common batch any more."""
        if self._turns.separate:
            return
        both = [self._base_name, digest] * MIXED
        plain = await asyncio.gather(*(self._probe(self._base_name) for _ in both))
        mixed = await asyncio.gather(*(self._probe(model) for model in both))
        alone = {self._base_name: await self._probe(self._base_name), digest: adapted}
        noise = max(alone[self._base_name].distance(one) for one in plain)
        moved = max(alone[model].distance(one) for model, one in zip(both, mixed, strict=True))
        if moved > max(MOST_MIXED, 4 * noise):
            self._turns.separate = True
            _log.warning("vllm_mixes_policies", url=self._http.url, moved_nats=round(moved, 4),
                         instead="the requests of one policy at a time")  # fmt: skip

    # Log-probs.

    async def _require_processed_logprobs(self) -> None:
        """Compares the two best tokens at temperatures 1 and 2: temperature must halve their gap."""
        ids = self.tokenizer.encode(PROBE, add_special_tokens=False)
        once, twice = [await self._http.top_logprobs(self._base_name, ids, t) for t in (1.0, 2.0)]
        shared = sorted(set(once) & set(twice), key=lambda name: -once[name])
        if len(shared) < 2:
            raise ConfigError(
                f"{self._http.server} reports {len(once)} and {len(twice)} of the likeliest tokens at "
                f"temperatures 1 and 2, "
                f"{len(shared)} in common, where 2 are needed: raise its --max-logprobs."
            )
        first, second = shared[:2]
        gap, heated = once[first] - once[second], twice[first] - twice[second]
        normalised = all(sum(map(math.exp, values)) <= 1.001 for values in (once.values(), twice.values()))
        if not normalised or abs(heated - gap / 2) > 0.1 * abs(gap) + 1e-4:
            raise ConfigError(
                f"{self._http.server} reports log-probs before temperature and truncation, which are not "
                f"those of the tokens it draws: {self._http.remedy}."
            )


def _asked_for(request: SampleRequest) -> dict[str, Any]:
    """Returns the fields of what few requests ask for, which are left out of the others."""
    body: dict[str, Any] = {}
    if request.presence_penalty or request.frequency_penalty:
        body["presence_penalty"] = request.presence_penalty
        body["frequency_penalty"] = request.frequency_penalty
    if request.logit_bias:
        body["logit_bias"] = {str(token): value for token, value in request.logit_bias.items()}
    if request.stop_texts:
        # The string stays in the text, so that the text can be compared with the ids.
        body |= {"stop": list(request.stop_texts), "include_stop_str_in_output": True}
    if request.grammar is not None:
        schema = json.loads(request.grammar.source)
        body["structured_outputs"] = {"json": schema, "disable_any_whitespace": True}
    return body


def _plain(text: str) -> str:
    """Strips what streaming decoders treat differently: a first space, bytes of an unfinished character."""
    return text.lstrip(" ").rstrip("\ufffd")


def _changes_weights(folder: Path) -> bool:
    """Returns whether any ``B`` of the adapter is not zero."""
    from safetensors.numpy import load_file

    tensors = load_file(folder / "adapter_model.safetensors")
    return any(bool(values.any()) for name, values in tensors.items() if ".lora_B." in name)
