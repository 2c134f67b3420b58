"""Decoding with the module's own cache: a few rows under one adapter that advance together.

The inputs of a step are made by the module itself (``prepare_inputs_for_generation``), as ``generate`` has
it, since modules differ in what they need beside the ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onward.lm.any_model.network import Network


class CachedRows:
    """Rows with a cache. ``begin`` computes prompts; ``advance`` appends a token to each row."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._cache: Any = None
        self._mask: Tensor | None = None
        self._lengths: Tensor = torch.zeros(0, dtype=torch.long)

    def begin(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Computes prompts, padded on the left; returns logits (rows, vocab) after their last tokens."""
        from transformers import DynamicCache

        module = self._network.module
        inputs = self._network.inputs(prompts, left=True)
        self._lengths = torch.tensor([len(prompt) for prompt in prompts], device=module.device)
        self._mask = inputs.pop("attention_mask", None)
        self._cache = DynamicCache(config=module.config.get_text_config(decoder=True))
        return self._forward(inputs, first=True)

    def advance(self, tokens: Tensor) -> Tensor:
        """Appends ``tokens`` (rows,), one to each row; returns the logits after them."""
        inputs = {"input_ids": tokens[:, None]}
        if self._network.takes_positions:
            inputs["position_ids"] = self._lengths[:, None]
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        self._lengths = self._lengths + 1
        return self._forward(inputs, first=False)

    def select(self, places: Tensor) -> None:
        """Continues with the rows ``places``; a row may be listed more than once."""
        self._cache.reorder_cache(places)
        self._lengths = self._lengths[places]
        if self._mask is not None:
            self._mask = self._mask[places]

    def _forward(self, inputs: dict[str, Tensor], *, first: bool) -> Tensor:
        module: Any = self._network.module
        prepared = module.prepare_inputs_for_generation(
            inputs.pop("input_ids"),
            cache=self._cache,
            attention_mask=self._mask,
            use_cache=True,
            is_first_iteration=first,
            **inputs,
        )
        output = module(**prepared, return_dict=True)
        self._cache = output.get("cache", self._cache)
        return output.logits[:, -1]
