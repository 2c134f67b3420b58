"""Constants of the forward loop beyond the sizes of a network, read from ``config.json`` by its family.

Needs no torch. A config that the loop would compute wrongly is refused here, with the field and its value, so
that a caller can take another path before anything is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onward.errors import ConfigError
from onward.lm.families.table import FAMILIES, FULL, SLIDING, Config, Family, completed, count


class UnsupportedNetworkError(ConfigError):
    """Our own forward loop does not compute this network; transformers may."""


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of one kind of layer."""

    kind: str
    theta: float
    dim: int
    """Number of places of a head that are rotated; the others pass unchanged."""
    original: int
    """Longest sequence of pre-training, in tokens."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The remaining parameters of the scaling, by their names in transformers."""


@dataclass(frozen=True)
class Traits:
    """Constants of the forward loop. Lists have one entry per layer."""

    norm_eps: float
    max_positions: int
    gate: str
    windows: tuple[int | None, ...]
    """Most tokens that a query sees, itself included; None: all earlier ones."""
    ropes: tuple[Rope, ...]
    rope_of: tuple[int | None, ...]
    """Index into ``ropes``; None: no rotary embedding."""
    attention_scale: float
    attention_cap: float | None
    """Scores s of attention become cap · tanh(s / cap); so do logits with theirs."""
    logit_cap: float | None
    embedding_scale: float | None


