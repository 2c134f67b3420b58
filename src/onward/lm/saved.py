"""The tensors that training changes, and the state of a training process: one file that is replaced whole.

The names and shapes of the trained tensors are stored with it, so that it is never restored into another
adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onward.errors import ConfigError
from onward.files import open_whole
from onward.lm.model import LanguageModel


def trained_tensors(policy: LanguageModel, adapter: str | None) -> dict[str, Tensor]:
    """Returns the tensors that training ``adapter`` changes; with None every weight of the network."""
    if adapter is not None:
        return policy.adapter(adapter).params
    return {f"weights.{i}": tensor for i, tensor in enumerate(policy.tensors())}


def save_state(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Writes the ``state`` of training ``tensors``; creates the folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_whole(path) as out:
        torch.save({"names": _shapes(tensors), **state}, out)


def load_state(path: Path, tensors: Mapping[str, Tensor], critic: bool | None = None) -> dict[str, Any]:
    """Reads a state written by ``save_state``. ``critic`` is True or False if the state must or must not have
    a critic; None skips that check.

    Raises ConfigError when the tensors or the presence of a critic do not match.
    """
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    saved = {name: tuple(shape) for name, shape in state["names"].items()}
    if saved != _shapes(tensors) or (critic is not None and (state["critic"] is not None) != critic):
        raise ConfigError(
            f"The learner state in {path.parent} is of another adapter: create the adapter with the same "
            f"rank and layers, and the same critic, before restoring."
        )
    return state


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
