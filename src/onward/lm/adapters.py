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

from onward.errors import ConfigError
from onward.lm.network import LoraLayer, Shape

STACKS = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "out": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
BLOCK = {name: ("mlp" if name in ("gate_proj", "up_proj", "down_proj") else "self_attn")
          for names in STACKS.values() for name in names}  # fmt: skip
_OTHER = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out")


class Adapter:
    """Trainable ``A`` and ``B`` of the projections ``targets`` in ``layers``; all else uses the base weights.
    They are float32 whatever the base is (small updates vanish in bfloat16); ``fused`` casts to ``dtype``."""

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
    ) -> None:
        """``B`` starts at zero, so a new adapter changes nothing; ``A`` is Kaiming-uniform as in peft."""
        self.shape = shape
        self.rank, self.alpha = rank, alpha
        self.layers = sorted(set(layers))
        if rank < 1 or not self.layers or not set(self.layers) <= set(range(shape.layers)):
            raise ConfigError(
                f"An adapter of rank {rank} on layers {list(layers)} is not possible: the rank must be "
                f"at least 1 and the layers among 0 to {shape.layers - 1}."
            )
        self.targets = sorted(BLOCK if targets is None else set(targets))
        if not self.targets or not set(self.targets) <= set(BLOCK):
            raise ConfigError(
                f"An adapter on {self.targets} is not possible: choose targets among {', '.join(BLOCK)}."
            )
        self.dtype = dtype
        self.params: dict[str, Tensor] = {}
        self._fused: list[LoraLayer | None] | None = None
        self._fused_at: tuple[int, ...] = ()
        self._orders = {
            "q_proj": shape.rope_order(shape.heads).to(device),
            "k_proj": shape.rope_order(shape.kv_heads).to(device),
        }
        generator = torch.Generator().manual_seed(seed)
        with torch.inference_mode(False):  # in-place writes must be counted in any mode
            for layer in self.layers:
                for name, (rows, columns) in shape.projections().items():
                    if name not in self.targets:
                        continue
                    a = torch.empty(rank, columns)
                    torch.nn.init.kaiming_uniform_(a, a=math.sqrt(5), generator=generator)
                    self.params[_key(layer, name, "A")] = a.to(device)
                    self.params[_key(layer, name, "B")] = torch.zeros(rows, rank, device=device)

    @property
    def first_layer(self) -> int:
        return self.layers[0]

    def version(self) -> tuple[int, ...]:
        """Returns a value that changes at each in-place write to a parameter, as in an optimiser step."""
        return tuple(p._version for p in self.params.values())

    def fused(self) -> list[LoraLayer | None]:
        """Returns the form that the forward loop uses; differentiable in grad mode, cached otherwise."""
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.params.values()):
            return self._fuse()
        if self._fused is None or self._fused_at != self.version():
            with torch.no_grad():
                self._fused, self._fused_at = self._fuse(), self.version()
        return self._fused

    def _fuse(self) -> list[LoraLayer | None]:
        result: list[LoraLayer | None] = [None] * self.shape.layers
        scale = self.alpha / self.rank
        for layer in self.layers:
            fused = LoraLayer()
            for stack, names in STACKS.items():
                present = [n for n in names if n in self.targets]
                if not present:
                    continue
                a = torch.cat([self.params[_key(layer, n, "A")] for n in present])
                b = [self._output(layer, n) for n in names]
                setattr(fused, stack, (a.to(self.dtype), (torch.block_diag(*b) * scale).to(self.dtype)))
            result[layer] = fused
        return result

    def _output(self, layer: int, name: str) -> Tensor:
        """Returns ``B`` in our row order; for a projection that is not a target, its rows with no columns."""
        if name not in self.targets:
            return next(iter(self.params.values())).new_zeros(self.shape.projections()[name][0], 0)
        b, order = self.params[_key(layer, name, "B")], self._orders.get(name)
        return b if order is None else b[order]

    def save(self, folder: Path, base: str = "") -> None:
        """Writes ``adapter_model.safetensors`` and ``adapter_config.json`` in peft's format."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {k: v.detach().to("cpu", torch.float32).contiguous() for k, v in self.params.items()}
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        every = len(self.layers) == self.shape.layers
        config: dict[str, Any] = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "inference_mode": True,
            "target_modules": self.targets,
            "layers_to_transform": None if every else self.layers,
            "layers_pattern": None if every else "layers",
        }
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")

    @classmethod
    def read(
        cls, shape: Shape, folder: Path, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Adapter:
        """Reads a peft folder. Raises ConfigError unless it is a plain LoRA adapter of this network."""
        config_path, tensor_path = folder / "adapter_config.json", folder / "adapter_model.safetensors"
        if not config_path.is_file() or not tensor_path.is_file():
            raise ConfigError(
                f"{folder} holds no adapter: it needs adapter_config.json and adapter_model.safetensors."
            )
        config = json.loads(config_path.read_text())
        _refuse_other_kinds(config, folder)
        tensors = load_file(tensor_path)
        layers = sorted(
            {int(name.split(".layers.")[1].split(".")[0]) for name in tensors if ".layers." in name}
        )
        targets = {name.split(".")[-3] for name in tensors} & set(BLOCK)
        adapter = cls(
            shape,
            int(config["r"]),
            float(config["lora_alpha"]),
            layers or range(shape.layers),
            device,
            targets=sorted(targets) or None,
            dtype=dtype,
        )
        unknown = set(tensors) - set(adapter.params)
        if unknown:
            raise ConfigError(
                f"The adapter in {folder} changes {sorted(unknown)[0]!r}, which is not a linear layer of "
                f"this network: only LoRA on the seven projections of each block is served."
            )
        for name, parameter in adapter.params.items():
            given = tensors.get(name)
            if given is None:  # peft may train a subset of the projections; the others stay unchanged
                continue
            if given.shape != parameter.shape or not torch.isfinite(given).all():
                raise ConfigError(
                    f"The adapter in {folder} has a bad tensor {name!r} (shape {tuple(given.shape)}, "
                    f"expected {tuple(parameter.shape)}, all finite): it was made for another base model "
                    f"or is damaged."
                )
            parameter.copy_(given)
        return adapter


def _refuse_other_kinds(config: dict[str, Any], folder: Path) -> None:
    wrong = [name for name in _OTHER if config.get(name)]
    if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none" or wrong:
        raise ConfigError(
            f"The adapter in {folder} is not plain LoRA ({', '.join(wrong) or config.get('peft_type')}): "
            f"train it with bias 'none' and without {', '.join(wrong) or 'other methods'}."
        )


def _key(layer: int, name: str, matrix: str) -> str:
    return f"base_model.model.model.layers.{layer}.{BLOCK[name]}.{name}.lora_{matrix}.weight"