def supports(config: Config) -> str | None:
    """Returns why our own loop cannot compute the network of a parsed config, or None if it can.

    The reason is a clause that names each field and its value, to be put into a sentence.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        return f"model_type is {kind!r}, not one of {', '.join(FAMILIES)}"
    family, full = completed(config)
    try:
        wrong = _wrong(family, full)
        if not wrong:
            read(config)
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        return f"config.json is incomplete or not valid ({type(error).__name__}: {error})"
    return "; ".join(wrong) or None


def read(config: Config) -> Traits:
    """Reads the traits. The caller has checked ``supports``."""
    family, full = completed(config)
    head_dim = _head_dim(full)
    kinds, rotates = family.layer_types(full), family.rotates(full)
    ropes = _ropes(family, full)
    caps = {name: float(full[key]) for name, key in family.soft_caps.items() if full.get(key) is not None}
    positions, scale = int(full["max_position_embeddings"]), "query_pre_attn_scalar"
    if ropes[0].kind == "longrope":  # beyond, all angles change with the length of the sequence
        positions = min(positions, ropes[0].original)
    return Traits(
        norm_eps=float(full["rms_norm_eps"]),
        max_positions=positions,
        gate=family.gates[full.get(family.gate_field, "silu")],
        windows=tuple(int(full["sliding_window"]) if kind == SLIDING else None for kind in kinds),
        ropes=ropes,
        rope_of=tuple(
            (1 if kind == SLIDING and len(ropes) > 1 else 0) if rotated else None
            for kind, rotated in zip(kinds, rotates, strict=True)
        ),
        attention_scale=float(full[scale] if scale in family.defaults else head_dim) ** -0.5,
        attention_cap=caps.get("attention"),
        logit_cap=caps.get("logits"),
        embedding_scale=float(full["hidden_size"]) ** 0.5 if family.scaled_embedding else None,
    )


def _head_dim(full: Config) -> int:
    return int(full.get("head_dim") or full["hidden_size"] // full["num_attention_heads"])


def _wrong(family: Family, full: Config) -> list[str]:
    heads, layers = int(full["num_attention_heads"]), count(full)
    kv_heads = int(full.get("num_key_value_heads") or heads)
    gate = full.get(family.gate_field, "silu")
    missing = [name for name in ("vocab_size", "hidden_size", "intermediate_size") if not full.get(name)]
    if missing:
        return [f"{name} is missing" for name in missing]
    wrong = [
        f"{name} is {full[name]!r}, not {only!r}"
        for name, only in family.refused.items()
        if (full.get(name) or None) != only
    ]
    if gate not in family.gates:
        wrong.append(f"{family.gate_field} is {gate!r}, not {' or '.join(map(repr, family.gates))}")
    if full.get("quantization_config"):
        wrong.append("quantization_config is set, and the loop reads plain weights")
    if heads % kv_heads:
        wrong.append(f"num_attention_heads is {heads}, not a multiple of num_key_value_heads ({kv_heads})")
    kinds = family.layer_types(full)
    wrong += [f"layer_types has {kind!r}" for kind in sorted(set(kinds) - {FULL, SLIDING})]
    for name, found in (("layer_types", len(kinds)), ("no_rope_layers", len(family.rotates(full)))):
        if found != layers:
            wrong.append(f"{name} has {found} entries for {layers} layers")
    slides = full.get("use_sliding_window", True)
    window = full.get("sliding_window") if slides else None
    if SLIDING in kinds and (not isinstance(window, int) or window < 1):
        wrong.append(f"sliding_window is {window!r} where layers have a window")
    return wrong + _wrong_rotary(family, full)


def _wrong_rotary(family: Family, full: Config) -> list[str]:
    places = {name: full.get(name) for name in ("rope_scaling", "rope_parameters")}
    unread = [name for name, given in places.items() if not isinstance(given or {}, Mapping)]
    if unread:
        return [f"{name} is {places[name]!r}, not an object" for name in unread]
    parameters = full.get("rope_scaling") or full.get("rope_parameters") or {}
    if family.local_theta is None and parameters.keys() & {FULL, SLIDING}:
        return ["rope_parameters has an entry per kind of layer"]
    part, wrong = _part(full, parameters), []
    if part != 1.0 and not family.partial_rotary:
        wrong.append(f"partial_rotary_factor is {part!r}, not 1.0")
    for rope in _ropes(family, full):
        given = rope.options
        if rope.kind not in family.scalings:
            wrong.append(f"rope_type is {rope.kind!r}, not one of {', '.join(family.scalings)}")
            continue
        if rope.dim % 2 or not 0 < rope.dim <= _head_dim(full):
            wrong.append(f"the rotary embedding applies to {rope.dim} places of a head, not an even number")
        if given.get("mrope_section") is not None:
            wrong.append(f"mrope_section is {given['mrope_section']!r}, not None")
        needed = _NEEDED.get(rope.kind, ())
        wrong += [f"rope_type is {rope.kind!r} without {name}" for name in needed if given.get(name) is None]
        for name in ("short_factor", "long_factor"):
            if rope.kind == "longrope" and name in given and len(given[name]) != rope.dim // 2:
                wrong.append(f"{name} has {len(given[name])} entries, not {rope.dim // 2}")
        wrong += _wrong_numbers(rope)
    return wrong


def _wrong_numbers(rope: Rope) -> list[str]:
    """Returns a clause for each number of a rotary embedding with which its angles would not be finite."""
    numbers: dict[str, Any] = {"rope_theta": rope.theta, "original_max_position_embeddings": rope.original}
    if rope.kind != "default":
        numbers |= {name: rope.options.get(name) for name in _NUMBERS}
        numbers |= {name: rope.options.get(name) or None for name in _NUMBERS_OR_ZERO}
    wrong = [
        f"{name} is {given!r}, not a finite positive number"
        for name, given in numbers.items()
        if given is not None and not _is_positive(given)
    ]
    for name in ("short_factor", "long_factor") if rope.kind == "longrope" else ():
        given = rope.options.get(name)
        if given is not None and not all(map(_is_positive, given)):
            wrong.append(f"{name} is {given!r}, not a list of finite positive numbers")
    low, high = numbers.get("low_freq_factor"), numbers.get("high_freq_factor")
    if not wrong and low is not None and high is not None and not low < high:
        wrong.append(f"low_freq_factor is {low!r}, not less than high_freq_factor ({high!r})")
    return wrong


def _is_positive(given: Any) -> bool:
    return type(given) in (int, float) and 0 < given < math.inf


_NUMBERS = ("factor", "low_freq_factor", "high_freq_factor", "attention_factor")
_NUMBERS_OR_ZERO = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
"""Options of which transformers takes a zero as not given."""
_NEEDED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}


def _ropes(family: Family, full: Config) -> tuple[Rope, ...]:
    """Returns the rotary embedding of the network, or those of full layers and of layers with a window.

    transformers 5 writes ``rope_parameters``, earlier versions ``rope_theta`` and ``rope_scaling``.
    """
    scaling, parameters = full.get("rope_scaling"), full.get("rope_parameters")
    theta = full.get("rope_theta")
    if family.local_theta is None:
        return (_rope(family, full, scaling or parameters or {}, theta or family.theta),)
    nested = parameters or {}
    return (
        _rope(family, full, {**(nested.get(FULL) or {}), **(scaling or {})}, theta or family.theta),
        _rope(
            family, full, nested.get(SLIDING) or {}, full.get("rope_local_base_freq") or family.local_theta
        ),
    )


_PART = "partial_rotary_factor"
_ELSEWHERE = ("rope_type", "type", "rope_theta", "original_max_position_embeddings", _PART)
"""Parameters of the rotary embedding that are not among its options."""


def _part(full: Config, given: Mapping[str, Any]) -> float:
    return float(given.get(_PART) or full.get(_PART) or 1.0)


def _rope(family: Family, full: Config, given: Mapping[str, Any], theta: float) -> Rope:
    kind = given.get("rope_type") or given.get("type") or "default"
    if "longrope" in family.scalings and kind in ("su", "yarn"):
        kind = "longrope"  # its names in files of the first weeks
    options = {k: v for k, v in given.items() if k not in _ELSEWHERE}
    longest = int(full["max_position_embeddings"])
    original = full.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
    if kind == "longrope":
        original = int(original or longest)
        options["factor"] = options.get("factor") or longest / original
    part = _part(full, given) if family.partial_rotary else 1.0
    return Rope(
        kind=kind,
        theta=float(given.get("rope_theta") or theta),
        dim=int(_head_dim(full) * part),
        original=int(original or longest),
        options=options,
    )
