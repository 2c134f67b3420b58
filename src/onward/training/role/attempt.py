"""One attempt at a job: freezes the input, runs the child, commits the result.

Invariants: all input of the child is frozen into the job's folder before it starts. The folder survives, so
that a later attempt continues where this one stopped. The attempt number and the create-only COMMIT object
decide which attempt counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

import structlog

from onward import children
from onward.clock import read_time
from onward.context import Context
from onward.contracts import TrainingRequest
from onward.contracts.codec import validate
from onward.errors import BusError, ConfigError, ConflictError, ContractError, OnwardError, TrainingError
from onward.lm.model_folder import inspect
from onward.memory import KillWatch
from onward.telemetry.crashpoints import crashpoint
from onward.training import checkpoints, signatures
from onward.training.data import frozen
from onward.training.job import trackers
from onward.training.job.model_needs import refuse_too_large
from onward.training.job.worker import PASSED
from onward.training.role import artefacts, endings, remedies
from onward.training.role.announcer import Announcer
from onward.training.role.convergence import Divergence
from onward.training.role.endings import ChildError
from onward.training.role.job_lease import JobLease
from onward.training.spec import differences, recipes, request

log = structlog.get_logger(__name__)

PROGRESS_SECONDS = 2.0
STOP_SECONDS = 10.0
"""Time for a child to save its state, or to write its traceback, before it is killed."""
LOG_TAIL = 4000
"""Bytes of a child's log that are shown when it ended without a word."""


