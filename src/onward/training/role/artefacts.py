"""Artefacts of a job in the object store beside its checkpoint: log, curves, TensorBoard events, results.

It goes to ``jobs/<job_id>/attempts/<attempt>/``, also after a failure. The log is redacted: a traceback may
quote the data.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from onward.context import Context
from onward.errors import ObjectError
from onward.ids import check_id
from onward.training import checkpoints
from onward.training.job import card, curves, steps

log = structlog.get_logger(__name__)

MOST_LOG = 1 << 20
"""Bytes at the end of a log that are stored."""
LOG, RESULTS = "job.log", "results.json"
WITHHELD = b"(The log is withheld: it could not be redacted.)\n"
Document = dict[str, Any]


def prefix_of(job_id: str, attempt: int) -> str:
    return f"jobs/{check_id(job_id, 'job id')}/attempts/{attempt}"


async def store(
    ctx: Context, job_id: str, attempt: int, folder: Path, done: Document | None = None
) -> dict[str, str]:
    """Stores the files of an attempt and returns their places, by the names of the status. ``done`` is the
    last event of an attempt with a result. Raises ObjectError. Repeatable."""
    prefix = prefix_of(job_id, attempt)
    text = await asyncio.to_thread(_redacted_log, ctx, job_id)
    await ctx.objects.put(f"{prefix}/{LOG}", text)
    if done is not None:
        body = json.dumps(done, indent=1, sort_keys=True).encode()
        await ctx.objects.put(f"{prefix}/{RESULTS}", body)
    found: dict[str, str] = {}
    for name in (curves.LINES, curves.TABLE, curves.PICTURE):
        if (folder / name).is_file():
            await ctx.objects.put(f"{prefix}/{name}", folder / name)
            found["training_curves"] = f"{prefix}/{name}"
    for path in sorted(folder.glob("events.out.tfevents.*")):
        await ctx.objects.put(f"{prefix}/tensorboard/{path.name}", path)
        found["tensorboard_logs"] = f"{prefix}/tensorboard"
    return found


async def store_steps(ctx: Context, prefix: str, folder: Path, key: Ed25519PrivateKey | None) -> None:
    """Stores the checkpoints during the run below that of its result, each signed like it. Repeatable."""
    for step, path in steps.found(folder):
        await asyncio.to_thread(checkpoints.verify, path)
        if key is not None:
            checkpoints.sign(path, key)
        await checkpoints.upload_to(ctx.objects, path, f"{prefix}/{steps.FOLDER}/{step}")


async def store_failed(ctx: Context, job_id: str, attempt: int, folder: Path) -> None:
    """Stores the files of an attempt that failed; without the store they stay in the job's folder alone."""
    try:
        await store(ctx, job_id, attempt, folder)
    except (ObjectError, OSError) as error:
        log.warning("the log of a failed attempt is not stored", job_id=job_id, cause=str(error))


def with_card(found: dict[str, str], checkpoint: Path, prefix: str) -> dict[str, str]:
    """Returns ``found`` with the checkpoint and its model card."""
    cards = {"model_card": f"{prefix}/{card.CARD}"} if (checkpoint / card.CARD).is_file() else {}
    return {"final_checkpoint": prefix, **found, **cards}


def usage(done: Document, cost_per_hour: float) -> dict[str, float]:
    """Returns the ``resource_usage`` of a status: of all attempts, on one machine."""
    seconds = float(done.get("total_seconds") or done["seconds"])
    found = {"total_training_time_seconds": seconds, "peak_memory_gb": float(done.get("peak_memory_gb", 0.0))}
    if str(done.get("metrics", {}).get("device", "")).startswith("cuda"):
        found["gpu_hours"] = seconds / 3600
    return found | ({"cost_usd": seconds / 3600 * cost_per_hour} if cost_per_hour else {})


def _redacted_log(ctx: Context, job_id: str) -> bytes:
    from onward.capture.make_redactor import redactor_of  # compiles the rules: once per attempt

    path = ctx.settings.data_dir / "logs" / f"job-{job_id}.log"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MOST_LOG))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return b""
    try:
        return str(redactor_of(ctx.settings).document(text).document).encode()
    except Exception as error:  # a defect in redaction must not let the text through, nor end the job
        log.warning("a job's log is withheld", job_id=job_id, cause=type(error).__name__)
        return WITHHELD
