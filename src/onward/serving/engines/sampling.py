"""The sampling thread: the only thread of the engine child that uses torch.

Every change of the policy or the running batch goes through its inbox and happens between two decode steps. A
call that arrives while others run joins them at the next step.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load as load_tensors

from onward.errors import EngineError, TamperedError
from onward.lm import paths
from onward.lm.constrained import CompiledGrammar, Grammar, GrammarCompiler
from onward.lm.model import LanguageModel, TokenSampler
from onward.lm.precision import Placement, place
from onward.lm.probe import Probe, measure
from onward.lm.request import Alternatives, Sample, SampleRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WEIGHTS = "adapter_model.safetensors"
LONGEST_STEP_SECONDS = 600.0
"""Seconds after which a decode step, a prefill or the load of an adapter counts as stuck."""
OnTokens = Callable[[list[int], list[float], list[Alternatives]], None]


@dataclass
class _Listener:
    on_tokens: OnTokens
    told: int = 0
    """Number of tokens that were already sent to it."""


class SamplingThread:
    json_only = False
    """See ``answer_options.CanConstrain``."""

    def __init__(
        self,
        model: Path,
        loop: asyncio.AbstractEventLoop,
        *,
        device: str = "auto",
        dtype: str = "auto",
        threads: int = 0,
        max_batch: int = 64,
        max_context: int = 2048,
        gather_seconds: float = 0.002,
        path: paths.AskedPath = "auto",
    ) -> None:
        self._model, self._loop = model, loop
        self._device, self._dtype = device, dtype
        self.placement = Placement("", "", "")
        """Device and number format of the network, once it is loaded."""
        self._threads = threads or os.cpu_count() or 1
        self._batch, self._context = max_batch, max_context
        self._gather = gather_seconds
        self._path: paths.AskedPath = path
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting: dict[str, tuple[SampleRequest, asyncio.Future[Sample]]] = {}
        self._listeners: dict[str, _Listener] = {}
        self._policy: LanguageModel | None = None
        self._sampler: TokenSampler | None = None
        self._compiler: GrammarCompiler | None = None
        self._building = threading.Lock()
        self._step_began: float | None = None
        """Monotonic time; None while the thread waits for work."""

    @property
    def policy(self) -> LanguageModel:
        if self._policy is None:
            raise EngineError("The engine has not loaded its model yet.")
        return self._policy

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.policy.tokenizer

    @property
    def base_digest(self) -> str:
        return self.policy.base_digest

    @property
    def max_context(self) -> int:
        """Tokens of prompt and answer together: the configured limit, or the model's if it is lower."""
        return min(self._context, self.policy.shape.max_positions)

    @property
    def vocab(self) -> int:
        return self.policy.shape.vocab

    def compiled(self, grammar: Grammar, stop_ids: Sequence[int]) -> CompiledGrammar:
        """Returns the grammar as a request needs it. Any thread may call this. Raises GrammarError."""
        with self._building:
            if self._compiler is None:
                self._compiler = GrammarCompiler(self.tokenizer, self.vocab, stop_ids)
        return self._compiler(grammar)

    @property
    def running(self) -> int:
        return len(self._waiting)

    async def start(self) -> None:
        """Loads the model. Raises the errors of the load."""
        loaded: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._run, args=(loaded,), name="sampler", daemon=True).start()
        await loaded

    async def check(self) -> None:
        """Raises EngineError if nothing can be sampled; here the process itself is the check."""

    def check_moving(self) -> None:
        """Raises EngineError if a step is stuck: the process then answers, but nothing is sampled."""
        began = self._step_began
        if began is not None and time.monotonic() - began > LONGEST_STEP_SECONDS:
            raise EngineError(f"A step of the engine has run for more than {LONGEST_STEP_SECONDS:g} s.")

    async def sample(self, request: SampleRequest, on_tokens: OnTokens | None = None) -> Sample:
        """Samples one completion. Cancelling the caller removes the request from the batch.

        ``on_tokens`` receives the new tokens and log-probs after a step, in the event loop, all of them
        before this returns.
        """
        future: asyncio.Future[Sample] = self._loop.create_future()
        self._inbox.put(lambda: self._submit(request, future, on_tokens))
        try:
            return await future
        except asyncio.CancelledError:
            self._inbox.put(lambda: self._cancel(request.request_id))
            raise

    async def load(self, digest: str, folder: Path) -> None:
        """Loads an adapter and compares the loaded weights with the verified file, tensor by tensor, and its
        log-probs with those that its job stored. Raises TamperedError."""
        await self._between_steps(lambda: self._load(digest, folder))

    async def unload(self, digest: str) -> None:
        """Unloads an adapter. Calls that still run on it end with EngineError."""
        await self._between_steps(lambda: self._unload(digest))

    async def _between_steps(self, work: Callable[[], None]) -> None:
        done: asyncio.Future[None] = self._loop.create_future()

        def perform() -> None:
            try:
                work()
            except Exception as error:
                self._resolve(done, error=error)
            else:
                self._resolve(done, None)

        self._inbox.put(perform)
        await done

    # Below: the sampling thread.

    def _run(self, loaded: asyncio.Future[None]) -> None:
        try:
            torch.set_num_threads(self._threads)
            size = paths.parameters(self._model)
            chosen = self.placement = place(self._device, self._dtype, parameters=size)
            self._policy = paths.load(self._model, device=chosen.device, dtype=chosen.dtype, path=self._path)
            sys.stderr.write("\n".join([paths.described(self._policy), *self._policy.notes, ""]))
            self._sampler = self._new_sampler(self._policy)
        except Exception as error:
            self._resolve(loaded, error=error)
            return
        self._resolve(loaded, None)
        while True:
            self._take_inbox(wait=not self._sampler.busy)
            self._step_began = time.monotonic()
            try:
                if self._sampler.busy:
                    done = self._sampler.step()
                    self._tell(done)
                    self._deliver(done)
            except Exception as error:  # the batch is lost, the engine is not
                traceback.print_exc(file=sys.stderr)
                self._fail_all(EngineError(f"The engine failed during sampling ({type(error).__name__})."))
                self._sampler = self._new_sampler(self._policy)

    def _new_sampler(self, policy: LanguageModel) -> TokenSampler:
        return paths.sampler(policy, self._batch, self._context)

    def _take_inbox(self, *, wait: bool) -> None:
        if wait:
            self._step_began = None
            work = self._inbox.get()
            self._step_began = time.monotonic()
            work()
            if self._gather and self._waiting:
                time.sleep(self._gather)  # calls that arrive together share their prefix and their steps
        while True:
            try:
                self._inbox.get_nowait()()
            except queue.Empty:
                return

    def _submit(
        self, request: SampleRequest, future: asyncio.Future[Sample], on_tokens: OnTokens | None
    ) -> None:
        assert self._sampler is not None
        if future.cancelled():
            return
        self._waiting[request.request_id] = (request, future)
        if on_tokens is not None:
            self._listeners[request.request_id] = _Listener(on_tokens)
        try:
            self._sampler.submit(request)
        except Exception as error:
            del self._waiting[request.request_id]
            self._listeners.pop(request.request_id, None)
            self._resolve(future, error=error)

    def _cancel(self, request_id: str) -> None:
        assert self._sampler is not None
        self._listeners.pop(request_id, None)
        if self._waiting.pop(request_id, None) is not None:
            self._sampler.cancel(request_id)

    def _tell(self, done: list[Sample]) -> None:
        """Sends new tokens to the listeners."""
        if not self._listeners:
            return
        assert self._sampler is not None
        finished = {one.request_id: (one.token_ids, one.logprobs, one.alternatives) for one in done}
        for request_id, listener in list(self._listeners.items()):
            ids, logprobs, alternatives = finished.get(request_id) or self._sampler.drawn(request_id)
            if len(ids) > listener.told:
                at = listener.told
                new = list(ids[at:]), list(logprobs[at:]), list(alternatives[at:])
                listener.told = len(ids)
                self._loop.call_soon_threadsafe(listener.on_tokens, *new)
            if request_id in finished:
                del self._listeners[request_id]

    def _deliver(self, samples: list[Sample]) -> None:
        for sample in samples:
            waiting = self._waiting.pop(sample.request_id, None)
            if waiting is not None:
                self._resolve(waiting[1], sample, error=EngineError(sample.error) if sample.error else None)

    def _fail_all(self, error: Exception) -> None:
        for _, future in self._waiting.values():
            self._resolve(future, error=error)
        self._waiting.clear()
        self._listeners.clear()

    def _load(self, digest: str, folder: Path) -> None:
        content = (folder / WEIGHTS).read_bytes()
        self.policy.add_adapter(digest, folder)
        try:
            with tempfile.TemporaryDirectory() as scratch:
                self.policy.save_adapter(digest, Path(scratch))
                held = load_tensors((Path(scratch) / WEIGHTS).read_bytes())
            expected = load_tensors(content)
            same = expected.keys() <= held.keys() and all(
                torch.equal(held[name].float(), expected[name].float()) for name in expected
            )  # a file may omit projections: then nothing may have been added to them
            same = same and not any(
                held[name].any() for name in held.keys() - expected.keys() if ".lora_B." in name
            )
            finite = all(bool(torch.isfinite(tensor).all()) for tensor in expected.values())
            if same and finite and (stored := Probe.read(folder)) is not None:
                stored.check(digest, *measure(self.policy, stored, digest))
        except Exception:
            self.policy.remove_adapter(digest)
            raise
        if not same or not finite:
            self.policy.remove_adapter(digest)
            raise TamperedError(
                f"Adapter {digest[:12]} in memory differs from its file or holds values that are not finite: "
                f"it is not served."
            )

    def _unload(self, digest: str) -> None:
        for request_id, (request, future) in list(self._waiting.items()):
            if request.adapter == digest:
                self._cancel(request_id)
                self._resolve(
                    future, error=EngineError(f"Adapter {digest[:12]} was unloaded during the call.")
                )
        self.policy.remove_adapter(digest)
        assert self._sampler is not None
        self._sampler.forget_prefixes()

    def _resolve(
        self, future: asyncio.Future[Any], value: Any = None, *, error: Exception | None = None
    ) -> None:
        def settle() -> None:
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(value)

        self._loop.call_soon_threadsafe(settle)
