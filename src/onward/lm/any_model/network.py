"""A module of transformers, seen as two parts: the states below its output head, and the head itself.

The head is the module's own outer ``forward`` with the inner network replaced by its result, so that a bias,
a scale or a soft cap of the logits is computed as the module does it, at few positions at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from onward.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Network:
    """Forward passes of ``module`` without a cache."""

    def __init__(self, module: PreTrainedModel) -> None:
        self.module = module
        self.takes_positions = "position_ids" in inspect.signature(module.forward).parameters
        self._inner: nn.Module | None = None
        self._output: type[Any] | None = None
        self._find_inner()

    @property
    def has_head(self) -> bool:
        """False if no part below the head was found: ``states`` are then the logits themselves."""
        return self._inner is not None

    @property
    def device(self) -> torch.device:
        return self.module.device

    def inputs(self, rows: Sequence[Sequence[int]], *, left: bool = False) -> dict[str, Tensor]:
        """Returns ids, mask and positions of ``rows``, padded on the right, or on the left. Rows of one
        length get no mask."""
        width = max(len(row) for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        for i, row in enumerate(rows):
            place = slice(width - len(row), width) if left else slice(0, len(row))
            ids[i, place] = torch.as_tensor(row, dtype=torch.long)
            mask[i, place] = 1
        found = {"input_ids": ids.to(self.device)}
        if self.takes_positions:
            found["position_ids"] = (mask.cumsum(-1) - 1).clamp_min(0).to(self.device)
        if not bool(mask.all()):
            found["attention_mask"] = mask.to(self.device)
        return found

    def states(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Returns states (rows, longest, width) at every position; those of padding are meaningless."""
        if self._inner is None:
            return self.logits(rows)
        return self._run(self._inner, **self.inputs(rows))[0]

    def head(self, states: Tensor) -> Tensor:
        """Returns logits (positions, vocab) of ``states`` (positions, width)."""
        if self._inner is None or self._output is None:
            return states
        with _answering(self._inner, self._output(last_hidden_state=states[None])):
            nothing = torch.zeros(1, len(states), dtype=torch.long, device=states.device)
            return self.module(input_ids=nothing, use_cache=False, return_dict=True).logits[0]

    def logits(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Returns logits (rows, longest, vocab) of the whole module."""
        return self.module(**self.inputs(rows), use_cache=False, return_dict=True).logits

    def _run(self, part: nn.Module, **inputs: Tensor) -> Any:
        return part(**inputs, use_cache=False, return_dict=True)

    @torch.no_grad()
    def _find_inner(self) -> None:
        """Chooses the part whose states give the module's own logits, if there is one."""
        ids = [[1, 2, 3, 4, 5]]
        try:
            expected = self.logits(ids)[0]
        except Exception as error:  # whatever a module of others raises
            raise ConfigError(
                f"{type(self.module).__name__} cannot be run on text alone ({type(error).__name__}): use a "
                f"model that predicts the next token of a text."
            ) from None
        for part in self._candidates():
            if self._gives(part, ids, expected):
                return
            self._inner = self._output = None

    def _gives(self, part: nn.Module, ids: list[list[int]], expected: Tensor) -> bool:
        """Chooses ``part`` and returns whether the head makes the ``expected`` logits from its states."""
        try:
            output = self._run(part, **self.inputs(ids))
            self._inner, self._output = part, type(output)
            return torch.allclose(self.head(output[0][0]), expected, atol=1e-5)
        except Exception:  # a part that cannot stand alone is no candidate
            return False

    def _candidates(self) -> Iterator[nn.Module]:
        seen: list[nn.Module] = [self.module]
        for part in (self.module.base_model, self.module.get_decoder()):
            if isinstance(part, nn.Module) and not any(part is one for one in seen):
                seen.append(part)
                yield part


@contextmanager
def _answering(part: nn.Module, output: Any) -> Iterator[None]:
    """Makes ``part`` return ``output`` whatever it is given, inside the context."""
    part.forward = lambda *_, **__: output  # on the object: it hides the method of the class
    try:
        yield
    finally:
        del part.forward


@contextmanager
def recomputing(module: nn.Module, wanted: bool) -> Iterator[None]:
    """Makes the blocks of ``module`` store only their input inside the context, if it is ``wanted``.

    The backward pass then computes the rest again. Raises ConfigError if the module has no such blocks.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    blocks: list[Any] = [one for one in module.modules() if isinstance(one, GradientCheckpointingLayer)]
    if wanted and not blocks:
        raise ConfigError(
            f"{type(module).__name__} cannot compute its blocks again: leave gradient_checkpointing out."
        )
    for block in blocks if wanted else ():
        block._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        # The block alone is in training mode, which it asks for; the layers in it, and so dropout, are not.
        block.gradient_checkpointing = block.training = True
    try:
        yield
    finally:
        for block in blocks if wanted else ():
            block.gradient_checkpointing = block.training = False
