"""An adapter that was trained elsewhere: its way into the object store, and to a release of its own.

``add_adapter`` checks the files against the base model, commits them as a trainer does, and enters the model
in state ``added``. ``request_release`` requests its release. The releaser carries that out like any other:
validation against the model that serves then, a canary, and a rollback if the gates cross.

Invariants: no torch is loaded, so a command starts quickly and needs little memory. Only the two files that
are checked here are stored.
"""

from __future__ import annotations

import asyncio
import math
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from onward.bus import Bus
from onward.clock import Clock
from onward.config import Settings
from onward.errors import ConfigError, ConflictError, NotFoundError
from onward.ids import new_id
from onward.lm import adapter_files
from onward.lm.any_model.stored_sizes import refuse_misfit
from onward.lm.chat_files import json_object
from onward.lm.model_path import AskedPath, path_of
from onward.lm.sizes import Sizes, folder_digest
from onward.lm.weight_files import read_header, stored_tensors
from onward.release.commands import refuse_if_busy, requested_record
from onward.release.record import Model, ReleaseRecord, Releases
from onward.serving import base_models
from onward.serving.engines.registry import verify_adapter
from onward.telemetry import audit
from onward.training import checkpoints, signatures
from onward.training.signatures import Trust
from onward.warehouse import Objects

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_EXPONENT: dict[str, tuple[str, int]] = {
    "F64": ("<u8", 0x7FF << 52),
    "F32": ("<u4", 0xFF << 23),
    "F16": ("<u2", 0x1F << 10),
    "BF16": ("<u2", 0xFF << 7),
}
"""Format → (unsigned integer of its width, bits that are all set in NaN and infinity alone)."""


def stage(
    folder: Path, base: Path, out: Path, trust: Trust | None = None, path: AskedPath = "auto"
) -> checkpoints.Manifest:
    """Copies the adapter in ``folder`` to ``out``, with a manifest, if it fits the base model in ``base``,
    which runs by ``path``.

    ``folder`` is a peft adapter, a checkpoint of Onward, or the folder of a run with one. A signature in it
    is verified by ``trust``. Raises ConfigError, NotFoundError, TamperedError.
    """
    if not folder.is_dir():
        raise NotFoundError(
            f"There is no folder {folder}: give one with {' and '.join(checkpoints.ADAPTER_FILES)}."
        )
    inner = folder / "checkpoint"
    source = inner if (inner / adapter_files.CONFIG).is_file() else folder
    network = json_object(base / "config.json")
    is_fast = path_of(network, path).name == "fast"
    config = adapter_files.read_config(source, () if is_fast else adapter_files.BY_PEFT)
    base_digest = folder_digest(base)
    metrics: dict[str, Any] = {}
    if (source / checkpoints.MANIFEST).is_file():
        made = checkpoints.verify(source, trust)
        checkpoints.refuse_other_base(made, base_digest)
        metrics = made.metrics
    out.mkdir()
    for name in checkpoints.ADAPTER_FILES:
        shutil.copyfile(source / name, out / name)
    stored = out / adapter_files.TENSORS
    tensors, start = read_header(stored)
    if not tensors:
        raise ConfigError(f"The adapter in {source} has no tensors, so it changes nothing: train it first.")
    sizes = {name: tuple(entry["shape"]) for name, entry in tensors.items()}
    if is_fast:
        adapter_files.layout(config, sizes, Sizes.read(base), source)
    else:
        refuse_misfit(config, sizes, stored_tensors(base), source)
    for name, entry in tensors.items():
        if entry["dtype"] not in _EXPONENT:
            raise ConfigError(
                f"The adapter in {source} has {name!r} in format {entry['dtype']}: expected one of "
                f"{', '.join(_EXPONENT)}."
            )
        if not _is_finite(stored, entry, start):
            raise adapter_files.bad_tensor(source, name, sizes[name], sizes[name])
    made = checkpoints.write_manifest(out, job_id=new_id(), epoch=1, base_digest=base_digest, metrics=metrics)
    return verify_adapter(out, made.adapter_digest)


def _is_finite(path: Path, entry: Mapping[str, Any], start: int) -> bool:
    import numpy as np  # not needed for --help

    kind, exponent = _EXPONENT[entry["dtype"]]
    bits = np.fromfile(path, kind, math.prod(entry["shape"]), offset=start + entry["data_offsets"][0])
    return not bool(((bits & exponent) == exponent).any())


