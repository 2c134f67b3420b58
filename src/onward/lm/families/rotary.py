"""Rotary embedding of each kind, as tables of complex factors (RoFormer, eq. 34).

The factor of position p and pair j is s·e^(i·p·f_j). A kind of scaling changes the frequencies f, and yarn
and longrope also the length s.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from onward.lm.families.traits import Rope

BOUNDED = ("dynamic", "longrope")
"""Kinds whose factors depend on the length of the sequence beyond ``Shape.max_positions``."""


def rope_table(rope: Rope, length: int, device: torch.device) -> Tensor:
    """Returns (length, 1, rotated / 2) complex factors."""
    exponent = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    frequency, scale = _SCALINGS[rope.kind](rope, 1.0 / (rope.theta**exponent))
    angle = torch.arange(length, dtype=torch.float32)[:, None] * frequency
    return torch.polar(torch.full_like(angle, scale), angle)[:, None, :].to(device)


def _default(rope: Rope, frequency: Tensor) -> tuple[Tensor, float]:
    """Also of dynamic scaling: it changes nothing up to the longest sequence that the config allows."""
    return frequency, 1.0


def _linear(rope: Rope, frequency: Tensor) -> tuple[Tensor, float]:
    return frequency / rope.options["factor"], 1.0


def _llama3(rope: Rope, frequency: Tensor) -> tuple[Tensor, float]:
    """Divides low frequencies by the factor, leaves high ones, and blends between the two (Llama 3.1)."""
    factor = rope.options["factor"]
    low, high = rope.options["low_freq_factor"], rope.options["high_freq_factor"]
    turns = rope.original * frequency / (2 * math.pi)  # in the original context
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * frequency / factor + blend * frequency, 1.0


def _yarn(rope: Rope, frequency: Tensor) -> tuple[Tensor, float]:
    """Interpolates dimensions that turn slowly, by a ramp over dimensions (2309.00071, section 3.2)."""
    given, factor = rope.options, rope.options["factor"]

    def dimension(turns: float) -> float:
        return rope.dim * math.log(rope.original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(given.get("beta_fast") or 32), dimension(given.get("beta_slow") or 1)
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    ramp = (torch.arange(rope.dim // 2, dtype=torch.float32) - low) / (high - low or 0.001)
    slow = ramp.clamp(0, 1)
    return frequency / factor * slow + frequency * (1 - slow), _yarn_scale(rope)


def _yarn_scale(rope: Rope) -> float:
    given, factor = rope.options, rope.options["factor"]
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if given.get("mscale") and given.get("mscale_all_dim"):
        return scale(given["mscale"]) / scale(given["mscale_all_dim"])
    return scale(1.0)


def _longrope(rope: Rope, frequency: Tensor) -> tuple[Tensor, float]:
    """Divides by the factors of short sequences (2402.13753)."""
    given, factor = rope.options, rope.options["factor"]
    scale = given.get("attention_factor")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(rope.original)) if factor > 1 else 1.0
    return frequency / torch.tensor(given["short_factor"], dtype=torch.float32), float(scale)


_SCALINGS: dict[str, Callable[[Rope, Tensor], tuple[Tensor, float]]] = {
    "default": _default,
    "dynamic": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
