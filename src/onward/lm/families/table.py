"""The table of families: one entry per ``model_type``, and all that differs from plain Llama.

Invariants: an entry says what transformers computes for this ``model_type``, defaults included, since a
``config.json`` may omit any field. A new family is a new entry here and a line in the tests' table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Config = Mapping[str, Any]

FULL, SLIDING = "full_attention", "sliding_attention"
"""The kinds of layer in ``layer_types``."""

SEPARATE: Mapping[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "out": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""Matrix of our layer → its projections in transformers, from top to bottom."""
STACKED: Mapping[str, tuple[str, ...]] = {
    "qkv": ("qkv_proj",),
    "out": ("o_proj",),
    "gate_up": ("gate_up_proj",),
    "down": ("down_proj",),
}

BEFORE: Mapping[str, str] = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
"""Norm of our layer → its name in transformers: each half of a block normalises its input."""
AFTER: Mapping[str, str] = {
    "attention_out_norm": "post_attention_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}
"""Each half of a block normalises its output, before it is added."""
AROUND: Mapping[str, str] = {
    "attention_norm": "input_layernorm",
    "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}

GATES: Mapping[str, str] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
"""Activation in ``config.json`` → ours."""
SCALINGS = ("default", "linear", "dynamic", "yarn", "llama3")
_WHERE_ASKED: Mapping[str, str | Literal[True]] = {"qkv": "attention_bias", "out": "attention_bias"}


def count(config: Config) -> int:
    return int(config["num_hidden_layers"])


def _all_full(config: Config) -> list[str]:
    return [FULL] * count(config)


def _all_sliding(config: Config) -> list[str]:
    kind = FULL if config.get("sliding_window") is None else SLIDING
    return [kind] * count(config)


def _upper_sliding(config: Config) -> list[str]:
    first = config["max_window_layers"] if config["use_sliding_window"] else count(config)
    return config.get("layer_types") or [FULL if i < first else SLIDING for i in range(count(config))]


def _alternating(config: Config) -> list[str]:
    return config.get("layer_types") or [SLIDING if (i + 1) % 2 else FULL for i in range(count(config))]


def _by_pattern(config: Config) -> list[str]:
    """Every n-th layer sees everything, where n is ``sliding_window_pattern``."""
    n = int(config["sliding_window_pattern"])
    return config.get("layer_types") or [SLIDING if (i + 1) % n else FULL for i in range(count(config))]


def _sliding_without_rotary(config: Config) -> list[str]:
    slides = config["use_sliding_window"] and config.get("sliding_window") is not None
    kinds = [FULL if rotates or not slides else SLIDING for rotates in _some_rotate(config)]
    return config.get("layer_types") or kinds


def _all_rotate(config: Config) -> list[bool]:
    return [True] * count(config)


def _some_rotate(config: Config) -> list[bool]:
    n = int(config["no_rope_layer_interval"])
    rotates = config.get("no_rope_layers") or [(i + 1) % n for i in range(count(config))]
    return [bool(one) for one in rotates]


@dataclass(frozen=True, eq=False)
class Family:
    """The network of a ``model_type``. Fields left out are those of plain Llama without options."""

    model_type: str
    title: str
    """Names of the published models."""
    special: str
    """Differences from plain Llama, for people."""
    norms: Mapping[str, str] = field(default_factory=lambda: BEFORE)
    centred_norms: bool = False
    """A norm multiplies by 1 + weight."""
    qk_norm: Literal["none", "head", "width"] = "none"
    """q and k are normalised head by head, over their whole width, or not at all."""
    bias: Mapping[str, str | Literal[True]] = field(default_factory=dict)
    """Matrix of our layer → True if its projections have a bias, or the field of the config that says so."""
    stacks: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: SEPARATE)
    gates: Mapping[str, str] = field(default_factory=lambda: GATES)
    gate_field: str = "hidden_act"
    scaled_embedding: bool = False
    """Embeddings are multiplied by √hidden, rounded to their dtype."""
    soft_caps: Mapping[str, str] = field(default_factory=dict)
    """``attention`` and ``logits`` → the field of the config with the cap."""
    layer_types: Callable[[Config], list[str]] = _all_full
    rotates: Callable[[Config], list[bool]] = _all_rotate
    """Layers with rotary embedding."""
    scalings: tuple[str, ...] = SCALINGS
    theta: float = 10_000.0
    local_theta: float | None = None
    """Base of the rotary embedding in layers with a window, where it has a base of its own."""
    partial_rotary: bool = False
    """Rotary embedding may apply to the first part of a head only."""
    refused: Mapping[str, Any] = field(default_factory=dict)
    """Field → the only value with which our loop is right."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of transformers for fields that a config omits."""

    @property
    def projections(self) -> tuple[str, ...]:
        """Names of a block's linear layers in transformers."""
        return tuple(name for names in self.stacks.values() for name in names)


_SMALL_EPS = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False}
_WINDOWED = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_GEMMA = {
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "head_dim": 256,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh",
}
_CAUSAL = {"use_bidirectional_attention": None}