async def add_adapter(
    bus: Bus, objects: Objects, settings: Settings, folder: Path, name: str | None, *, clock: Clock
) -> Model:
    """Stores the adapter in ``folder`` and returns its entry. ``name``: its id; None makes one of its digest.

    Raises ConfigError, NotFoundError or TamperedError for an adapter that does not fit, ConflictError for a
    name or an adapter that is stored already.
    """
    key = signatures.needed_key(settings)
    base = base_models.resolve(settings.model.base, settings.data_dir / "models", settings.models)
    releases = Releases(bus, clock)
    with tempfile.TemporaryDirectory(prefix="onward-add-") as scratch:
        staged = Path(scratch) / "adapter"
        # none is needed: who adds an adapter signs it; but a wrong one must not become a right one
        trust = replace(Trust.from_settings(settings), required=False)
        manifest = await asyncio.to_thread(stage, folder, base, staged, trust, settings.model.path)
        model_id = await _free_name(releases, name, folder, manifest, settings)
        commit = await checkpoints.store(objects, staged, manifest, key)
    model = Model(
        model_id=model_id,
        adapter_digest=commit.adapter_digest,
        object_prefix=commit.object_prefix,
        training_job_id=commit.job_id,
        manifest_sha256=commit.manifest_sha256,
        state="added",
        info={"base_model": settings.model.base},
    )
    await audit.record(bus, clock, "models.add", model_id=model_id, adapter_digest=commit.adapter_digest)
    await releases.create_model(model)
    return model


async def _free_name(
    releases: Releases, name: str | None, folder: Path, manifest: checkpoints.Manifest, settings: Settings
) -> str:
    """Returns the id of the new model. Raises ConfigError or ConflictError for one that cannot be given."""
    model_id = name if name is not None else f"added-{manifest.adapter_digest[:8]}"
    if _NAME.fullmatch(model_id) is None:
        raise ConfigError(
            f"--name is {model_id[:40]!r}: expected 1 to 128 letters, digits, '.', '_' and '-', the first a "
            f"letter, a digit or '_'."
        )
    for model in await releases.models():
        if model.adapter_digest == manifest.adapter_digest:
            raise ConflictError(
                f"The adapter in {folder} is stored already, as {model.model_id}: "
                f"'onward models show {model.model_id}' shows it."
            )
    bases = {base_models.TINY, *base_models.KNOWN, settings.model.base}
    if model_id in bases or await releases.is_given(model_id):
        raise ConflictError(f"There is a model {model_id} already: give another --name.")
    return model_id


async def request_release(
    bus: Bus, model_id: str, *, clock: Clock, needs_approval: str | None = None
) -> ReleaseRecord:
    """Requests a release of a stored model that does not serve. Returns the record of this request.
    ``needs_approval``: why a person must approve it, whatever the settings say.

    The request goes to the audit stream first. Raises NotFoundError for an unknown model; ConflictError for
    one that served or serves, and while something else decides which model serves.
    """
    releases = Releases(bus, clock)
    model = await releases.model(model_id)
    if model is None:
        raise NotFoundError(
            f"There is no stored model {model_id!r}: 'onward models list' shows them, and 'onward models add "
            f"FOLDER' stores one."
        )
    if model.state == "current":
        raise ConflictError(f"{model_id} serves already: there is nothing to release.")
    if model.state in ("previous", "retired"):
        raise ConflictError(
            f"{model_id} served before: go back to it with 'onward models rollback {model_id}'."
        )
    await refuse_if_busy(bus, await releases.all(), "release it")
    serving = await releases.current()
    if serving is None:
        raise NotFoundError(
            f"No model serves yet, so {model_id} cannot be compared with one: start the loop with 'onward "
            f"up', then release it."
        )
    record = await requested_record(
        bus, clock, "asked for its release",
        job_id=model.training_job_id, epoch=1, candidate=model, current=serving,
        needs_approval=needs_approval,
    )  # fmt: skip
    await audit.record(
        bus, clock, "models.release", model_id=model_id, serving=serving.model_id,
        release_id=record.release_id, result="asked",
    )  # fmt: skip
    await releases.create(record)
    return record
