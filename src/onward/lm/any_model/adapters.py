"""Adapters of a transformers module, by peft, in peft's file format.

Several are resident; one of them, or none, is active. peft itself names an adapter by a key that may not hold
a dot and is part of module names, so each gets a key of its own.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from onward.errors import ConfigError
from onward.lm.adapter_files import BY_PEFT, CONFIG, TENSORS, bad_tensor, read_config

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class PeftAdapter:
    """One adapter; ``params`` are its tensors by their names in peft's file."""

    key: str
    config: LoraConfig
    params: dict[str, Tensor]


class Adapters:
    """The adapters of ``module``, into which peft puts its layers at the first one."""

    def __init__(self, module: PreTrainedModel, linear: Sequence[str]) -> None:
        """``linear`` are the names of the linear layers that may be adapted, see ``linear_names``."""
        self.resident: dict[str, PeftAdapter] = {}
        self._module, self._linear = module, list(linear)
        self._peft: PeftModel | None = None
        self._active: str | None = None
        self._keys = (f"a{number}" for number in itertools.count())

    def create(
        self,
        name: str,
        rank: int,
        alpha: float,
        layers: Sequence[int] | None,
        seed: int,
        targets: Sequence[str] | None,
        rslora: bool,
    ) -> PeftAdapter:
        """Makes an adapter that changes nothing yet. Raises ConfigError if the network has no such layers."""
        from peft import LoraConfig

        blocks, count = blocks_of(self._module)
        some = None if layers is None or set(layers) == set(range(count)) else sorted(set(layers))
        if rank < 1 or (some is not None and not (blocks and some and set(some) <= set(range(count)))):
            raise ConfigError(
                f"An adapter of rank {rank} on layers {some} is not possible: the rank must be at least 1 "
                f"and the layers among 0 to {count - 1}."
            )
        config = LoraConfig(
            r=rank,
            lora_alpha=alpha,  # type: ignore[arg-type]  # a whole number in its annotation alone
            lora_dropout=0.0,
            use_rslora=rslora,
            target_modules=sorted(self._linear if targets is None else set(targets)),
            layers_to_transform=some,
            layers_pattern=None if some is None else blocks.rpartition(".")[2],
            task_type="CAUSAL_LM",
            fan_in_fan_out=any(type(one).__name__ == "Conv1D" for one in self._module.modules()),
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._add(name, config)

    def load(self, name: str, folder: Path) -> PeftAdapter:
        """Reads a peft folder. Raises ConfigError unless it is a LoRA adapter of this network."""
        from peft import LoraConfig

        read_config(folder, allowed=BY_PEFT)
        config = LoraConfig.from_pretrained(str(folder))
        assert isinstance(config, LoraConfig)
        config.lora_dropout = 0.0
        adapter = self._add(name, config)
        try:
            self._fill(adapter, folder)
        except ConfigError:
            self.remove(name)
            raise
        return adapter

    def save(self, name: str, folder: Path, base: str) -> None:
        """Writes ``adapter_model.safetensors`` and ``adapter_config.json``; the same adapter gives the same
        bytes."""
        adapter = self.resident[name]
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {n: p.detach().to("cpu", torch.float32).contiguous() for n, p in adapter.params.items()}
        save_file(tensors, folder / TENSORS, metadata={"format": "pt"})
        config = {key: sorted(v) if isinstance(v, set) else v for key, v in adapter.config.to_dict().items()}
        config |= {"base_model_name_or_path": base, "inference_mode": True}
        (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True, default=str) + "\n")

    def remove(self, name: str) -> None:
        adapter = self.resident.pop(name)
        assert self._peft is not None
        self._peft.delete_adapter(adapter.key)
        self._active = ""  # peft chose another one

    def activate(self, name: str | None) -> None:
        """Makes ``name`` the adapter of the next passes; None: no adapter.

        Parameters that are trained stay so: peft would mark those of the active adapter and no others.
        """
        if self._peft is None or self._active == name:
            return
        trained = [(p, p.requires_grad) for one in self.resident.values() for p in one.params.values()]
        tuner: Any = self._peft.base_model
        if name is None:
            tuner.disable_adapter_layers()
        else:
            tuner.set_adapter(self.resident[name].key)
            tuner.enable_adapter_layers()
        for parameter, before in trained:
            parameter.requires_grad_(before)
        self._active = name

    def _add(self, name: str, config: LoraConfig) -> PeftAdapter:
        from peft import get_peft_model

        key = next(self._keys)
        try:
            with torch.inference_mode(False):
                if self._peft is None:
                    self._peft = get_peft_model(self._module, config, adapter_name=key)
                else:
                    self._peft.add_adapter(key, config)
        except (ValueError, RuntimeError, TypeError) as error:
            if self._peft is not None and key in self._peft.peft_config:
                self._peft.delete_adapter(key)
            raise ConfigError(
                f"peft cannot adapt {type(self._module).__name__} in this way ({str(error)[:200]}): choose "
                f"targets among {', '.join(self._linear)}."
            ) from None
        self._active = ""
        self._module.eval()  # peft's layers are made in training mode
        adapter = PeftAdapter(key, config, dict(_parameters(self._peft, key)))
        for parameter in adapter.params.values():
            parameter.requires_grad_(False)
        self.resident[name] = adapter
        return adapter

    @torch.no_grad()
    def _fill(self, adapter: PeftAdapter, folder: Path) -> None:
        tensors = load_file(folder / TENSORS)
        for name, given in tensors.items():
            parameter = adapter.params.get(name)
            if parameter is None:
                raise ConfigError(
                    f"The adapter in {folder} changes {name!r}, which this network does not have: it was "
                    f"made for another base model."
                )
            if given.shape != parameter.shape or not bool(torch.isfinite(given).all()):
                raise bad_tensor(folder, name, given.shape, parameter.shape)
            parameter.copy_(given)


