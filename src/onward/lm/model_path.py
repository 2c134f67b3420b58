"""Choice between the two forward passes that run a model: our own (fast), or transformers' modules.

Our own is several times faster and computes the families that it knows; every other causal language model
goes the second way. Reads the parsed ``config.json`` alone, without torch, so that a user learns it before
anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from onward.lm.adapter_files import BLOCK
from onward.lm.families import traits as families
from onward.lm.sizes import Sizes

ComputePath = Literal["fast", "transformers"]
"""Code that computes a network: our own forward pass, or the modules of transformers."""
AskedPath = Literal["auto", "transformers"]


class ModelPath(NamedTuple):
    """The forward pass of a model, and why it is this one, as a clause."""

    name: ComputePath
    reason: str


def path_of(config: Mapping[str, Any], asked: AskedPath = "auto") -> ModelPath:
    """Returns the forward pass for a network with this ``config.json``."""
    if asked == "transformers":
        return ModelPath("transformers", "it was asked for")
    why_not = families.supports(config)
    if why_not is None:
        return ModelPath("fast", "Onward's own forward pass knows this network")
    return ModelPath("transformers", why_not)


def expected_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each tensor that the fast path reads, by its name; nothing for another path.
    Raises KeyError, ValueError for a configuration without its sizes."""
    if path_of(config).name != "fast":
        return {}
    sizes = Sizes.from_config(config)
    found = {"model.embed_tokens.weight": (sizes.vocab, sizes.hidden), "model.norm.weight": (sizes.hidden,)}
    for layer in range(sizes.layers):
        found |= {f"model.layers.{layer}.{name}": shape for name, shape in _of_layer(sizes).items()}
    if not sizes.tied:
        found["lm_head.weight"] = (sizes.vocab, sizes.hidden)
    return found


def _of_layer(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    family, projections = sizes.family, sizes.projections()
    found: dict[str, tuple[int, ...]] = {}
    for stack, names in family.stacks.items():
        for name in names:
            found[f"{BLOCK[name]}.{name}.weight"] = projections[name]
            if stack in sizes.biased:
                found[f"{BLOCK[name]}.{name}.bias"] = projections[name][:1]
    found |= {f"{name}.weight": (sizes.hidden,) for name in family.norms.values()}
    for name, size in zip(("q_norm", "k_norm"), sizes.qk_norms, strict=True):
        if size:
            found[f"self_attn.{name}.weight"] = (size,)
    return found
