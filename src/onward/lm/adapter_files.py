"""Form of a LoRA adapter's files as peft saves them: the configuration, and names and shapes of the tensors.

Needs no torch, so an adapter can be checked before any network is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.errors import ConfigError
from onward.lm.sizes import Sizes

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
BLOCK = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj"), "self_attn"),
    **dict.fromkeys(("gate_proj", "up_proj", "gate_up_proj", "down_proj"), "mlp"),
}
"""Projection → its part of a block, in transformers' names."""
OTHER_KINDS = (
    "use_dora",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "fan_in_fan_out",
)
"""Settings of peft that change the computation; an adapter with one of them is not served."""
BY_PEFT = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out")
"""Those that an adapter may have where peft computes it."""


@dataclass(frozen=True)
class Layout:
    """Numbers of one adapter. Its tensors may be a subset of the layers times the targets."""

    rank: int
    alpha: float
    layers: list[int]
    targets: list[str]
    rslora: bool = False
    """Scale alpha / √rank (2312.03732), so that a higher rank learns no slower; else alpha / rank."""


def key(layer: int, name: str, matrix: str) -> str:
    """Returns the name of a tensor; ``matrix`` is A or B."""
    return f"base_model.model.model.layers.{layer}.{BLOCK[name]}.{name}.lora_{matrix}.weight"


def shapes(
    sizes: Sizes, rank: int, layers: Iterable[int], targets: Iterable[str]
) -> dict[str, tuple[int, int]]:
    """Returns the shape of each tensor, by its name. Raises ConfigError for an adapter that cannot be."""
    layers, targets = sorted(set(layers)), sorted(set(targets))
    if rank < 1 or not layers or not set(layers) <= set(range(sizes.layers)):
        raise ConfigError(
            f"An adapter of rank {rank} on layers {layers} is not possible: the rank must be "
            f"at least 1 and the layers among 0 to {sizes.layers - 1}."
        )
    sizes.refuse_other_targets(targets)
    found: dict[str, tuple[int, int]] = {}
    for layer in layers:
        for name, (rows, columns) in sizes.projections().items():
            if name in targets:
                found |= {key(layer, name, "A"): (rank, columns), key(layer, name, "B"): (rows, rank)}
    return found


def read_config(folder: Path, allowed: Collection[str] = ()) -> dict[str, Any]:
    """Reads the configuration. Raises ConfigError unless it describes a plain LoRA adapter, or one that is
    plain but for settings among ``allowed``."""
    if not (folder / CONFIG).is_file() or not (folder / TENSORS).is_file():
        raise ConfigError(f"{folder} holds no adapter: it needs {CONFIG} and {TENSORS}.")
    try:
        config = json.loads((folder / CONFIG).read_bytes())
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise ConfigError(f"{CONFIG} in {folder} is not a JSON object: give a folder as peft saves it.")
    wrong = [name for name in OTHER_KINDS if config.get(name) and name not in allowed]
    if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none" or wrong:
        raise ConfigError(
            f"The adapter in {folder} is not plain LoRA ({', '.join(wrong) or config.get('peft_type')}): "
            f"train it with bias 'none' and without {', '.join(wrong) or 'other methods'}."
        )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or not isinstance(alpha, int | float):
        raise ConfigError(
            f"{CONFIG} in {folder} has r {rank!r} and lora_alpha {alpha!r}: a whole number and a number are "
            f"expected."
        )
    return config


def layout(
    config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], sizes: Sizes, folder: Path
) -> Layout:
    """Returns the layout of an adapter whose ``tensors`` (name → shape) fit a network of ``sizes``.

    Raises ConfigError for a tensor that is no projection of this network or has another shape.
    """
    layers = {int(part) for name in tensors if (part := _layer(name)).isdecimal()}
    possible = set(sizes.family.projections)
    found = Layout(
        rank=config["r"],
        alpha=float(config["lora_alpha"]),
        layers=sorted(layers) or list(range(sizes.layers)),
        targets=sorted({name.split(".")[-3] for name in tensors if name.count(".") > 1} & possible)
        or sorted(possible),
        rslora=bool(config.get("use_rslora")),
    )
    expected = shapes(sizes, found.rank, found.layers, found.targets)
    unknown = tensors.keys() - expected.keys()
    if unknown:
        raise ConfigError(
            f"The adapter in {folder} changes {min(unknown)!r}, which is not a linear layer of "
            f"this network: only LoRA on {', '.join(sorted(possible))} of each block is served."
        )
    for name, given in tensors.items():
        if tuple(given) != expected[name]:
            raise bad_tensor(folder, name, given, expected[name])
    return found


def bad_tensor(folder: Path, name: str, given: Iterable[int], expected: Iterable[int]) -> ConfigError:
    """Returns the error for a tensor of another shape, or with a number that is not finite."""
    return ConfigError(
        f"The adapter in {folder} has a bad tensor {name!r} (shape {tuple(given)}, "
        f"expected {tuple(expected)}, all finite): it was made for another base model "
        f"or is damaged."
    )


def _layer(name: str) -> str:
    return name.partition(".layers.")[2].partition(".")[0]
