"""Weights between a folder of transformers and our layout, where matrices are stacked and q and k permuted.

The names follow from the family's entry. Tensors are read one by one, so that loading needs little more
memory than the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from onward.errors import ConfigError
from onward.lm.adapter_files import BLOCK
from onward.lm.network import Layer, Shape, Weights
from onward.lm.weight_files import weight_files

_HEAD = "lm_head.weight"


class _Files:
    """The tensors of a folder, converted to one device and dtype when they are taken."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype, stack: ExitStack) -> None:
        self.folder, self.device, self.dtype = folder, device, dtype
        self._where: dict[str, Any] = {}
        for path in weight_files(folder):
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))  # type: ignore[no-untyped-call]
            except Exception as error:
                raise ConfigError(
                    f"{path} is no readable safetensors file ({type(error).__name__}): download it again."
                ) from None
            self._where.update(dict.fromkeys(file.keys(), file))

    def has(self, name: str) -> bool:
        return name in self._where

    def take(self, name: str, *size: int) -> Tensor:
        file = self._where.get(name)
        if file is None:
            raise ConfigError(
                f"The weights in {self.folder} have no tensor {name!r}: the files are incomplete or not of "
                f"the network that config.json describes."
            )
        tensor = file.get_tensor(name)
        if tuple(tensor.shape) != size:
            raise ConfigError(
                f"Tensor {name!r} in {self.folder} has shape {tuple(tensor.shape)}, not {size}: the files "
                f"are not of the network that config.json describes."
            )
        return tensor.to(self.device, self.dtype)


def load_weights(shape: Shape, folder: Path, device: torch.device, dtype: torch.dtype) -> Weights:
    """Reads the weights of a folder. Raises ConfigError for missing files, tensors and other shapes."""
    with ExitStack() as stack:
        files = _Files(folder, device, dtype, stack)
        embedding = files.take("model.embed_tokens.weight", shape.vocab, shape.hidden)
        layers = [_layer(shape, files, i) for i in range(shape.layers)]
        norm = files.take("model.norm.weight", shape.hidden)
        return Weights(embedding, layers, norm, _head(shape, files, embedding))


def _head(shape: Shape, files: _Files, embedding: Tensor) -> Tensor:
    """Returns the head. One that is tied may be stored too, and must then equal the embedding."""
    if shape.tied and not files.has(_HEAD):
        return embedding
    head = files.take(_HEAD, shape.vocab, shape.hidden)
    if shape.tied and not torch.equal(head, embedding):
        raise ConfigError(
            f"The weights in {files.folder} have a {_HEAD!r} that differs from the embedding, to which "
            f"config.json ties it: set tie_word_embeddings to false in config.json."
        )
    return embedding if shape.tied else head


def _layer(shape: Shape, files: _Files, i: int) -> Layer:
    prefix, sizes = f"model.layers.{i}.", shape.projections()
    found: dict[str, Tensor] = {}
    for stack, names in shape.family.stacks.items():
        weights, biases = [], []
        for name in names:
            place, order = f"{prefix}{BLOCK[name]}.{name}", shape.row_order(name)
            weights.append(_ordered(files.take(f"{place}.weight", *sizes[name]), order))
            if stack in shape.biased:
                biases.append(_ordered(files.take(f"{place}.bias", sizes[name][0]), order))
        found[stack] = torch.cat(weights).contiguous()
        if biases:
            found[f"{stack}_bias"] = torch.cat(biases)
    for field, name in shape.family.norms.items():
        found[field] = files.take(f"{prefix}{name}.weight", shape.hidden)
    for name, size in _head_norms(shape):
        found[name] = _ordered(files.take(f"{prefix}self_attn.{name}.weight", size), shape.row_order(name))
    return Layer(**{"attention_norm": None, "mlp_norm": None, **found})  # type: ignore[arg-type]


def _head_norms(shape: Shape) -> Iterator[tuple[str, int]]:
    return ((n, size) for n, size in zip(("q_norm", "k_norm"), shape.qk_norms, strict=True) if size)


def _ordered(rows: Tensor, order: Tensor | None) -> Tensor:
    return rows if order is None else rows[order.to(rows.device)]


def to_transformers(shape: Shape, weights: Weights) -> dict[str, Tensor]:
    """Returns the tensors under transformers' names and in its row order."""
    raw = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    for i, layer in enumerate(weights.layers):
        raw.update(_raw_layer(shape, layer, f"model.layers.{i}."))
    if not shape.tied:
        raw[_HEAD] = weights.head
    return raw


def _raw_layer(shape: Shape, layer: Layer, prefix: str) -> dict[str, Tensor]:
    raw, sizes = {}, shape.projections()

    def put(place: str, name: str, rows: Tensor) -> None:
        order = shape.row_order(name)
        raw[place] = _ordered(rows, None if order is None else torch.argsort(order))

    for stack, names in shape.family.stacks.items():
        for kind, field in (("weight", stack), ("bias", f"{stack}_bias")):
            matrix = getattr(layer, field)
            if matrix is not None:
                parts = matrix.split([sizes[name][0] for name in names])
                for name, part in zip(names, parts, strict=True):
                    put(f"{prefix}{BLOCK[name]}.{name}.{kind}", name, part)
    for field, name in shape.family.norms.items():
        raw[f"{prefix}{name}.weight"] = getattr(layer, field)
    for name, _ in _head_norms(shape):
        put(f"{prefix}self_attn.{name}.weight", name, getattr(layer, name))
    return raw
