"""A base model's folder and LoRA adapters for it, as other programs leave them on disk: made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from onward.lm.model_path import expected_tensors

SIZES = {
    "model_type": "llama", "vocab_size": 32, "hidden_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 12,
}  # fmt: skip
PLAIN = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "target_modules": ["q_proj"]}
Q = "base_model.model.model.layers.1.self_attn.q_proj.lora_"
"""Beginning of the names of the adapter's two tensors."""


def write_base(folder: Path) -> Path:
    """Writes a base model whose weights are zeros: nothing computes with them."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(SIZES))
    end = {"id": 0, "content": "<|im_end|>", "special": True}
    tokenizer = {"model": {"type": "BPE", "vocab": {"<|im_end|>": 0}}, "added_tokens": [end]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    template = "{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    tensors = {name: np.zeros(shape, np.float32) for name, shape in expected_tensors(SIZES).items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_adapter(folder: Path, value: float) -> Path:
    """Writes an adapter as peft's trainer leaves it, beside a file that must never be loaded."""
    folder.mkdir()
    tensors = {
        Q + "A.weight": np.ones((2, 8), np.float32),
        Q + "B.weight": np.full((8, 2), value, np.float32),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(PLAIN))
    (folder / "training_args.bin").write_bytes(b"\x80\x04 a pickle")
    return folder
