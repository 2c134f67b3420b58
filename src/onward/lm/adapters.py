"""Low-rank adapters (LoRA, 2106.09685) with our own tensors and peft's file format.

Parameters are stored per projection in transformers' row order, exactly as peft saves them. ``fused`` returns
the stacked, permuted and scaled form that the forward loop uses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from onward.lm.adapter_files import CONFIG, TENSORS, bad_tensor, key, layout, read_config, shapes
from onward.lm.network import LoraLayer, Shape
from onward.lm.watch import Watch


class Adapter:
    """Trainable ``A`` and ``B`` of the projections ``targets`` in ``layers``; all else uses the base weights.

    They are float32 whatever the base is (small updates vanish in bfloat16); ``fused`` casts to ``dtype``.
    """

    def __init__(
        self,
        shape: Shape,
        rank: int,
        alpha: float,
        layers: Sequence[int],
        device: torch.device,
        seed: int = 0,
        targets: Sequence[str] | None = None,
        dtype: torch.dtype = torch.float32,
        rslora: bool = False,
    ) -> None:
        """``B`` starts at zero, so a new adapter changes nothing; ``A`` is Kaiming-uniform as in peft.
        ``rslora`` as in ``Layout``."""
        self.shape = shape
        self.rank, self.alpha, self.rslora = rank, alpha, rslora
        self.layers = sorted(set(layers))
        self.targets = sorted(shape.family.projections if targets is None else set(targets))
        sizes = shapes(shape, rank, self.layers, self.targets)
        self.dtype = dtype
        self.params: dict[str, Tensor] = {}
        self._fused: list[LoraLayer | None] | None = None
        self._watch = Watch()
        orders = {name: shape.row_order(name) for name in self.targets}
        self._orders = {name: order.to(device) for name, order in orders.items() if order is not None}
        generator = torch.Generator().manual_seed(seed)
        with torch.inference_mode(False):  # in-place writes must be counted in any mode
            for name, size in sizes.items():
                tensor = torch.zeros(size)
                if ".lora_A." in name:
                    torch.nn.init.kaiming_uniform_(tensor, a=math.sqrt(5), generator=generator)
                self.params[name] = tensor.to(device)

    @property
    def first_layer(self) -> int:
        return self.layers[0]

    def fused(self) -> list[LoraLayer | None]:
        """Returns the form that the forward loop uses; differentiable in grad mode, otherwise the same object
        until a parameter changes."""
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.params.values()):
            return self._fuse()
        if self._watch.changed(self.params.values()) or self._fused is None:
            with torch.no_grad():
                self._fused = self._fuse()
        return self._fused

    def _fuse(self) -> list[LoraLayer | None]:
        result: list[LoraLayer | None] = [None] * self.shape.layers
        scale = self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)
        for layer in self.layers:
            fused = LoraLayer()
            for stack, names in self.shape.family.stacks.items():
                present = [n for n in names if n in self.targets]
                if not present:
                    continue
                a = torch.cat([self.params[key(layer, n, "A")] for n in present])
                b = [self._output(layer, n) for n in names]
                setattr(fused, stack, (a.to(self.dtype), (torch.block_diag(*b) * scale).to(self.dtype)))
            result[layer] = fused
        return result

    def _output(self, layer: int, name: str) -> Tensor:
        """Returns ``B`` in our row order; for a projection that is not a target, its rows with no columns."""
        if name not in self.targets:
            return next(iter(self.params.values())).new_zeros(self.shape.projections()[name][0], 0)
        b, order = self.params[key(layer, name, "B")], self._orders.get(name)
        return b if order is None else b[order]

    def save(self, folder: Path, base: str = "") -> None:
        """Writes ``adapter_model.safetensors`` and ``adapter_config.json`` in peft's format."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {k: v.detach().to("cpu", torch.float32).contiguous() for k, v in self.params.items()}
        save_file(tensors, folder / TENSORS, metadata={"format": "pt"})
        every = len(self.layers) == self.shape.layers
        config: dict[str, Any] = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "use_rslora": self.rslora,
            "lora_dropout": 0.0,
            "bias": "none",
            "inference_mode": True,
            "target_modules": self.targets,
            "layers_to_transform": None if every else self.layers,
            "layers_pattern": None if every else "layers",
        }
        (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")

    @classmethod
    def read(
        cls, shape: Shape, folder: Path, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Adapter:
        """Reads a peft folder. Raises ConfigError unless it is a plain LoRA adapter of this network."""
        config = read_config(folder)
        tensors = load_file(folder / TENSORS)
        sizes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        found = layout(config, sizes, shape, folder)
        adapter = cls(
            shape, found.rank, found.alpha, found.layers, device, targets=found.targets, dtype=dtype,
            rslora=found.rslora,
        )  # fmt: skip
        for name, given in tensors.items():  # a subset, as peft may train one; the others stay unchanged
            if not torch.isfinite(given).all():
                raise bad_tensor(folder, name, given.shape, given.shape)
            adapter.params[name].copy_(given)
        return adapter
