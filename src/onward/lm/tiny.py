"""A network of about one million parameters with a tokenizer of its own, for tests and the demo.

The tokenizer is trained on the caller's corpus, so the corpus must contain the vocabulary of the tasks. Other
text still works (byte level) but costs many tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Control tokens of the chat template, in the order of their ids."""
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def build_tiny(
    folder: Path,
    corpus: Iterable[str],
    seed: int = 0,
    *,
    vocab: int = 1024,
    hidden: int = 128,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 384,
    max_positions: int = 2048,
    rope_theta: float = 10000.0,
    split: str | None = None,
    family: Literal["llama", "qwen2"] = "llama",
) -> Path:
    """Writes a randomly initialised network of ``family`` and its ChatML tokenizer to ``folder``.

    ``vocab`` is an upper bound on the byte-level BPE vocabulary (at least 259 is used). ``split`` is a
    regular expression for the pieces inside which BPE may merge (default: GPT-2's words, single digits). If
    it matches whole phrases, frequent phrases become single tokens. The same corpus, sizes, split and seed
    give the same files. Returns ``folder``.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    if split is None:
        pieces = [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    else:
        pieces = [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    backend.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(corpus, trainer)
    return save_network(
        folder,
        backend,
        seed,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        intermediate=intermediate,
        max_positions=max_positions,
        rope_theta=rope_theta,
        family=family,
    )


def save_network(
    folder: Path,
    backend: Tokenizer,
    seed: int = 0,
    *,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    max_positions: int,
    initializer_range: float = 0.02,
    rope_theta: float = 10000.0,
    family: Literal["llama", "qwen2"] = "llama",
) -> Path:
    """Writes a randomly initialised network for the tokenizer ``backend``, whose vocabulary begins with
    ``SPECIAL``, and the ChatML template to ``folder``. Returns ``folder``. ``initializer_range``: standard
    deviation of the weights."""
    from safetensors.torch import save_file
    from transformers import PreTrainedTokenizerFast

    folder = Path(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<|endoftext|>",
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    tokenizer.chat_template = CHATML
    special = {
        "bos_token_id": backend.token_to_id("<|im_start|>"),
        "eos_token_id": backend.token_to_id("<|im_end|>"),
        "pad_token_id": backend.token_to_id("<|endoftext|>"),
    }
    config = {
        **_COMMON,
        **(_LLAMA if family == "llama" else {**_QWEN2, "layer_types": ["full_attention"] * layers}),
        **special,
        "vocab_size": backend.get_vocab_size(),
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "intermediate_size": intermediate,
        "max_position_embeddings": max_positions,
        "initializer_range": initializer_range,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_random_weights(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
    for name, values in (
        ("config.json", config),
        ("generation_config.json", {"_from_model_config": True, **special}),
    ):
        (folder / name).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
    tokenizer.save_pretrained(folder)
    return folder


_COMMON: dict[str, Any] = {
    "attention_dropout": 0.0,
    "dtype": "float32",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "use_cache": True,
}
_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "mlp_bias": False,
    "pretraining_tp": 1,
}
_QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "max_window_layers": 28,
    "sliding_window": None,
    "use_sliding_window": False,
}


def _random_weights(config: dict[str, Any], seed: int) -> dict[str, Tensor]:
    """Returns the weights that transformers would draw for ``seed``, without its model classes, whose import
    takes seconds. Its layers are filled twice: when they are made, and then as the configuration says."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    biased = ("q_proj", "k_proj", "v_proj") if config["model_type"] == "qwen2" else ()
    block = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    layers = [f"model.layers.{number}" for number in range(config["num_hidden_layers"])]
    projections = {f"{layer}.{name}": size for layer in layers for name, size in block.items()}
    embedding = torch.empty(config["vocab_size"], hidden).normal_(generator=generator)
    for name, size in projections.items():
        torch.empty(size).uniform_(generator=generator)
        if name.endswith(biased):
            torch.empty(size[0]).uniform_(generator=generator)
    std = config["initializer_range"]
    embedding.normal_(0.0, std, generator=generator)[config["pad_token_id"]] = 0.0
    weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(hidden)}
    for name, size in projections.items():
        weights[f"{name}.weight"] = torch.empty(size).normal_(0.0, std, generator=generator)
        if name.endswith(biased):
            weights[f"{name}.bias"] = torch.zeros(size[0])
    for layer in layers:
        weights[f"{layer}.input_layernorm.weight"] = torch.ones(hidden)
        weights[f"{layer}.post_attention_layernorm.weight"] = torch.ones(hidden)
    return weights
