"""The input of a job, put into its folder once: the dataset, the adapter that serves, the marker.

Invariants: ``frozen.json`` is written last and whole. If it exists, an earlier attempt froze everything, and
later attempts must train on exactly that. The snapshot of the dataset is stored before it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import Any

from onward.bus import read_document
from onward.capture import provenance
from onward.capture.make_redactor import redactor_of
from onward.context import Context
from onward.contracts import TrainingRequest
from onward.contracts.buckets import DesiredRoutes, ModelEntry
from onward.errors import TamperedError, TrainingError
from onward.files import write_whole
from onward.ids import model_key
from onward.training import checkpoints
from onward.training.data import dataset, snapshots, sources
from onward.training.data.admission import AdmissionRules
from onward.training.data.dataset import Dataset
from onward.training.data.selection import REACH, Limits, Mix, Selection
from onward.training.data.sources import Reading, Stores, Wanted
from onward.training.data.stream import TRAJECTORIES
from onward.training.data.written_corrections import with_corrections
from onward.training.signatures import Trust
from onward.training.spec.algorithms import ALGORITHMS
from onward.training.spec.dataset_mix import shares_of

MARKER = "frozen.json"
FIRST_POLICY_SECONDS = 60.0
"""Longest wait for the first policy: after a fresh start, requests may arrive before it is released."""


async def freeze(
    ctx: Context, asked: TrainingRequest, folder: Path, *, asked_at: datetime | None = None
) -> dict[str, Any]:
    """Returns ``{start_digest, dataset_sha256, samples, excluded, …}``, from an earlier attempt or made now.

    ``asked_at``: time at which the job was recorded; messages that came later are for the next job. Raises
    TrainingError("DATA") when there is nothing to train on, TamperedError when the stored adapter is not the
    one that serves.
    """
    marker = folder / MARKER
    if marker.exists():
        return await _as_frozen(ctx, folder)
    current = await _current_policy(ctx)
    previous = None
    if current["adapter_digest"] is not None:
        start = await _fetch_start(ctx, current, folder / "adapter")
        previous = start.start_digest or start.base_digest
    frozen: dict[str, Any] = {
        "start_digest": current["adapter_digest"],
        "dataset_sha256": None,
        "samples": None,
        "excluded": {},
    }
    if asked.training_config.dataset.environment is None or asked.training_config.dataset.source != "local":
        frozen |= await _dataset(ctx, asked, folder, (current["model_digest"], previous), asked_at)
    write_whole(marker, json.dumps(frozen).encode())
    return frozen


async def _as_frozen(ctx: Context, folder: Path) -> dict[str, Any]:
    """Returns what an earlier attempt froze. Rows that were left out since give a snapshot of their own.
    Raises TrainingError("DATA") for other rows than those."""
    frozen = json.loads((folder / MARKER).read_bytes())
    rows, digest = folder / dataset.FILE, frozen["dataset_sha256"]
    if digest is None:
        return frozen
    if not rows.is_file() or await asyncio.to_thread(checkpoints.sha256_file, rows) != digest:
        raise TrainingError("DATA", "The rows in the job's folder are not those that were frozen.")
    if frozen.get("snapshot") is None and (whole := frozen.get("part_of")) is not None:
        store = snapshots.open_store(ctx.settings, ctx.objects)
        frozen["snapshot"] = await snapshots.store_part(store, whole, rows, frozen["excluded"])
        write_whole(folder / MARKER, json.dumps(frozen).encode())
    return frozen


async def _dataset(
    ctx: Context,
    asked: TrainingRequest,
    folder: Path,
    policies: tuple[str, str | None],
    asked_at: datetime | None,
) -> dict[str, Any]:
    """Freezes logged work of the policy that serves and, if the request allows it, of the one before it."""
    config, (current, previous) = asked.training_config, policies
    numbers = config.hyperparameters.model_dump(exclude_none=True)
    older = previous if int(numbers.get("max_staleness", 0)) > 0 else None
    staleness = {current: 0} | ({older: 1} if older else {})
    text = ALGORITHMS[config.algorithm].text_is_enough
    anybody = text and config.dataset.source in ("local", "s3")
    rules = AdmissionRules(
        staleness=None if text else staleness,
        signing_key=provenance.load_key(ctx.settings.run_dir),
        filters=filters_of(asked),
        text_is_enough=text,
        dense=bool(numbers.get("dense_rewards", False)),
    )
    wanted = Wanted(
        config.dataset,
        None if anybody else tuple(staleness),
        most=REACH * config.dataset.sample_size,
        last=_until(asked),
        until=asked_at,
    )
    mix = _mix(asked, int(numbers.get("seed", 0)))
    limits = ctx.settings.training
    selection = Selection(
        rules,
        config.algorithm,
        Limits(config.dataset.sample_size, limits.max_unscored_share, limits.max_masked_share),
        mix,
    )
    reading = Reading()
    made = await _select(Stores.of(ctx), wanted, reading, selection, folder)
    description = snapshots.describe(
        asked, wanted, reading, rules, mix, made, redaction=redactor_of(ctx.settings).policy_version
    )
    stored = await snapshots.store(snapshots.open_store(ctx.settings, ctx.objects), description, made.path)
    return {
        "dataset_sha256": made.sha256,
        "samples": made.samples,
        "excluded": dict(made.excluded),
        "calls": made.calls,
        "masked_calls": made.masked_calls,
        "snapshot": stored,
        "notes": list(made.notes),
    }


async def _select(
    stores: Stores, wanted: Wanted, reading: Reading, selection: Selection, folder: Path
) -> Dataset:
    """Reads the source until the selection is full, and writes the dataset."""
    source = sources.find(wanted.dataset.source)
    async with aclosing(source(stores, wanted, reading)) as pages:
        async for page in pages:
            if selection.algorithm == "dpo":
                page = await with_corrections(stores.warehouse, page)
            if await asyncio.to_thread(selection.add, page):
                break
    return await asyncio.to_thread(selection.finish, folder, reading.left_out)


def filters_of(asked: TrainingRequest) -> dict[str, Any]:
    """Returns the filter of a request; empty without one."""
    found = asked.training_config.dataset.filter
    return {} if found is None else found.model_dump(exclude_none=True)


def _mix(asked: TrainingRequest, seed: int) -> Mix | None:
    """Returns the stratified sample that is requested; None for the newest trajectories."""
    shares = shares_of(asked.training_config.dataset)
    if shares is None and asked.training_config.dataset.sampling != "balanced":
        return None
    return Mix(shares, seed)


async def _fetch_start(ctx: Context, current: dict[str, Any], folder: Path) -> checkpoints.Manifest:
    """Fetches the adapter that serves, from scratch: partial files of a dead attempt are deleted."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(checkpoints.partial_of(folder), ignore_errors=True)
    manifest = await checkpoints.fetch(
        ctx.objects,
        current["object_prefix"],
        folder,
        manifest_sha256=current["manifest_sha256"],
        trust=Trust.from_settings(ctx.settings),
    )
    if manifest.adapter_digest != current["adapter_digest"]:
        raise TamperedError(
            f"The checkpoint of {current['model_id']} is {manifest.adapter_digest[:12]} where "
            f"{current['adapter_digest'][:12]} serves: it must not be trained from."
        )
    return manifest


