"""The interface of a language policy: the part of it that learners, samplers' callers and jobs use.

Two classes have it: ``Policy`` (our own forward, fast) and ``any_model.AnyPolicy`` (the modules of
transformers, slower). ``paths`` decides which one a folder gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from onward.lm.head import At
from onward.lm.model_path import ComputePath
from onward.lm.packing import Wanted
from onward.lm.permitted import Permitted
from onward.lm.request import Alternatives, Sample, SampleRequest
from onward.lm.tokens import TokenRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Limits(Protocol):
    """Numbers of a network that bound what it can be given."""

    @property
    def vocab(self) -> int: ...
    @property
    def hidden(self) -> int:
        """Width of the states that ``LanguageModel.states`` returns."""
        ...

    @property
    def layers(self) -> int: ...
    @property
    def max_positions(self) -> int: ...


class ResidentAdapter(Protocol):
    """A loaded adapter; ``params`` are its trainable tensors by their names in peft's file."""

    @property
    def params(self) -> dict[str, Tensor]: ...


class LanguageModel(Protocol):
    """A network with its tokenizer and resident adapters; adapter ``None`` is the network without any."""

    folder: Path
    device: torch.device
    path: ComputePath
    reason: str
    """Reason why this path runs, as a sentence."""

    @property
    def notes(self) -> Sequence[str]:
        """Sentences about how the network is run, for the log."""
        ...

    @property
    def shape(self) -> Limits: ...
    @property
    def dtype(self) -> str:
        """Number format that the network computes in."""
        ...

    @property
    def torch_dtype(self) -> torch.dtype: ...
    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...
    @cached_property
    def base_digest(self) -> str: ...
    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values that a sampler stores per token between requests; 0: none."""
        ...

    def save(self, folder: Path) -> None: ...

    @property
    def adapters(self) -> Mapping[str, ResidentAdapter]: ...
    def adapter(self, name: str) -> ResidentAdapter: ...
    def new_adapter(
        self,
        name: str,
        rank: int = 16,
        alpha: float = 32.0,
        layers: Sequence[int] | None = None,
        seed: int = 0,
        targets: Sequence[str] | None = None,
        rslora: bool = False,
    ) -> ResidentAdapter: ...
    def add_adapter(self, name: str, folder: Path) -> ResidentAdapter: ...
    def save_adapter(self, name: str, folder: Path) -> None: ...
    def remove_adapter(self, name: str) -> None: ...

    def tensors(self) -> Iterator[Tensor]:
        """Yields every distinct weight, for training all of them."""
        ...

    def drop_copies(self) -> None:
        """Drops what was computed from weights that have changed since."""
        ...

    def states(
        self, rows: Sequence[TokenRow], adapter: str | None, *, recompute: bool = False
    ) -> tuple[Wanted, Tensor]:
        """Returns the wanted log-probs of ``rows`` and the last hidden state before each of them."""
        ...

    def token_logprobs(
        self, states: Tensor, targets: Tensor, temperature: Tensor, *, permitted: Permitted | None = None
    ) -> tuple[Tensor, Tensor]: ...
    def backward_logprobs(
        self,
        states: Tensor,
        targets: Tensor,
        temperature: Tensor,
        slope: Callable[[Tensor, At], Tensor],
        *,
        entropy_slope: Tensor | None = None,
        also: Tensor | None = None,
        permitted: Permitted | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Computes as ``head.backward_logprobs`` does, through this network's head."""
        ...

    def logprobs(
        self, rows: Sequence[TokenRow], adapter: str | None = None, *, micro_batch_tokens: int = 4096
    ) -> list[Tensor]: ...


class TokenSampler(Protocol):
    """A sampler: ``submit`` adds requests; each ``step``, while ``busy``, draws a token per running row."""

    @property
    def max_context(self) -> int: ...
    @property
    def busy(self) -> bool: ...
    @property
    def running(self) -> int: ...
    def submit(self, request: SampleRequest) -> None: ...
    def cancel(self, request_id: str) -> bool: ...
    def drawn(self, request_id: str) -> tuple[list[int], list[float], list[Alternatives]]: ...
    def step(self) -> list[Sample]: ...
    def forget_prefixes(self) -> None: ...
