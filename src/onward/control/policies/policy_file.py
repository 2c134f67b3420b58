"""A policy on disk: ``policy.safetensors`` (numbers) and ``policy.json`` (everything else), never a pickle.

The JSON holds digests of the numbers and of itself. Both are checked before anything is used. A file of
another kind is refused with an error of one sentence.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.control.core.spaces import ActionSpec, Layout
from onward.control.policies.policy import Layer, Policy, PolicyParts
from onward.errors import ControlError, TamperedError

FORMAT = "onward control policy"
VERSION = 1
NUMBERS, WORDS = "policy.safetensors", "policy.json"


def write_policy(policy: Policy, folder: Path) -> Path:
    """Writes both files, each replaced as a whole, the JSON last. Raises OSError."""
    from safetensors.numpy import save

    parts = policy.parts
    numbers = save({key: np.ascontiguousarray(array) for key, array in parts.arrays().items()})
    words = {
        "format": FORMAT,
        "version": VERSION,
        "env": policy.env_id,
        "layout": parts.layout.to_json(),
        "actions": parts.actions.to_json(),
        "head": parts.head,
        "activations": [layer[2] for layer in parts.layers],
        "clip": None if parts.norm is None else float(parts.norm[2]),
        "extra": parts.extra,
        "numbers_sha256": hashlib.sha256(numbers).hexdigest(),
    }
    words["sha256"] = _digest(words)
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / NUMBERS, numbers)
    _replace(folder / WORDS, json.dumps(words, indent=1).encode())
    return folder


def read_policy(path: Path) -> tuple[PolicyParts, str]:
    """Returns (parts, environment id). Raises ControlError, and TamperedError for changed files."""
    from safetensors.numpy import load

    folder = _folder(path)
    words = _words(folder / WORDS)
    numbers = _read(folder / NUMBERS)
    if hashlib.sha256(numbers).hexdigest() != words["numbers_sha256"]:
        raise TamperedError(
            f"{folder / NUMBERS} is not the file that {WORDS} beside it was written with: "
            "export the policy again."
        )
    return _parts(words, load(numbers)), words["env"]


def _parts(words: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> PolicyParts:
    norm = None
    if words["clip"] is not None:
        norm = (arrays["norm.mean"], arrays["norm.variance"], words["clip"])
    images = {k.removeprefix("images."): v for k, v in arrays.items() if k.startswith("images.")}
    return PolicyParts(
        layout=Layout.from_json(words["layout"]),
        actions=ActionSpec.from_json(words["actions"]),
        head=words["head"],
        layers=[_layer(arrays, i, activation) for i, activation in enumerate(words["activations"])],
        log_std=arrays.get("log_std"),
        norm=norm,
        images=images or None,
        extra=words["extra"],
    )


def _layer(arrays: dict[str, NDArray[Any]], i: int, activation: str) -> Layer:
    gain = arrays.get(f"layers.{i}.gain")
    norm = None if gain is None else (gain, arrays[f"layers.{i}.shift"])
    return Layer(arrays[f"layers.{i}.weight"], arrays[f"layers.{i}.bias"], activation, norm)


def _folder(path: Path) -> Path:
    """Returns the folder of the files: ``path`` itself, its ``policy/``, or that of the file ``path``."""
    if path.is_file():
        return path.parent
    for folder in (path, path / "policy"):
        if (folder / WORDS).is_file():
            return folder
    runs = sorted(str(words.parent.parent) for words in path.glob(f"*/policy/{WORDS}"))
    if runs:
        raise ControlError(f"{path} holds run folders: give one or several of {', '.join(runs)}.")
    raise ControlError(
        f"No policy lies in {path}: give a folder with {WORDS}, as onward control train or export writes it."
    )


def _words(file: Path) -> dict[str, Any]:
    try:
        words = json.loads(_read(file))
    except ValueError:
        words = None
    if not isinstance(words, dict) or words.get("format") != FORMAT:
        raise ControlError(
            f"{file} is not a control policy of Onward: give a folder that onward control export wrote."
        )
    if words.get("version") != VERSION:
        raise ControlError(
            f"{file} has version {words.get('version')}, this Onward reads {VERSION}: export it again."
        )
    if words.pop("sha256", None) != _digest(words):
        raise TamperedError(f"{file} was changed after it was written: export the policy again.")
    return words


def _digest(words: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ControlError(
            f"{file} cannot be read ({error.strerror}): give the folder of a policy."
        ) from None


def _replace(file: Path, data: bytes) -> None:
    partial = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    partial.write_bytes(data)
    partial.replace(file)
