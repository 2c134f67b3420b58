"""Tensors in safetensors files, read from the headers alone: names, types, shapes, and the files they are in.

Needs no torch, and reads no weights, so a folder of any size is checked in milliseconds.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.errors import ConfigError, TamperedError

ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Lists the file of each tensor of a model that is cut into several files (shards)."""
PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
MAX_HEADER_BYTES = 8 << 20
MAX_TENSORS = 50_000


@dataclass(frozen=True)
class Stored:
    """One tensor of a model folder."""

    dtype: str
    """Format as safetensors writes it: F32, BF16 …"""
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self.count * _DTYPE_BYTES[self.dtype]


def weight_files(folder: Path) -> list[Path]:
    """Returns the files with the weights of a model: the one, or the shards that its index lists.

    Raises ConfigError if there are none, or if one of them is missing.
    """
    if (folder / ONE_FILE).is_file():
        return [folder / ONE_FILE]
    if (folder / INDEX).is_file():
        names = sorted(set(_index(folder).values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ConfigError(
                f"{folder} lacks {missing[0]}{_more(missing)}, which {INDEX} lists among {len(names)} files "
                f"of weights: copy the whole model."
            )
        return [folder / name for name in names]
    raise ConfigError(_without_weights(folder))


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Returns each tensor of the model in ``folder``, by its name.

    Raises ConfigError for a folder without safetensors, a missing shard, a file that is cut off or no
    safetensors, and for a tensor that the index lists but no file has.
    """
    found: dict[str, Stored] = {}
    for path in weight_files(folder):
        try:
            header, _ = read_header(path)
        except TamperedError as error:
            why = str(error).removesuffix(": refused.").rstrip(".")
            raise ConfigError(f"The weights in {folder} are damaged: {why}; copy the file again.") from None
        found |= {name: Stored(one["dtype"], tuple(one["shape"])) for name, one in header.items()}
    if not (folder / ONE_FILE).is_file():
        missing = sorted(_index(folder).keys() - found.keys())
        if missing:
            raise ConfigError(
                f"The weights in {folder} have no tensor {missing[0]!r}{_more(missing)}, which {INDEX} "
                f"lists: copy the whole model."
            )
    return found


def _index(folder: Path) -> Mapping[str, str]:
    try:
        listed = json.loads((folder / INDEX).read_bytes())["weight_map"]
        if all(type(name) is str and Path(name).name == name for name in listed.values()):
            return listed
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ConfigError(f"{INDEX} in {folder} lists no files of weights: copy the model again.")


def _without_weights(folder: Path) -> str:
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        return (
            f"{folder} has its weights as a pickle only ({pickles[0]}), which runs code when it is read: "
            f"save the model as safetensors, with transformers' save_pretrained."
        )
    gguf = sorted(path.name for path in folder.glob("*.gguf"))
    if gguf:
        return (
            f"{folder} has quantised weights only ({gguf[0]}): give the folder of the original model, in "
            f"safetensors."
        )
    return f"{folder} has no weights: it must hold {ONE_FILE}, or {INDEX} and the files it lists."


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def read_header(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """Returns the tensors' entries in a safetensors file, and the position at which their data begins.

    Raises TamperedError unless the tensors are contiguous, inside the file, and as large as shape times
    dtype. Called before any library parses the file.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else MAX_HEADER_BYTES + 1
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise TamperedError(f"{path.name} is not safetensors (its header is too long): refused.")
        try:
            header = json.loads(file.read(length), object_pairs_hook=_no_duplicates)
        except ValueError:
            raise TamperedError(
                f"{path.name} is not safetensors (its header is not JSON): refused."
            ) from None
    if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
        raise TamperedError(f"{path.name} is not safetensors (its header is no table): refused.")
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise TamperedError(f"{path.name} lists {len(header)} tensors: at most {MAX_TENSORS} are accepted.")
    spans = []
    for name, entry in header.items():
        width = _DTYPE_BYTES.get(str(entry.get("dtype")))
        offsets, shape = _whole_numbers(entry.get("data_offsets")), _whole_numbers(entry.get("shape"))
        if width is None or shape is None or offsets is None or len(offsets) != 2:
            raise TamperedError(f"Tensor {name!r} in {path.name} is not described as it must be: refused.")
        begin, end = offsets
        if end - begin != math.prod(shape) * width:
            raise TamperedError(f"Tensor {name!r} in {path.name} lies about its size: refused.")
        spans.append((begin, end))
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise TamperedError(f"The tensors in {path.name} overlap or leave gaps: refused.")
        position = end
    if position != size - 8 - length:
        raise TamperedError(f"{path.name} is longer or shorter than its header says: refused.")
    return header, 8 + length


def _whole_numbers(value: Any) -> list[int] | None:
    """Returns ``value`` if it is a list of at most 16 integers from 0 to 2^48 − 1, else None."""
    good = isinstance(value, list) and len(value) <= 16
    return value if good and all(type(number) is int and 0 <= number < 1 << 48 for number in value) else None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


_DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
