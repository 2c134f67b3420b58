"""A language policy: base weights, which an adapter's training never changes, and named adapters.

``weights`` is in our own layout (stacked and, for q and k, permuted, see ``network``). Everything written to
disk is in transformers' and peft's layout, so that any other engine can load it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from onward.errors import ConfigError, ConflictError, NotFoundError
from onward.lm.adapter_files import BLOCK
from onward.lm.adapters import STACKS, Adapter
from onward.lm.head import token_logprobs
from onward.lm.network import Layer, Segment, Shape, Weights, final_norm, rope_table, run_layers
from onward.lm.packing import Packed, common_prefix
from onward.lm.sizes import folder_digest
from onward.lm.tokens import TokenRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Policy:
    """Weights, tokenizer and resident adapters. Not safe for use from several threads at once."""

    def __init__(self, shape: Shape, weights: Weights, folder: Path, device: torch.device) -> None:
        self.shape = shape
        self.weights = weights
        self.folder = folder
        self.device = device
        self.adapters: dict[str, Adapter] = {}
        self._angles = rope_table(shape, min(shape.max_positions, 1024), device)

    @classmethod
    def load(cls, folder: Path, *, device: str = "cpu", dtype: str = "float32") -> Policy:
        """Reads a transformers folder with a Llama-shaped network in safetensors. Raises ConfigError for
        other content. On CPUs float32 is by far the fastest."""
        folder = Path(folder)
        shape = Shape.read(folder)
        where = torch.device(device)
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ConfigError(f"{folder} has no .safetensors file: convert the weights to safetensors first.")
        kind = getattr(torch, dtype)
        try:
            with torch.inference_mode(False):  # in-place writes must be counted in any mode
                raw = {name: t.to(where, kind) for file in files for name, t in load_file(file).items()}
                weights = _from_transformers(shape, raw)
        except KeyError as missing:
            raise ConfigError(
                f"The weights in {folder} have no tensor {missing}: the file is incomplete or not of a Llama "
                f"network."
            ) from None
        return cls(shape, weights, folder, where)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder, local_files_only=True)

    @cached_property
    def base_digest(self) -> str:
        return folder_digest(self.folder)

    def save(self, folder: Path) -> None:
        """Writes the base weights (after full-parameter training) and the tokenizer to ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        raw = {
            k: v.detach().cpu().contiguous() for k, v in _to_transformers(self.shape, self.weights).items()
        }
        save_file(raw, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((self.folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        self.tokenizer.save_pretrained(folder)

    def new_adapter(
        self,
        name: str,
        rank: int = 16,
        alpha: float = 32.0,
        layers: Sequence[int] | None = None,
        seed: int = 0,
        targets: Sequence[str] | None = None,
    ) -> Adapter:
        """Creates an adapter that changes nothing yet; None means all ``layers``, all seven ``targets``."""
        self._free(name)
        chosen = range(self.shape.layers) if layers is None else layers
        self.adapters[name] = Adapter(
            self.shape, rank, alpha, chosen, self.device, seed, targets, self.weights.norm.dtype
        )
        return self.adapters[name]

    def add_adapter(self, name: str, folder: Path) -> Adapter:
        """Loads the peft adapter in ``folder`` and makes it resident under ``name``."""
        self._free(name)
        self.adapters[name] = Adapter.read(self.shape, Path(folder), self.device, self.weights.norm.dtype)
        return self.adapters[name]

    def save_adapter(self, name: str, folder: Path) -> None:
        self.adapter(name).save(Path(folder), base=self.folder.name)

    def remove_adapter(self, name: str) -> None:
        self.adapter(name)
        del self.adapters[name]

    def adapter(self, name: str) -> Adapter:
        found = self.adapters.get(name)
        if found is None:
            raise NotFoundError(f"No adapter {name!r} is loaded: load it with add_adapter or use one of "
                                f"{sorted(self.adapters)}.")  # fmt: skip
        return found

    def _free(self, name: str) -> None:
        if name in self.adapters:
            raise ConflictError(
                f"An adapter {name!r} is loaded already: remove it first or choose another name."
            )

    def angles(self, positions: Tensor) -> Tensor:
        """Returns rotary factors (tokens, 1, head_dim / 2) for token ``positions``."""
        need = int(positions.max()) + 1 if len(positions) else 0
        if need > len(self._angles):
            self._angles = rope_table(self.shape, max(need, 2 * len(self._angles)), self.device)
        return self._angles[positions]

    def segments(self, adapter: str | None, count: int) -> list[Segment]:
        """Returns segments that put all ``count`` tokens under one adapter."""
        return [] if adapter is None else [(0, count, self.adapter(adapter).fused())]

    def embed(self, ids: Tensor) -> Tensor:
        """Returns the input of the first block, (tokens, hidden)."""
        return self.weights.embedding[ids]

    def trunk(self, packed: Packed, last: int) -> Tensor:
        """Returns base hidden states (tokens, hidden) before block ``last``, where an adapter starts."""
        angles, attend = self.angles(packed.positions), packed.attend(self.shape)
        return run_layers(self.shape, self.weights, self.embed(packed.ids), angles, attend, last=last)

    def hidden(
        self,
        packed: Packed,
        adapter: str | None,
        x: Tensor | None = None,
        first: int = 0,
        *,
        recompute: bool = False,
    ) -> Tensor:
        """Returns normalised last hidden states (len(packed.at), hidden) at the positions of wanted
        log-probs.

        ``x`` are the states before block ``first`` if they are already computed; ``recompute`` as in
        ``run_layers``.
        """
        x = run_layers(
            self.shape,
            self.weights,
            self.embed(packed.ids) if x is None else x,
            self.angles(packed.positions),
            packed.attend(self.shape),
            self.segments(adapter, packed.total),
            first=first,
            keep=packed.at,
            recompute=recompute,
        )
        return final_norm(self.shape, self.weights, x)

    @torch.no_grad()
    def logprobs(
        self, rows: Sequence[TokenRow], adapter: str | None = None, *, micro_batch_tokens: int = 4096
    ) -> list[Tensor]:
        """Returns log π(token | past) of each row at its temperature: (length,), 0.0 where not sampled."""
        result = [torch.zeros(len(row)) for row in rows]
        order = [i for i in sorted(range(len(rows)), key=lambda i: len(rows[i])) if any(rows[i].sampled[1:])]
        for chunk in split_by_tokens(order, [len(rows[i]) for i in order], micro_batch_tokens):
            part = [rows[i] for i in chunk]
            packed = Packed(part, common_prefix(part), self.device)
            logp, _ = token_logprobs(
                self.hidden(packed, adapter), self.weights.head, packed.targets, packed.temperature
            )
            for r, values in zip(chunk, logp.cpu().split(packed.counts), strict=True):
                mask = torch.tensor(rows[r].sampled)
                mask[0] = False
                result[r][mask] = values
        return result


def split_by_tokens(items: Sequence[int], lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Cuts ``items`` into runs whose ``lengths`` sum to at most ``limit`` (at least one item each)."""
    runs: list[list[int]] = []
    used = limit + 1
    for item, length in zip(items, lengths, strict=True):
        if used + length > limit:
            runs.append([])
            used = 0
        runs[-1].append(item)
        used += length
    return runs


def _from_transformers(shape: Shape, raw: dict[str, Tensor]) -> Weights:
    orders = {"q_proj": shape.rope_order(shape.heads), "k_proj": shape.rope_order(shape.kv_heads)}
    layers = []
    for i in range(shape.layers):
        prefix = f"model.layers.{i}."
        stacked: dict[str, Any] = {}
        for field, names in STACKS.items():
            parts = [raw[f"{prefix}{BLOCK[name]}.{name}.weight"] for name in names]
            parts = [p[orders[n]] if n in orders else p for n, p in zip(names, parts, strict=True)]
            stacked[field] = torch.cat(parts).contiguous()
        layers.append(
            Layer(
                attention_norm=raw[prefix + "input_layernorm.weight"],
                mlp_norm=raw[prefix + "post_attention_layernorm.weight"],
                **stacked,
            )
        )
    embedding = raw["model.embed_tokens.weight"]
    head = embedding if shape.tied else raw["lm_head.weight"]
    return Weights(embedding, layers, raw["model.norm.weight"], head)


def _to_transformers(shape: Shape, weights: Weights) -> dict[str, Tensor]:
    orders = {"q_proj": shape.rope_order(shape.heads), "k_proj": shape.rope_order(shape.kv_heads)}
    sizes = shape.projections()
    raw = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    for i, layer in enumerate(weights.layers):
        prefix = f"model.layers.{i}."
        raw[prefix + "input_layernorm.weight"] = layer.attention_norm
        raw[prefix + "post_attention_layernorm.weight"] = layer.mlp_norm
        for field, names in STACKS.items():
            parts = getattr(layer, field).split([sizes[name][0] for name in names])
            for name, part in zip(names, parts, strict=True):
                if name in orders:
                    part = part[torch.argsort(orders[name])]
                raw[f"{prefix}{BLOCK[name]}.{name}.weight"] = part
    if not shape.tied:
        raw["lm_head.weight"] = weights.head
    return raw