class Attempt:
    MODULE = "onward.training.job.worker"
    """Module of the child."""

    def __init__(self, ctx: Context, lease: JobLease, announcer: Announcer) -> None:
        self.ctx = ctx
        self._lease = lease
        self._announcer = announcer
        self._last_progress = -PROGRESS_SECONDS
        self._is_late = False

    async def run(self) -> tuple[checkpoints.Commit, dict[str, Any]]:
        """Returns the commit and the child's last event. Raises TrainingError and what bus, store and
        warehouse raise."""
        record = self._lease.record
        await self._announcer.announce(record)
        try:
            asked = validate(record.request, TrainingRequest)
        except ContractError as error:
            raise TrainingError("DATA", f"The request in the job's record cannot be read: {error}") from None
        request.check(asked, self.ctx.settings)
        await asyncio.to_thread(check_model, self.ctx, asked)
        folder = folder_of(self.ctx, record.job_id)
        folder.mkdir(parents=True, exist_ok=True)
        made = await self._prepare(asked, folder)
        crashpoint("training.frozen")
        try:
            done = await self._compute(folder, made)
        except (OnwardError, OSError):
            await artefacts.store_failed(self.ctx, record.job_id, record.attempt, folder)
            raise
        checkpoint = folder / "checkpoint"
        manifest = checkpoints.verify(checkpoint)
        key = signatures.needed_key(self.ctx.settings)
        if key is not None:
            checkpoints.sign(checkpoint, key)
        crashpoint("training.before_upload")
        prefix = await checkpoints.upload(
            self.ctx.objects, checkpoint, job_id=record.job_id, epoch=record.attempt
        )
        await artefacts.store_steps(self.ctx, prefix, folder, key)
        stored = await artefacts.store(self.ctx, record.job_id, record.attempt, folder, done)
        crashpoint("training.before_commit")
        body = (checkpoint / checkpoints.MANIFEST).read_bytes()
        commit = await checkpoints.commit(self.ctx.objects, body, manifest, prefix)
        crashpoint("training.after_commit")
        return commit, {**done, "artifacts": artefacts.with_card(stored, checkpoint, commit.object_prefix)}

    async def _prepare(self, asked: TrainingRequest, folder: Path) -> dict[str, Any]:
        """Freezes data and start policy into ``folder``, and writes ``spec.json``."""
        asked_at = read_time(self._lease.record.created_at)
        made = await frozen.freeze(self.ctx, asked, folder, asked_at=asked_at)
        spec = request.resolve(
            asked,
            self.ctx.settings,
            recipes.for_model(asked.training_config.base_model),
            model_folder=str(self.ctx.base_model),
            start_digest=made["start_digest"],
            epoch=self._lease.record.attempt,
        )
        spec.not_as_asked += made.get("notes", [])
        remedies.write_spec(folder, remedies.adjusted(spec, self._lease.record))
        await self._lease.renew(
            start_digest=made["start_digest"], dataset_sha256=made["dataset_sha256"], samples=made["samples"]
        )
        return made

    async def _compute(self, folder: Path, made: dict[str, Any]) -> dict[str, Any]:
        """Runs the child to its end and returns its ``done`` event. Raises ChildError."""
        job_id = self._lease.record.job_id
        threads = self.ctx.settings.model.threads or os.cpu_count() or 1
        path = self.ctx.settings.data_dir / "logs" / f"job-{job_id}.log"
        written = path.stat().st_size if path.is_file() else 0
        child = await children.start(
            self.MODULE,
            str(folder),
            group=True,
            environment={"OMP_NUM_THREADS": str(threads)},
            passed=(*PASSED, *trackers.variables(self.ctx.settings.training.trackers)),
            log=path,
        )
        kills = KillWatch(child.pid)
        limit = asyncio.create_task(self._end_late(child))
        try:
            result = await self._follow(child)
            code = await child.wait()
            if self._is_late and result is None:
                seconds = self.ctx.settings.training.timeout_seconds
                raise ChildError("TIMEOUT", f"The attempt ran for {seconds:g} s, as long as one may.")
        finally:
            limit.cancel()
            await children.end(child)
        if result is None:
            raise endings.of_exit(code, kills, f"logs/{path.name}", _tail(path, written))
        samples = made["samples"]
        if samples is None:  # an environment job: the child made its data itself
            samples = int(result["metrics"].get("episodes", 0))
        return {**result, "samples": samples, "excluded": made["excluded"]}

    async def _end_late(self, child: Process) -> None:
        """Ends the child after the longest time of an attempt; it saves its state first."""
        await self.ctx.clock.sleep(self.ctx.settings.training.timeout_seconds)
        self._is_late = True
        await children.end(child, STOP_SECONDS)

    async def _follow(self, child: Process) -> dict[str, Any] | None:
        """Reads the child's events to their end. Returns ``done``, or None if it did not come. Raises
        ChildError for a reported failure, and for a training that diverges."""
        job_id, result = self._lease.record.job_id, None
        divergence = Divergence(self.ctx.settings.training)
        async for event in children.events(child):
            kind = event.get("event")
            if kind is None:  # a JSON object that a library printed
                continue
            if kind == "failed":
                await children.end(child, STOP_SECONDS)  # it still writes its log
                raise ChildError(event["code"], event["message"], event.get("traceback"))
            if kind == "stage" and event["name"] == "loaded":
                log.info(
                    "model loaded",
                    job_id=job_id,
                    path=event["path"],
                    reason=event["reason"],
                    notes=event["notes"],
                )
            elif kind == "done":
                result = event
            elif kind == "warning":
                await self.ctx.alerts.raise_("training_logprobs", event["message"], job_id=job_id)
            elif kind == "progress":
                await self._progress(event)
            divergence.note(event)
        return result

    async def _progress(self, event: dict[str, Any]) -> None:
        """Records and publishes progress, at most every two seconds."""
        now = self.ctx.clock.monotonic()
        if now - self._last_progress < PROGRESS_SECONDS:
            return
        self._last_progress = now
        progress = event["progress"]
        with contextlib.suppress(ConflictError, BusError):  # the renewer will notice a lost lease
            await self._lease.renew(progress={**progress, "metrics": event["metrics"]})
        await self._announcer.announce_progress(self._lease.record, progress, event["metrics"])


def check_model(ctx: Context, asked: TrainingRequest) -> None:
    """Raises TrainingError: DATA if the base model's folder cannot be used, INFRA if too little memory is
    free at present on the device of this job."""
    if ctx.base_model is None:
        return
    found = differences.read(asked, ctx.settings)
    try:
        model = inspect(ctx.base_model)
    except ConfigError as error:
        raise TrainingError("DATA", str(error)) from None
    try:
        refuse_too_large(model, "lora", device=found.device, dtype=found.dtype)
    except ConfigError as error:
        raise TrainingError("INFRA", str(error)) from None


def folder_of(ctx: Context, job_id: str) -> Path:
    return ctx.settings.data_dir / "jobs" / job_id


def _tail(path: Path, start: int) -> str | None:
    """Returns the end of what was written to a log after its first ``start`` bytes."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - LOG_TAIL))
            return file.read().decode(errors="replace") or None
    except OSError:
        return None
