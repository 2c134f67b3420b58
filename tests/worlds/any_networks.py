"""Tiny random networks of families that our own forward does not compute, made by transformers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import transformers

_SIZES = {"vocab_size": 300, "hidden_size": 48, "num_hidden_layers": 2}
_BLOCKS = {**_SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
_GPT2 = {"vocab_size": 300, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 256}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", {**_BLOCKS, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt2": ("GPT2", _GPT2),
    "granite": ("Granite", {**_BLOCKS, "logits_scaling": 8.0}),
    "mamba": ("Mamba", {**_SIZES, "state_size": 8}),
}


def build(kind: str, folder: Path, tokenizer: Path) -> Path:
    """Writes a network of ``kind`` to ``folder``, with the tokenizer in the folder ``tokenizer``."""
    name, settings = KINDS[kind]
    config = getattr(transformers, f"{name}Config")(**settings, bos_token_id=1, eos_token_id=2)
    model = getattr(transformers, "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = model(config)
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.data.mul_(4)  # as small as they are drawn, an error of place would hardly show
    network.save_pretrained(folder)
    for path in tokenizer.glob("*token*"):
        shutil.copyfile(path, folder / path.name)
    shutil.copyfile(tokenizer / "chat_template.jinja", folder / "chat_template.jinja")
    return folder
