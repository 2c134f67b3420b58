"""Sizes of a dense decoder, as stated in ``config.json``, and the digest of its files.

Needs no torch, so the requirements of a run are known before anything is loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from onward.errors import ConfigError
from onward.lm.families.table import LLAMA, Family, completed


class NetworkSizes(Protocol):
    """Numbers of a network for the estimates of a run."""

    is_fast: bool
    """True if our own forward computes it."""

    @property
    def parameters(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def block(self) -> int:
        """Weights of a block that each token is multiplied with."""
        ...

    @property
    def cached_values(self) -> int:
        """Values per token in a cache of keys and values."""
        ...

    def kept_values(self, rank: int) -> int:
        """Returns the number of values that a block stores per token for its backward pass."""
        ...

    def lora_parameters(self, rank: int, layers: Collection[int], targets: Iterable[str] | None) -> int:
        """Counts the parameters of an adapter. Targets that only another family has are not counted."""
        ...

    def refuse_other_targets(self, targets: Iterable[str]) -> None:
        """Raises ConfigError for targets that are no linear layers of a block."""
        ...


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
    family: Family = LLAMA
    biased: frozenset[str] = frozenset()
    """Matrices of a layer whose projections have a bias: qkv, out, gate_up, down."""
    is_fast = True

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **more: Any) -> Self:
        """Reads sizes from a parsed config. ``more``: fields of a subclass. Raises KeyError, ValueError.

        A network of no known family is taken for a Llama-shaped one.
        """
        family, config = completed(config)
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
            family=family,
            biased=frozenset(
                stack for stack, asked in family.bias.items() if asked is True or config.get(asked)
            ),
            **more,
        )

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads the sizes from a folder. Raises ConfigError if its ``config.json`` does not state them."""
        try:
            return cls.from_config(json.loads((folder / "config.json").read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
            raise ConfigError(
                f"{folder} does not tell the sizes of its network ({type(error).__name__} in config.json): "
                f"give a folder in transformers form."
            ) from None

    def projections(self) -> dict[str, tuple[int, int]]:
        """(output, input) size of each projection of a block, by its name in transformers."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        sizes = {
            "q_proj": (q, self.hidden),
            "k_proj": (kv, self.hidden),
            "v_proj": (kv, self.hidden),
            "qkv_proj": (q + 2 * kv, self.hidden),
            "o_proj": (self.hidden, q),
            "gate_proj": (self.intermediate, self.hidden),
            "up_proj": (self.intermediate, self.hidden),
            "gate_up_proj": (2 * self.intermediate, self.hidden),
            "down_proj": (self.hidden, self.intermediate),
        }
        return {name: sizes[name] for name in self.family.projections}

    @property
    def block(self) -> int:
        """Parameters of one block."""
        sizes = self.projections()
        total = sum(a * b for a, b in sizes.values()) + len(self.family.norms) * self.hidden
        total += sum(sizes[name][0] for stack in self.biased for name in self.family.stacks[stack])
        return total + sum(self.qk_norms)

    @property
    def qk_norms(self) -> tuple[int, int]:
        """Parameters of the norm of q and of the norm of k; 0 without one."""
        if self.family.qk_norm == "none":
            return 0, 0
        per_head = self.family.qk_norm == "head"
        return (
            self.head_dim * (1 if per_head else self.heads),
            self.head_dim * (1 if per_head else self.kv_heads),
        )

    @property
    def cached_values(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim

    def kept_values(self, rank: int) -> int:
        heads = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        return 6 * self.hidden + 2 * heads + 4 * self.intermediate + 14 * rank

    def lora_parameters(self, rank: int, layers: Collection[int], targets: Iterable[str] | None) -> int:
        sizes = self.projections()
        chosen = [sizes[name] for name in (sizes if targets is None else targets) if name in sizes]
        return len(layers) * rank * sum(a + b for a, b in chosen)

    def refuse_other_targets(self, targets: Iterable[str]) -> None:
        chosen, possible = sorted(set(targets)), self.family.projections
        if not chosen or not set(chosen) <= set(possible):
            raise ConfigError(
                f"An adapter on {chosen} is not possible: choose targets among {', '.join(possible)}."
            )

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