async def _desired(ctx: Context) -> DesiredRoutes:
    """Returns the desired routes; waits if there are none yet."""
    until = ctx.clock.monotonic() + FIRST_POLICY_SECONDS
    while (desired := await read_document(ctx.bus, DesiredRoutes)) is None or not desired.arms:
        if ctx.clock.monotonic() >= until:
            raise TrainingError(
                "DATA", "No policy serves yet, so there is nothing to train: release one first."
            )
        await ctx.clock.sleep(0.5)
    return desired


async def _current_policy(ctx: Context) -> dict[str, Any]:
    """Returns digests and checkpoint of the policy that serves now.

    ``model_digest`` names it in generation records; ``manifest_sha256`` is its commit's, if it has one.
    ``adapter_digest`` is None and ``object_prefix`` empty for the base model alone, which is trained into a
    new adapter.
    """
    arms = (await _desired(ctx)).arms
    arm = next((arm for arm in arms if arm.arm == "current"), arms[0])
    stored = await read_document(ctx.bus, ModelEntry, model_key(arm.model_id)) or ModelEntry()
    digest = arm.adapter_digest or arm.model_digest
    if digest is None:
        raise TrainingError(
            "DATA",
            f"No engine has said which base model {arm.model_id!r} is, so its work cannot be told "
            f"from another's: start the gateway and ask again.",
        )
    if arm.adapter_digest is not None and not stored.object_prefix:
        raise TrainingError(
            "DATA", f"{arm.model_id!r} serves but has no checkpoint on record: it cannot be trained from."
        )
    return {
        "model_digest": digest,
        "adapter_digest": arm.adapter_digest,
        "object_prefix": stored.object_prefix,
        "manifest_sha256": stored.manifest_sha256,
        "model_id": arm.model_id,
    }


def _until(asked: TrainingRequest) -> int | None:
    """Returns the sequence of RL_TRAJECTORIES up to which the requester counted; None without one, or for
    another stream."""
    if asked.training_config.dataset.stream_name not in (None, TRAJECTORIES):
        return None
    until = (asked.model_dump().get("metadata") or {}).get("until")
    return until if isinstance(until, int) and until > 0 else None
