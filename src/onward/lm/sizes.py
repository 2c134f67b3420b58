"""Sizes of a Llama-shaped network, as stated in ``config.json``, and the digest of its files.

Needs no torch, so the requirements of a run are known before anything is loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from onward.errors import ConfigError


@dataclass(frozen=True)
class Sizes:
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    tied: bool

    @classmethod
    def of(cls, config: Mapping[str, Any], **more: Any) -> Self:
        """Reads sizes from a parsed config. ``more``: fields of a subclass. Raises KeyError, ValueError."""
        heads = int(config["num_attention_heads"])
        return cls(
            vocab=int(config["vocab_size"]),
            hidden=int(config["hidden_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            intermediate=int(config["intermediate_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            **more,
        )

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads the sizes from a folder. Raises ConfigError if it has no network of the Llama form."""
        try:
            return cls.of(json.loads((folder / "config.json").read_bytes()))
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"{folder} does not tell the sizes of its network ({type(error).__name__} in config.json): "
                f"give a folder in transformers form."
            ) from None

    def projections(self) -> dict[str, tuple[int, int]]:
        """(output, input) size of each projection of a block, by its name in transformers."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": (q, self.hidden),
            "k_proj": (kv, self.hidden),
            "v_proj": (kv, self.hidden),
            "o_proj": (self.hidden, q),
            "gate_proj": (self.intermediate, self.hidden),
            "up_proj": (self.intermediate, self.hidden),
            "down_proj": (self.hidden, self.intermediate),
        }

    @property
    def block(self) -> int:
        """Parameters of one block."""
        return sum(a * b for a, b in self.projections().values()) + 2 * self.hidden

    @property
    def parameters(self) -> int:
        embedding = self.vocab * self.hidden * (1 if self.tied else 2)
        return embedding + self.layers * self.block + self.hidden


def folder_digest(folder: Path) -> str:
    """SHA-256 over the sorted (name, SHA-256) of the configuration, weight and tokenizer files."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".safetensors", ".jinja") and path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(f"{path.name} {digest}\n".encode())
    return total.hexdigest()
