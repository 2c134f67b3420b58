"""Saved state of a run in one file: arrays as safetensors, everything else as JSON in its header. No pickle.

Invariants: a new file is written beside the old one and moved over it, so one whole state always exists. A
digest over all of it detects a damaged file before anything is used.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.errors import ControlError, TamperedError
from onward.files import remove_drafts, replacing

FORMAT = "onward-control-state-1"
Arrays = dict[str, NDArray[Any]]


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes ``state``, replacing the file at ``path`` as a whole.

    ``state``: nested dicts (keys strings or whole numbers), lists and tuples (read back as lists) of torch
    tensors, numpy arrays and scalars, numbers, strings, booleans and None. Raises TypeError for others.
    """
    from safetensors.numpy import save_file

    arrays: Arrays = {}
    tree = json.dumps(_flattened(state, arrays))
    header = {"format": FORMAT, "tree": tree, "sha256": _digest(tree, arrays)}
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_drafts(path.parent, path.name)  # of a run that was killed while it saved: as large as a state
    with replacing(path) as new:
        save_file(arrays, new, metadata=header)


def load(path: Path) -> dict[str, Any]:
    """Reads the state at ``path``; its arrays belong to the caller.

    Raises ControlError where the file is missing or of another version, TamperedError where it was cut off or
    changed.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ControlError(
            f"There is no saved state at {path}: the run cannot go on, train into a new folder."
        )
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path) from error
    if header.get("format", FORMAT) != FORMAT:
        raise ControlError(
            f"{path} is of the form {header['format']!r} and this version reads {FORMAT!r}: "
            f"go on with the version that wrote it."
        )
    tree = header.get("tree", "")
    if _digest(tree, arrays) != header.get("sha256"):
        raise _damaged(path)
    return _restored(json.loads(tree), arrays)


def _damaged(path: Path) -> TamperedError:
    return TamperedError(f"{path} is damaged (cut off or changed): restore it from a copy, or train again.")


def _digest(tree: str, arrays: Arrays) -> str:
    digest = hashlib.sha256(tree.encode())
    for key in sorted(arrays):
        array = arrays[key]
        digest.update(f"{key} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _flattened(value: Any, arrays: Arrays) -> Any:
    """Returns ``value`` as JSON; its arrays move to ``arrays``, replaced by ``{"$": kind, "key": …}``."""
    if value is None or isinstance(value, bool | str) or type(value) in (int, float):
        return value
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and "$" not in value:
            return {key: _flattened(item, arrays) for key, item in value.items()}
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(f"a state's keys are strings and whole numbers, not {key!r}")
        return {"$": "items", "items": [[key, _flattened(item, arrays)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [_flattened(item, arrays) for item in value]
    kind, array = _array(value)
    key = str(len(arrays))
    arrays[key] = array
    return {"$": kind, "key": key}


def _array(value: Any) -> tuple[str, NDArray[Any]]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return "tensor", np.ascontiguousarray(value.detach().cpu().numpy())
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return "scalar", np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.dtype.isnative:
        return "array", np.array(value, order="C")
    raise TypeError(f"a state cannot hold {type(value).__name__}")


def _restored(value: Any, arrays: Arrays) -> Any:
    if isinstance(value, list):
        return [_restored(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("$")
    if kind is None:
        return {key: _restored(item, arrays) for key, item in value.items()}
    if kind == "items":
        return {key: _restored(item, arrays) for key, item in value["items"]}
    array = arrays[value["key"]]
    if kind == "tensor":
        import torch

        return torch.from_numpy(array)
    return array[()] if kind == "scalar" else array
