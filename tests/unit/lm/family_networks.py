"""Random networks of every family, made by transformers: the one table behind the tests of families.

A new family is one entry in ``NETWORKS``. Sizes are odd on purpose: heads do not fill the hidden size,
windows are shorter than the rows, and norms and biases are far from their initial values.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB = 300
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 32}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.2, 1.7],
    "long_factor": [2.0, 3.0, 5.0],
}
_SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]


@dataclass(frozen=True)
class Network:
    """Class of the configuration in transformers, and what differs from ``COMMON``."""

    config: str
    fields: dict[str, Any] = field(default_factory=dict)


COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_THETA = {"rope_type": "default", "rope_theta": 500.0}

NETWORKS: dict[str, Network] = {
    "llama": Network("LlamaConfig", {"rope_parameters": _THETA, "head_dim": 8}),
    "llama-bias": Network("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3": Network("LlamaConfig", {"rope_parameters": _LLAMA3}),
    "llama-linear": Network(
        "LlamaConfig", {"rope_parameters": {**_THETA, "rope_type": "linear", "factor": 3.0}}
    ),
    "llama-dynamic": Network(
        "LlamaConfig", {"rope_parameters": {**_THETA, "rope_type": "dynamic", "factor": 3.0}}
    ),
    "llama-yarn": Network("LlamaConfig", {"rope_parameters": _YARN, "head_dim": 16}),
    "llama-yarn-scaled": Network(
        "LlamaConfig",
        {
            "head_dim": 16,
            "rope_parameters": {**_YARN, "attention_factor": 1.3, "beta_fast": 8, "truncate": False},
        },
    ),
    "qwen2": Network("Qwen2Config", {"rope_parameters": _THETA}),
    "qwen2-windows": Network(
        "Qwen2Config", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    ),
    "qwen3": Network("Qwen3Config", {"head_dim": 10, "tie_word_embeddings": True}),
    "qwen3-bias": Network("Qwen3Config", {"head_dim": 4, "attention_bias": True, "num_key_value_heads": 1}),
    "mistral": Network("MistralConfig", {"sliding_window": 5, "head_dim": 8}),
    "mistral-full": Network("MistralConfig", {"sliding_window": None}),
    "gemma": Network("GemmaConfig", {"head_dim": 10, "tie_word_embeddings": True}),
    "gemma2": Network(
        "Gemma2Config",
        {
            "head_dim": 8,
            "tie_word_embeddings": True,
            "sliding_window": 5,
            "query_pre_attn_scalar": 12,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma2-plain": Network(
        "Gemma2Config",
        {"head_dim": 8, "attn_logit_softcapping": None, "final_logit_softcapping": None, "sliding_window": 6},
    ),
    "gemma3": Network(
        "Gemma3TextConfig",
        {
            "head_dim": 8,
            "tie_word_embeddings": True,
            "sliding_window": 5,
            "query_pre_attn_scalar": 20,
            "layer_types": _SLIDING,
            "final_logit_softcapping": 4.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 900.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
    "phi3": Network(
        "Phi3Config",
        {
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "sliding_window": 5,
            "rope_parameters": {**_THETA, "partial_rotary_factor": 0.75},
        },
    ),
    "phi3-plain": Network("Phi3Config", {"rope_parameters": {**_THETA, "partial_rotary_factor": 1.0}}),
    "phi3-longrope": Network(
        "Phi3Config", {"original_max_position_embeddings": 64, "rope_parameters": _LONG}
    ),
    "smollm3": Network("SmolLM3Config", {"no_rope_layers": [1, 0, 1], "tie_word_embeddings": True}),
    "smollm3-windows": Network(
        "SmolLM3Config",
        {
            "no_rope_layer_interval": 2,
            "use_sliding_window": True,
            "sliding_window": 5,
            "attention_bias": True,
        },
    ),
    "olmo2": Network("Olmo2Config", {"rope_parameters": _THETA}),
    "olmo2-bias": Network("Olmo2Config", {"attention_bias": True, "num_key_value_heads": 4}),
}


ONE_EACH = [name for name in NETWORKS if "-" not in name] + ["llama-bias"]
"""One network of each family, for tests that take longer, and the one with every bias."""


def config_of(name: str) -> Any:
    network = NETWORKS[name]
    made = getattr(importlib.import_module("transformers"), network.config)
    return made(**{**COMMON, **network.fields})


def build(name: str, folder: Path, seed: int = 0) -> Path:
    """Writes the network ``name``, all of its tensors random, to ``folder``."""
    model = transformers.AutoModelForCausalLM.from_config(config_of(name))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for kind, parameter in model.named_parameters():
            spread = 0.3 if "norm" in kind or "bias" in kind else 0.15 if "proj" in kind else 0.4
            centre = 1.0 if "norm" in kind and not name.startswith("gemma") else 0.0
            parameter.copy_(centre + spread * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder)
    return folder
