"""Versions of the policy: their lineage, their tags, and what differs between two of them.

Weights are read with numpy alone, so a command starts quickly. A tag is a name for one version at a time. It
is stored in the version's entry of ``rl_models`` and moved by compare-and-set.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onward.bus import Bus, read_all, read_stored
from onward.clock import Clock
from onward.errors import ConfigError, ConflictError, NotFoundError
from onward.ids import model_key
from onward.lm.weight_files import read_header
from onward.release.record import HUMAN_SCORE, Model
from onward.telemetry import audit

_TAG = re.compile(r"[a-z][a-z0-9._-]{0,63}")
_LAYER = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")
_FORMATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
MOST_DIFFERENCES = 200


def tree(models: Sequence[Model]) -> list[tuple[int, Model]]:
    """Returns every model after its parent, with its depth. One without a known parent has depth 0; so has
    one of a circle, which only a damaged entry can make."""
    known = {model.model_id for model in models}
    children: dict[str | None, list[Model]] = {}
    for model in models:
        parent = model.parent if model.parent in known and model.parent != model.model_id else None
        children.setdefault(parent, []).append(model)
    found: list[tuple[int, Model]] = []
    seen: set[str] = set()

    def visit(model: Model, depth: int) -> None:
        waiting = [(depth, model)]
        while waiting:
            at, one = waiting.pop()
            if one.model_id not in seen:
                seen.add(one.model_id)
                found.append((at, one))
                waiting += [(at + 1, child) for child in reversed(children.get(one.model_id, []))]

    for model in [*children.get(None, []), *models]:
        visit(model, 0)
    return found


def ancestors(models: Sequence[Model], model_id: str) -> list[str]:
    """Returns the ids from the parent of ``model_id`` up to the first version."""
    parents = {model.model_id: model.parent for model in models}
    found: list[str] = []
    at = parents.get(model_id)
    while at is not None and at not in found and at != model_id:
        found.append(at)
        at = parents.get(at)
    return found


async def tag(bus: Bus, model_id: str, name: str, *, move: bool, clock: Clock) -> str | None:
    """Gives ``model_id`` the tag ``name``; returns the version that had it before, or None.

    Raises ConfigError for a name that is none, NotFoundError for an unknown model, ConflictError if another
    version has the tag and ``move`` is False, or if an entry was written meanwhile.
    """
    if _TAG.fullmatch(name) is None:
        raise ConfigError(
            f"{name[:40]!r} is no tag: expected 1 to 64 small letters, digits, '.', '_' and '-', the first a "
            f"letter."
        )
    bucket = bus.bucket(Model.BUCKET)
    stored = [
        entry for entry in await read_all(bucket, Model) if entry.document is not None and entry.readable
    ]
    entries = {entry.key: entry for entry in stored}
    wanted = entries.get(model_key(model_id))
    if wanted is None or wanted.document is None:
        raise NotFoundError(f"There is no stored model {model_id!r}: 'onward models list' shows them.")
    holder = next((one for one in stored if one.document and name in one.document.tags), None)
    if holder is wanted:
        return None
    if holder is not None and holder.document is not None and not move:
        raise ConflictError(f"{holder.document.model_id} has the tag {name} already: move it with --move.")
    before = None if holder is None or holder.document is None else holder.document
    await audit.record(
        bus, clock, "models.tag", model_id=model_id, tag=name,
        taken_from=None if before is None else before.model_id,
    )  # fmt: skip
    if holder is not None and before is not None:
        less = before.model_copy(update={"tags": [one for one in before.tags if one != name]})
        await bucket.update(holder.key, less.dump(), holder.revision)
    more = wanted.document.model_copy(update={"tags": sorted({*wanted.document.tags, name})})
    await bucket.update(wanted.key, more.dump(), wanted.revision)
    return None if before is None else before.model_id


async def note_human_score(bus: Bus, model_id: str, score: float, *, clock: Clock) -> None:
    """Stores a person's score of a version in its entry, from which its events take it.

    Raises NotFoundError for an unknown model, ConflictError if its entry was written meanwhile.
    """
    bucket = bus.bucket(Model.BUCKET)
    stored = await read_stored(bucket, Model, model_key(model_id))
    if stored.document is None:
        raise NotFoundError(f"There is no stored model {model_id!r}: 'onward models list' shows them.")
    await audit.record(bus, clock, "models.human_score", model_id=model_id, score=score)
    found = {**stored.document.validation, HUMAN_SCORE: score}
    await bucket.update(
        stored.key, stored.document.model_copy(update={"validation": found}).dump(), stored.revision
    )


def resolve(models: Sequence[Model], name: str) -> Model:
    """Returns the model with this id or tag; an id comes first. Raises NotFoundError."""
    found = next((model for model in models if model.model_id == name), None)
    found = found or next((model for model in models if name in model.tags), None)
    if found is None:
        known = ", ".join(model.model_id for model in models) or "none"
        raise NotFoundError(f"There is no model {name!r} and no such tag: known are {known}.")
    return found


def differences(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "") -> Iterator[dict[str, Any]]:
    """Yields the fields in which two documents differ: dotted ``name``, ``a``, ``b`` (None: absent)."""
    for name in sorted({*a, *b}):
        mine, theirs = a.get(name), b.get(name)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            yield from differences(mine, theirs, f"{prefix}{name}.")
        elif mine != theirs:
            yield {"name": prefix + name, "a": mine, "b": theirs}


def layer_norms(a: Path | None, b: Path | None) -> list[dict[str, Any]]:
    """Returns for each layer the Frobenius norms of what two adapters add to the weights, and of their
    difference. None stands for the base model, which adds nothing."""
    import numpy as np  # not needed for --help

    first, second = (_factors(folder) if folder is not None else {} for folder in (a, b))
    sums: dict[str, list[float]] = {}
    for module in sorted({*first, *second}):
        mine, theirs = first.get(module), second.get(module)
        own, other = _inner(mine, mine), _inner(theirs, theirs)
        both = _inner(mine, theirs)
        total = sums.setdefault(_layer(module), [0.0, 0.0, 0.0])
        total[0] += own
        total[1] += other
        total[2] += max(0.0, own + other - 2 * both)
    ordered = sorted(
        sums.items(), key=lambda item: (not item[0].isdigit(), int(item[0]) if item[0].isdigit() else 0)
    )
    return [
        {"layer": name, "a": math.sqrt(x), "b": math.sqrt(y), "difference": float(np.sqrt(z))}
        for name, (x, y, z) in ordered
    ]


def _layer(module: str) -> str:
    found = _LAYER.search(module)
    return found.group(1) if found else "other"


def _inner(a: tuple[Any, Any] | None, b: tuple[Any, Any] | None) -> float:
    """Returns the inner product of two products B·A, without making either."""
    if a is None or b is None:
        return 0.0
    return float(((a[1].T @ b[1]) * (a[0] @ b[0].T)).sum())


def _factors(folder: Path) -> dict[str, tuple[Any, Any]]:
    """Reads module → (A, scaled B) of a LoRA adapter, in float64."""
    import numpy as np

    config = json.loads((folder / "adapter_config.json").read_bytes())
    rank, alpha = config["r"], config["lora_alpha"]
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    path = folder / "adapter_model.safetensors"
    tensors, start = read_header(path)
    halves: dict[str, dict[str, Any]] = {}
    for name, entry in tensors.items():
        module, mark, rest = name.partition(".lora_")
        if not mark or rest[:1] not in ("A", "B") or entry["dtype"] not in _FORMATS:
            continue
        count = math.prod(entry["shape"])
        raw = np.fromfile(path, _FORMATS[entry["dtype"]], count, offset=start + entry["data_offsets"][0])
        if entry["dtype"] == "BF16":
            raw = (raw.astype("<u4") << 16).view("<f4")
        halves.setdefault(module, {})[rest[:1]] = raw.reshape(entry["shape"]).astype(np.float64)
    return {
        module: (pair["A"], pair["B"] * scale)
        for module, pair in halves.items()
        if pair.keys() == {"A", "B"} and pair["A"].ndim == pair["B"].ndim == 2
    }