def linear_names(module: PreTrainedModel, used: Iterable[str]) -> list[str]:
    """Returns the last names of the linear layers that an adapter changes by default.

    ``used`` are the full names of the layers that a forward pass calls: another one (some state-space layers
    read the weight of a projection) would be adapted without effect. The output head is left out, and so are
    the routers of experts and what peft refuses in state-space layers.
    """
    config = module.config.get_text_config()
    experts = {
        getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")
    }
    mixes = any(isinstance(one, nn.Conv1d) for one in module.modules())
    head, called, found = module.get_output_embeddings(), set(used), set()
    for name, layer in module.named_modules():
        if name not in called or layer is head or not is_linear(layer):
            continue
        weight: Any = layer.weight
        outputs = weight.shape[0 if isinstance(layer, nn.Linear) else 1]
        last = name.rpartition(".")[2]
        if outputs in experts or outputs == 1 or (mixes and last == "out_proj"):
            continue
        found.add(last)
    return sorted(found)


def is_linear(layer: nn.Module) -> bool:
    """Reports if ``layer`` is a linear one, GPT-2's transposed form included."""
    return isinstance(layer, nn.Linear) or type(layer).__name__ == "Conv1D"


def blocks_of(module: PreTrainedModel) -> tuple[str, int]:
    """Returns the name of the list of blocks ("" if there is no such list), and the number of blocks."""
    count = int(getattr(module.config.get_text_config(), "num_hidden_layers", 0))
    for name, one in module.named_modules():
        if isinstance(one, nn.ModuleList) and len(one) == count:
            return name, count
    return "", count


def _parameters(peft: PeftModel, key: str) -> Iterable[tuple[str, Tensor]]:
    """Yields (name in peft's file, parameter) of the adapter with ``key``."""
    for name, parameter in peft.named_parameters():
        if f".{key}." in name or name.endswith(f".{key}"):
            short = f"{name}.".replace(f".{key}.", ".").removesuffix(".")
            yield short.replace("lora_magnitude_vector.weight", "lora_magnitude_vector"), parameter
