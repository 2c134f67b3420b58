"""The input of a job, put into its folder once: the dataset, the adapter that serves, the marker.

Invariants: ``frozen.json`` is written last and whole. If it exists, an earlier attempt froze everything, and
later attempts must train on exactly that.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

from onward.bus import read_document
from onward.capture import provenance
from onward.capture.collecting.trajectory_row import MIXED
from onward.context import Context
from onward.contracts import Feedback, TrainingRequest, decode
from onward.contracts.buckets import DesiredRoutes, ModelEntry
from onward.errors import TamperedError, TrainingError
from onward.files import write_whole
from onward.ids import model_key
from onward.reward.role.feedback import SESSION_TRAJECTORIES
from onward.reward.stored_feedback import as_time
from onward.training import checkpoints
from onward.training.data import corrections, dataset
from onward.warehouse import queries, reward_queries

MARKER = "frozen.json"
FIRST_POLICY_SECONDS = 60.0
"""Longest wait for the first policy: after a fresh start, requests may arrive before it is released."""


async def freeze(ctx: Context, asked: TrainingRequest, folder: Path) -> dict[str, Any]:
    """Returns ``{start_digest, dataset_sha256, samples, excluded, …}``, from an earlier attempt or made now.

    Raises TrainingError("DATA") when there is nothing to train on, TamperedError when the stored adapter is
    not the one that serves.
    """
    marker = folder / MARKER
    if marker.exists():
        return json.loads(marker.read_bytes())
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
    config = asked.training_config
    if config.dataset.source != "local":
        made = await _dataset(ctx, asked, folder, current["model_digest"], previous)
        frozen |= {
            "dataset_sha256": made.sha256,
            "samples": made.samples,
            "excluded": dict(made.excluded),
            "calls": made.calls,
            "masked_calls": made.masked_calls,
        }
    write_whole(marker, json.dumps(frozen).encode())
    return frozen


async def _dataset(
    ctx: Context, asked: TrainingRequest, folder: Path, current: str, previous: str | None
) -> dataset.Dataset:
    """Freezes logged work of the policy that serves and, if the request allows it, of the one before it."""
    settings, config = ctx.settings, asked.training_config
    numbers = config.hyperparameters.model_dump(exclude_none=True)
    older = previous if int(numbers.get("max_staleness", 0)) > 0 else None
    digests = [current, *([older] if older else [])]
    scored, oldest = await _scored(ctx, asked, digests)
    return await asyncio.to_thread(
        dataset.assemble,
        scored,
        folder,
        policy_digest=current,
        signing_key=provenance.load_key(settings.run_dir),
        sample_size=config.dataset.sample_size,
        max_unscored_share=settings.training.max_unscored_share,
        max_masked_share=settings.training.max_masked_share,
        filters=_filters(asked),
        algorithm=config.algorithm,
        older_digest=older,
        dense=bool(numbers.get("dense_rewards", False)),
        left_out=await _others(ctx, digests, oldest),
    )


async def _fetch_start(ctx: Context, current: dict[str, Any], folder: Path) -> checkpoints.Manifest:
    """Fetches the adapter that serves, from scratch: partial files of a dead attempt are deleted."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(checkpoints.partial_of(folder), ignore_errors=True)
    manifest = await checkpoints.fetch(
        ctx.objects, current["object_prefix"], folder, manifest_sha256=current["manifest_sha256"]
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


async def _scored(
    ctx: Context, asked: TrainingRequest, digests: list[str]
) -> tuple[list[dataset.ScoredTrajectory], int]:
    """Returns the trajectories, newest first, and the sequence of the oldest.

    In this order ``sample_size`` keeps the policy's latest work. Trajectories stored after the coordinator
    counted (``metadata.until``) are left for the next job: the data of a job must not depend on how long the
    job waited.
    """
    found = await queries.trajectories_for_training(
        ctx.warehouse,
        model_digests=digests,
        since=(_filters(asked).get("date_range") or {}).get("start"),
        limit=2 * asked.training_config.dataset.sample_size,
        until_seq=_until(asked),
    )
    written = await _corrections(ctx, found) if asked.training_config.algorithm == "dpo" else {}
    scored = [
        dataset.ScoredTrajectory(
            trajectory=json.loads(row["payload"]),
            reward=json.loads(row["reward_payload"]) if row["reward_payload"] else None,
            correction=written.get(row["trajectory_id"]),
        )
        for row in found
    ]
    return scored, min((row["stream_seq"] for row in found), default=0)


async def _corrections(ctx: Context, found: list[dict[str, Any]]) -> dict[str, Feedback]:
    """Returns trajectory id → its last user correction; one of a whole session applies to its last work."""
    names, sessions = {row["trajectory_id"] for row in found}, {row["session_id"] for row in found}
    rows = await reward_queries.feedback_about(ctx.warehouse, names, sessions)
    rows = [row for row in rows if row["signal"] == corrections.SIGNAL]
    whole = {row["session_id"] for row in rows if not row["trajectory_id"]}
    work = await reward_queries.trajectories_of_sessions(ctx.warehouse, whole, SESSION_TRAJECTORIES)
    said = [(decode(row["payload"].encode(), Feedback), as_time(row["received_at"])) for row in rows]
    return corrections.match_to_trajectories(said, work.values())


async def _others(ctx: Context, digests: list[str], oldest: int) -> dict[str, int]:
    """Counts the work of other policies in the same period (a rolled-back candidate's), never used."""
    found = await queries.trajectories_of_others(ctx.warehouse, digests, oldest)
    counts = {
        "mixed_policies": found.pop(MIXED, 0),
        "no_tokens": found.pop("", 0),
        "other_policy": sum(found.values()),
    }
    return {reason: count for reason, count in counts.items() if count}


def _until(asked: TrainingRequest) -> int | None:
    """Returns the stream sequence up to which the requester counted; None if the request has none."""
    until = (asked.model_dump().get("metadata") or {}).get("until")
    return until if isinstance(until, int) and until > 0 else None


def _filters(asked: TrainingRequest) -> dict[str, Any]:
    return asked.training_config.dataset.model_dump().get("filter") or {}
