"""Sizes of a network and fit of an adapter, as the weight files tell: configurations name sizes differently.

Reads headers alone and needs no torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.errors import ConfigError
from onward.lm.adapter_files import bad_tensor
from onward.lm.weight_files import Stored

LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks)\.(\d+)\.")
EMBEDDING = re.compile(r"(?:emb\w*|(?:^|\.)(?:wte|w))\.weight$")
"""Ends of names: embed_tokens (Llama), embeddings (Mamba), tokens_embed (GPT), wte (GPT-2), w (CTRL) …"""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_LORA = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<matrix>A|B)\.weight")
_MAGNITUDE = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_magnitude_vector")


@dataclass(frozen=True)
class StoredSizes:
    """Sizes for the estimates of a network that runs by transformers' modules. They are upper bounds: a layer
    that no pass calls counts too."""

    parameters: int
    vocab: int
    hidden: int
    layers: int
    linear: tuple[tuple[int, str, int, int], ...]
    """(Layer, last part of the name, two sides of the matrix) of each linear layer that may be adapted."""
    experts: tuple[int, int] = (0, 0)
    """Weights of experts, in all blocks, that one token uses; and the sum of the sides of their matrices."""
    is_fast = False

    @classmethod
    def of(cls, config: Mapping[str, Any], tensors: Mapping[str, Stored], parameters: int) -> StoredSizes:
        """Reads the sizes of a network from its configuration and the headers of its weights."""
        tables = [one.shape for name, one in tensors.items() if EMBEDDING.search(name)]
        vocab, hidden = max((shape for shape in tables if len(shape) == 2), default=(0, 0))
        text = config.get("text_config") or config
        experts = next((int(text[name]) for name in _EXPERTS if text.get(name)), 0)
        used = int(text.get("num_experts_per_tok") or experts) / experts if experts else 1.0
        mixes = any(name.endswith("conv1d.weight") for name in tensors)
        placed = {name: int(found[1]) for name in tensors if (found := LAYER.search(name))}
        linear, weights, sides = [], 0.0, 0.0
        for name, layer in placed.items():
            shape, last = tensors[name].shape, name.removesuffix(".weight").rpartition(".")[2]
            if ".experts." in name:  # transformers joins them in one tensor, which no adapter changes
                weights += used * tensors[name].count
                sides += used * sum(shape[-2:]) * math.prod(shape[:-2])
                continue
            if len(shape) != 2 or not name.endswith(".weight"):
                continue
            if shape[0] in (1, experts) or (mixes and last == "out_proj"):
                continue
            linear.append((layer, last, shape[0], shape[1]))
        return cls(
            parameters=parameters,
            vocab=vocab,
            hidden=hidden,
            layers=len(set(placed.values())),
            linear=tuple(linear),
            experts=(round(weights), round(sides)),
        )

    @property
    def block(self) -> int:
        """Weights of a block that each token is multiplied with."""
        dense = sum(a * b for _, _, a, b in self.linear)
        return (dense + self.experts[0]) // max(1, self.layers)

    @property
    def cached_values(self) -> int:
        """Values per token in a cache of keys and values, if no heads share them."""
        return 2 * self.layers * self.hidden

    def kept_values(self, rank: int) -> int:
        """Values that a block stores per token for its backward pass: inputs and outputs of its layers."""
        wide = (sum(a + b for _, _, a, b in self.linear) + self.experts[1]) // max(1, self.layers)
        return wide + 6 * self.hidden + 2 * rank * len(self.linear) // max(1, self.layers)

    def lora_parameters(self, rank: int, layers: Collection[int], targets: Iterable[str] | None) -> int:
        """Counts the parameters of an adapter; None: all linear layers are targets."""
        chosen = None if targets is None else set(targets)
        return rank * sum(
            a + b
            for layer, name, a, b in self.linear
            if layer in layers and (chosen is None or name in chosen)
        )

    def refuse_other_targets(self, targets: Iterable[str]) -> None:
        """Raises ConfigError for targets that are no linear layers of a block."""
        possible = {name for _, name, _, _ in self.linear}
        if not set(targets) <= possible:
            raise ConfigError(
                f"An adapter on {sorted(targets)} is not possible: choose targets among "
                f"{', '.join(sorted(possible))}."
            )


def refuse_misfit(
    config: Mapping[str, Any],
    adapter: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, Stored],
    folder: Path,
) -> None:
    """Raises ConfigError unless the tensors of the ``adapter`` (name → shape) fit the network's own.

    A name counts as known if a stored one ends as it does: transformers puts prefixes before some names.
    """
    patterned = bool(config.get("rank_pattern"))
    ranks: dict[str, set[int]] = {}
    for name, given in adapter.items():
        found = _LORA.fullmatch(name) or _MAGNITUDE.fullmatch(name)
        weight = None if found is None else _weight_of(found["module"], tensors)
        if found is None or weight is None or len(weight) != 2:
            raise ConfigError(
                f"The adapter in {folder} changes {name!r}, which is not a linear layer of this network: it "
                f"was made for another base model."
            )
        if found.re is _MAGNITUDE:
            expected, fits = weight[:1], math.prod(given) in weight
        else:
            rank = given[0 if found["matrix"] == "A" else -1] if len(given) == 2 else 0
            ranks.setdefault(found["module"], set()).add(rank)
            wide = given[-1 if found["matrix"] == "A" else 0] if len(given) == 2 else 0
            sides = set(weight) if config.get("fan_in_fan_out") else {weight[found["matrix"] == "A"]}
            expected = (config["r"], min(sides)) if found["matrix"] == "A" else (min(sides), config["r"])
            fits = wide in sides and (patterned or rank == config["r"])
        if not fits:
            raise bad_tensor(folder, name, given, expected)
    torn = next((module for module, found in ranks.items() if len(found) > 1), None)
    if torn is not None:
        raise ConfigError(
            f"The adapter in {folder} has two ranks for {torn}, {min(ranks[torn])} and {max(ranks[torn])}: "
            f"copy its files again."
        )


def _weight_of(module: str, tensors: Mapping[str, Stored]) -> tuple[int, ...] | None:
    """Returns the shape of a module's weight, under its name with or without its first parts."""
    name = f"{module}.weight"
    while name:
        for known in (name, f"model.{name}", f"transformer.{name}"):
            if known in tensors:
                return tensors[known].shape
        head, _, name = name.partition(".")
        if head.isdecimal() or not LAYER.search(f".{name}"):
            return None
    return None
