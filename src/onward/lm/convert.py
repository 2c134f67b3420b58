"""Converts a GGUF file to a transformers folder, once, so that later loads take seconds.

A Q4_1 file is dequantised to float32 here. The quantisation notes that transformers stores on the model must
be cleared, or the saved folder claims to be quantised.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from onward.errors import NotFoundError
from onward.lm.module_saving import save_module


def gguf_to_safetensors(gguf: Path, out: Path) -> None:
    """Writes ``config.json``, ``model.safetensors`` and the tokenizer files of ``gguf`` into ``out``. Takes
    about half a minute for 135 M parameters. Raises NotFoundError when ``gguf`` is not a file."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not gguf.is_file():
        raise NotFoundError(f"There is no GGUF file at {gguf}: give the path of an existing .gguf file.")
    source: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    out.mkdir(parents=True, exist_ok=True)
    save_module(model, out, safe_serialization=True)
    tokenizer.save_pretrained(out)