LLAMA = Family(
    "llama",
    "Llama 2, Llama 3, SmolLM2",
    "rotary scaling linear, dynamic, yarn and llama3",
    bias={**_WHERE_ASKED, "gate_up": "mlp_bias", "down": "mlp_bias"},
    defaults={**_SMALL_EPS, "max_position_embeddings": 2048},
)

FAMILIES: Mapping[str, Family] = {
    entry.model_type: entry
    for entry in (
        LLAMA,
        Family(
            "qwen2",
            "Qwen2, Qwen2.5",
            "bias of q, k and v; windows in upper layers if asked for",
            bias={"qkv": True},
            layer_types=_upper_sliding,
            defaults={**_SMALL_EPS, **_WINDOWED, "max_position_embeddings": 32768},
        ),
        Family(
            "qwen3",
            "Qwen3",
            "q and k normalised per head; head size of its own; windows in upper layers if asked for",
            qk_norm="head",
            bias=_WHERE_ASKED,
            layer_types=_upper_sliding,
            defaults={**_SMALL_EPS, **_WINDOWED, "head_dim": 128, "max_position_embeddings": 32768},
        ),
        Family(
            "mistral",
            "Mistral 7B, Mistral Nemo",
            "a window in every layer",
            layer_types=_all_sliding,
            defaults={
                **_SMALL_EPS,
                "num_key_value_heads": 8,
                "sliding_window": 4096,
                "max_position_embeddings": 131072,
            },
        ),
        Family(
            "gemma",
            "Gemma",
            "norms of 1 + weight; gelu (tanh); scaled embedding",
            centred_norms=True,
            bias=_WHERE_ASKED,
            gates={**GATES, "gelu": "gelu_tanh"},
            scaled_embedding=True,
            refused=_CAUSAL,
            defaults={
                "rms_norm_eps": 1e-6,
                "tie_word_embeddings": True,
                "head_dim": 256,
                "num_key_value_heads": 16,
                "hidden_act": "gelu_pytorch_tanh",
                "max_position_embeddings": 8192,
            },
        ),
        Family(
            "gemma2",
            "Gemma 2",
            "four norms of 1 + weight per block; gelu (tanh); scaled embedding; soft caps on attention "
            "and logits; a window in every second layer",
            norms=AROUND,
            centred_norms=True,
            bias=_WHERE_ASKED,
            gate_field="hidden_activation",
            scaled_embedding=True,
            soft_caps={"attention": "attn_logit_softcapping", "logits": "final_logit_softcapping"},
            layer_types=_alternating,
            refused=_CAUSAL,
            defaults={
                **_GEMMA,
                "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0,
                "max_position_embeddings": 8192,
            },
        ),
        Family(
            "gemma3_text",
            "Gemma 3 (text)",
            "as Gemma 2, with q and k normalised per head instead of a soft cap on attention; windows in "
            "five of six layers, with a rotary base of their own",
            norms=AROUND,
            centred_norms=True,
            qk_norm="head",
            bias=_WHERE_ASKED,
            gate_field="hidden_activation",
            scaled_embedding=True,
            soft_caps={"logits": "final_logit_softcapping"},
            layer_types=_by_pattern,
            theta=1_000_000.0,
            local_theta=10_000.0,
            refused={**_CAUSAL, "attn_logit_softcapping": None},
            defaults={**_GEMMA, "sliding_window_pattern": 6, "max_position_embeddings": 131072},
        ),
        Family(
            "phi3",
            "Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini",
            "stacked qkv_proj and gate_up_proj; rotary embedding on a part of each head; longrope up to "
            "the original length; a window in every layer if set",
            stacks=STACKED,
            layer_types=_all_sliding,
            scalings=("default", "longrope"),
            partial_rotary=True,
            defaults={
                "rms_norm_eps": 1e-5,
                "tie_word_embeddings": False,
                "max_position_embeddings": 4096,
                "original_max_position_embeddings": 4096,
            },
        ),
        Family(
            "smollm3",
            "SmolLM3",
            "every fourth layer without rotary embedding",
            bias={**_WHERE_ASKED, "gate_up": "mlp_bias", "down": "mlp_bias"},
            layer_types=_sliding_without_rotary,
            rotates=_some_rotate,
            theta=2_000_000.0,
            defaults={
                "rms_norm_eps": 1e-6,
                "tie_word_embeddings": True,
                "num_key_value_heads": 4,
                "use_sliding_window": False,
                "no_rope_layer_interval": 4,
                "max_position_embeddings": 32768,
            },
        ),
        Family(
            "olmo2",
            "OLMo 2",
            "norms after attention and MLP only; q and k normalised over their whole width",
            norms=AFTER,
            qk_norm="width",
            bias=_WHERE_ASKED,
            defaults={
                "rms_norm_eps": 1e-5,
                "tie_word_embeddings": False,
                "max_position_embeddings": 2048,
            },
        ),
    )
}


def completed(config: Config) -> tuple[Family, dict[str, Any]]:
    """Returns the family of a parsed config and the config with transformers' values of omitted fields.

    A ``model_type`` that is in no entry is read as Llama: then only sizes can be taken from the result.
    """
    family = FAMILIES.get(str(config.get("model_type")), LLAMA)
    return family, {**family.defaults, **config}
