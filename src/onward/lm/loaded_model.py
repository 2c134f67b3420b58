"""Base of the two language policies: tokenizer, digest, names of adapters, and log-probs by packed rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor

from onward.errors import ConflictError, NotFoundError
from onward.lm.packing import Wanted, split_by_tokens
from onward.lm.permitted import Permitted
from onward.lm.sizes import folder_digest
from onward.lm.tokenizer import load_tokenizer
from onward.lm.tokens import TokenRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

AnAdapter = TypeVar("AnAdapter")


class LoadedModel(ABC, Generic[AnAdapter]):
    """A network in memory, from ``folder``, with resident adapters."""

    folder: Path
    device: torch.device

    @property
    @abstractmethod
    def torch_dtype(self) -> torch.dtype:
        """Number format that the network computes in, as torch's object."""

    @property
    @abstractmethod
    def adapters(self) -> Mapping[str, AnAdapter]:
        """Resident adapters by name."""

    @abstractmethod
    def states(
        self, rows: Sequence[TokenRow], adapter: str | None, *, recompute: bool = False
    ) -> tuple[Wanted, Tensor]:
        """Returns the wanted log-probs of ``rows`` and the last hidden state before each of them."""

    @abstractmethod
    def token_logprobs(
        self, states: Tensor, targets: Tensor, temperature: Tensor, *, permitted: Permitted | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns ``(logp, entropy)`` of ``targets`` after ``states``, under the masks ``permitted``."""

    @property
    def dtype(self) -> str:
        """Number format that the network computes in."""
        return str(self.torch_dtype).removeprefix("torch.")

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer(self.folder)

    @cached_property
    def base_digest(self) -> str:
        return folder_digest(self.folder)

    def adapter(self, name: str) -> AnAdapter:
        """Returns a resident adapter. Raises NotFoundError for another name."""
        found = self.adapters.get(name)
        if found is None:
            raise NotFoundError(f"No adapter {name!r} is loaded: load it with add_adapter or use one of "
                                f"{sorted(self.adapters)}.")  # fmt: skip
        return found

    def refuse_loaded(self, name: str) -> None:
        """Raises ConflictError if an adapter of this name is resident."""
        if name in self.adapters:
            raise ConflictError(
                f"An adapter {name!r} is loaded already: remove it first or choose another name."
            )

    @torch.no_grad()
    def logprobs(
        self, rows: Sequence[TokenRow], adapter: str | None = None, *, micro_batch_tokens: int = 4096
    ) -> list[Tensor]:
        """Returns log π(token | past) of each row at its temperature, under its masks: (length,), 0.0 where
        not sampled or forced."""
        result = [torch.zeros(len(row)) for row in rows]
        order = [i for i in sorted(range(len(rows)), key=lambda i: len(rows[i])) if rows[i].trained]
        for chunk in split_by_tokens(order, [len(rows[i]) for i in order], micro_batch_tokens):
            part = [rows[i] for i in chunk]
            wanted, states = self.states(part, adapter)
            logp, _ = self.token_logprobs(
                states, wanted.targets, wanted.temperature, permitted=wanted.permitted
            )
            for r, values in zip(chunk, logp.cpu().split(wanted.counts), strict=True):
                result[r][rows[r].trained] = values
        return result
