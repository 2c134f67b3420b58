"""The trainer role: takes requests in, runs one job child at a time, commits one result per job.

Compute may start twice after a crash; the attempt number and the create-only COMMIT object decide
which attempt counts. Everything the child needs is frozen into its folder before it starts, and the
folder survives, so that a second attempt goes on where the first one was.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import structlog

from onward.bus import Ack, DeadLetter, Message, consume
from onward.capture import provenance
from onward.children import child_environment
from onward.clock import utc_text
from onward.context import Context
from onward.contracts import TrainingRequest, TrainingStatus, decode, encode, subjects
from onward.errors import ConflictError, ContractError, TrainingError
from onward.ids import new_id
from onward.telemetry.crashpoints import crashpoint
from onward.training import checkpoints, dataset, recipes, request
from onward.training.jobs import JobError, JobRecord, JobTable
from onward.warehouse import queries

log = structlog.get_logger(__name__)

IDLE_SECONDS = 0.5
PROGRESS_SECONDS = 2.0
TERMINAL = ("completed", "failed", "cancelled")


class Trainer:
    """State of one trainer process. ``owner`` names this run of it; ``node`` names its data folder."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.table = JobTable(ctx.bus.bucket("rl_jobs"), ctx.clock)
        self.node = _node_id(ctx.settings.run_dir)
        self.owner = f"{self.node}:{new_id()}"
        self._seen: dict[str, tuple[int, float]] = {}

    async def intake(self, messages: list[Message]) -> list[Ack | DeadLetter]:
        """Record each request once; refuse with a reason what cannot be recorded."""
        dispositions: list[Ack | DeadLetter] = []
        for message in messages:
            try:
                asked = decode(message.data, TrainingRequest)
                record, created = await self.table.intake(asked)
            except ContractError as error:
                dispositions.append(DeadLetter(error.reason, str(error)))
                continue
            crashpoint("training.intake")
            if created:
                await self.announce(record)
                log.info("job queued", job_id=record.job_id)
            dispositions.append(Ack())
        return dispositions

    async def work(self) -> None:
        """Claim and run queued jobs until cancelled."""
        for record, revision in await self.table.all():
            if record.state in TERMINAL:
                continue
            await self._reap(record, revision, grace=0.0 if self._is_mine(record) else None)
        while True:
            claimed = None
            if not await self._paused():
                for record, revision in await self.table.queued():
                    with contextlib.suppress(ConflictError):
                        claimed = await self.table.claim(record, revision, self.owner)
                        break
            if claimed is None:
                for record, revision in await self.table.all():
                    await self._reap(record, revision, grace=None)
                await self.ctx.clock.sleep(IDLE_SECONDS)
                continue
            await self._run(*claimed)

    async def _paused(self) -> bool:
        entry = await self.ctx.bus.bucket("rl_control").get("learning")
        return bool(entry and json.loads(entry.value).get("paused"))

    def _is_mine(self, record: JobRecord) -> bool:
        """Owned by an earlier run on this data folder, which the folder's lock says is dead."""
        return (record.owner or "").split(":")[0] == self.node and record.owner != self.owner

    async def _reap(self, record: JobRecord, revision: int, grace: float | None) -> None:
        """Requeue a running job whose owner is gone: its revision stood still for a whole lease."""
        if record.state != "running" or record.owner == self.owner:
            return
        now = self.ctx.clock.monotonic()
        known, since = self._seen.get(record.job_id, (-1, now))
        if known != revision:
            self._seen[record.job_id] = (revision, now)
            since = now
        limit = self.ctx.settings.training.lease_seconds if grace is None else grace
        if now - since < limit:
            return
        with contextlib.suppress(ConflictError):
            if record.attempt >= self.ctx.settings.training.max_attempts:
                error = JobError(
                    code="INFRA", message=f"The worker died {record.attempt} times; the job was given up."
                )
                await self._finish(record, revision, "failed", error=error)
            else:
                await self.table.move(record, revision, "queued", owner=None)
                log.warning("job requeued, its worker died", job_id=record.job_id, attempt=record.attempt)

    async def _run(self, record: JobRecord, revision: int) -> None:
        """One attempt, from freezing the data to the commit."""
        lease = _Held(self.table, record, revision)
        renewing = asyncio.create_task(self._renew(lease))
        work = asyncio.create_task(self._attempt(lease))
        try:
            await self.announce(record)
            await asyncio.wait({renewing, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():  # the lease is lost: another worker owns the job now
                log.warning("job lease lost", job_id=record.job_id)
                return
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            try:
                commit, done = work.result()
            except TrainingError as error:
                await self._fail(lease, error)
                return
            await self._complete(lease, commit, done)
        except asyncio.CancelledError:
            await self._hand_back(lease, renewing, work)
            raise
        finally:
            for task in (renewing, work):
                task.cancel()
            await asyncio.gather(renewing, work, return_exceptions=True)

    async def _hand_back(self, lease: _Held, *tasks: asyncio.Task[Any]) -> None:
        """A clean stop returns the job to the queue, so that a restart need not wait for the lease."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            if lease.record.state == "running":
                await self.table.move(lease.record, lease.revision, "queued", owner=None)

    async def _renew(self, lease: _Held) -> None:
        """Returns when the lease is lost."""
        while True:
            await self.ctx.clock.sleep(self.ctx.settings.training.lease_seconds / 3)
            try:
                await lease.renew()
            except ConflictError:
                return

    async def _attempt(self, lease: _Held) -> tuple[checkpoints.Commit, dict[str, Any]]:
        record = lease.record
        asked = TrainingRequest.model_validate(record.request)
        request.check(asked, self.ctx.settings)
        folder = self.ctx.settings.data_dir / "jobs" / record.job_id
        folder.mkdir(parents=True, exist_ok=True)
        frozen = await self._prepare(lease, asked, folder)
        crashpoint("training.frozen")
        done = await self._compute(lease, folder, frozen)
        checkpoint = folder / "checkpoint"
        manifest = checkpoints.verify(checkpoint)
        crashpoint("training.before_upload")
        prefix = await checkpoints.upload(
            self.ctx.objects, checkpoint, job_id=record.job_id, epoch=record.attempt
        )
        crashpoint("training.before_commit")
        body = (checkpoint / checkpoints.MANIFEST).read_bytes()
        commit = await checkpoints.commit(self.ctx.objects, body, manifest, prefix)
        crashpoint("training.after_commit")
        return commit, done

    async def _prepare(self, lease: _Held, asked: TrainingRequest, folder: Path) -> dict[str, Any]:
        """Freeze data and start policy into ``folder``, or return what an earlier attempt froze."""
        marker = folder / "frozen.json"
        if marker.exists():
            frozen: dict[str, Any] = json.loads(marker.read_bytes())
        else:
            current = await self._current_policy()
            settings = self.ctx.settings
            made = await asyncio.to_thread(
                dataset.freeze,
                await self._scored(asked, current["model_digest"]),
                folder,
                policy_digest=current["model_digest"],
                signing_key=provenance.load_key(settings.run_dir),
                sample_size=asked.training_config.dataset.sample_size,
                max_unscored_share=settings.training.max_unscored_share,
                return_from=settings.training.return_from,
                filters=_filters(asked),
                groups=asked.training_config.algorithm == "rloo",
            )
            if current["object_prefix"]:
                shutil.rmtree(folder / "adapter", ignore_errors=True)
                await checkpoints.fetch(self.ctx.objects, current["object_prefix"], folder / "adapter")
            frozen = {
                "start_digest": current["adapter_digest"],
                "dataset_sha256": made.sha256,
                "samples": made.samples,
                "excluded": dict(made.excluded),
            }
            marker.write_text(json.dumps(frozen))
        spec = request.resolve(
            asked,
            self.ctx.settings,
            recipes.for_model(asked.training_config.base_model),
            model_folder=str(self.ctx.base_model),
            start_digest=frozen["start_digest"],
            epoch=lease.record.attempt,
        )
        (folder / "spec.json").write_text(spec.model_dump_json(indent=1))
        await lease.renew(
            start_digest=frozen["start_digest"],
            dataset_sha256=frozen["dataset_sha256"],
            samples=frozen["samples"],
        )
        return frozen

    async def _current_policy(self) -> dict[str, Any]:
        """Digests and checkpoint of the policy that serves now.

        ``model_digest`` names it in generation records; ``adapter_digest`` is None and ``object_prefix``
        empty for the base model alone, which is trained into a new adapter.
        """
        entry = await self.ctx.bus.bucket("rl_releases").get("desired")
        if entry is None:
            raise TrainingError(
                "DATA", "No policy serves yet, so there is nothing to train: release one first."
            )
        arms = json.loads(entry.value)["arms"]
        arm = next((arm for arm in arms if arm["arm"] == "current"), arms[0])
        model = await self.ctx.bus.bucket("rl_models").get(arm["model_id"].replace(".", "_"))
        prefix = json.loads(model.value)["object_prefix"] if model else None
        digest = arm["adapter_digest"] or arm.get("model_digest")
        if digest is None:
            raise TrainingError(
                "DATA",
                f"No engine has said which base model {arm['model_id']!r} is, so its work cannot be told "
                f"from another's: start the gateway and ask again.",
            )
        return {
            "model_digest": digest,
            "adapter_digest": arm["adapter_digest"],
            "object_prefix": prefix,
            "model_id": arm["model_id"],
        }

    async def _scored(self, asked: TrainingRequest, digest: str) -> list[dataset.Scored]:
        """Newest first, so that ``sample_size`` keeps what the policy did last."""
        found = await queries.trajectories_for_training(
            self.ctx.warehouse,
            model_digests=[digest],
            since=(_filters(asked).get("date_range") or {}).get("start"),
            limit=2 * asked.training_config.dataset.sample_size,
        )
        return [
            dataset.Scored(
                trajectory=json.loads(row["payload"]),
                reward=json.loads(row["reward_payload"]) if row["reward_payload"] else None,
            )
            for row in found
        ]

    async def _compute(self, lease: _Held, folder: Path, frozen: dict[str, Any]) -> dict[str, Any]:
        """Run the child to its end and return its ``done`` event."""
        threads = self.ctx.settings.model.threads or os.cpu_count() or 1
        logs = self.ctx.settings.data_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        with open(logs / f"job-{lease.record.job_id}.log", "ab") as errors:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "onward.training.worker", str(folder),
                stdout=asyncio.subprocess.PIPE, stderr=errors, start_new_session=True,
                env=child_environment(OMP_NUM_THREADS=str(threads)), limit=1 << 20,
            )  # fmt: skip
        result: dict[str, Any] | None = None
        last = -PROGRESS_SECONDS
        try:
            async for event in _events(child):
                if event["event"] == "failed":
                    raise TrainingError(event["code"], event["message"])
                if event["event"] == "done":
                    result = event
                now = self.ctx.clock.monotonic()
                if event["event"] == "progress" and now - last >= PROGRESS_SECONDS:
                    last = now
                    await self._progress(lease, event)
            code = await child.wait()
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                await child.wait()
        if result is None:
            raise TrainingError(
                "OOM" if code == -signal.SIGKILL else "UNKNOWN",
                f"The training process ended with code {code} and no result: "
                f"see logs/job-{lease.record.job_id}.log.",
            )
        return {**result, "samples": frozen["samples"], "excluded": frozen["excluded"]}

    async def _progress(self, lease: _Held, event: dict[str, Any]) -> None:
        total, step = event["total_steps"], event["step"]
        epochs = event["total_epochs"]
        progress = {
            "current_epoch": min(epochs, step * epochs // max(1, total)),
            "total_epochs": epochs,
            "current_step": step,
            "total_steps": total,
            "percent_complete": 100.0 * step / total,
            "eta_seconds": event["elapsed"] / max(1, step) * (total - step),
        }
        with contextlib.suppress(ConflictError):  # the renewer will notice a lost lease
            await lease.renew(progress={**progress, "metrics": event["metrics"]})
        await self._publish(
            lease.record, f"step-{step}", progress=progress, metrics={"current": event["metrics"]}
        )

    async def _complete(self, lease: _Held, commit: checkpoints.Commit, done: dict[str, Any]) -> None:
        record = await self._finish(
            lease.record, lease.revision, "completed", commit=commit, progress={"metrics": done["metrics"]}
        )
        seconds = done["seconds"]
        self.ctx.metrics.training_duration.observe(seconds)
        self.ctx.metrics.training_samples.set(done["samples"])
        log.info("job completed", job_id=record.job_id, seconds=round(seconds, 1), samples=done["samples"])

    async def _fail(self, lease: _Held, error: TrainingError) -> None:
        code: Any = error.code
        await self._finish(
            lease.record, lease.revision, "failed", error=JobError(code=code, message=str(error))
        )
        await self.ctx.alerts.raise_(
            "training_failed", str(error), severity="warning", job_id=lease.record.job_id
        )

    async def _finish(self, record: JobRecord, revision: int, state: Any, **changes: Any) -> JobRecord:
        record, _ = await self.table.move(record, revision, state, **changes)
        crashpoint("training.finished")
        self.ctx.metrics.training_jobs.labels(status=state).inc()
        await self.announce(record)
        return record

    async def announce(self, record: JobRecord) -> None:
        """Publish the record's state. The same state of the same attempt has the same message id."""
        extra: dict[str, Any] = {}
        if record.commit is not None:
            extra["artifacts"] = {"final_checkpoint": record.commit.object_prefix}
            extra["metrics"] = {"current": record.progress.get("metrics", {})}
        if record.error is not None:
            extra["error"] = record.error.model_dump()
        await self._publish(record, record.state, **extra)

    async def _publish(self, record: JobRecord, tag: str, **fields: Any) -> None:
        status = TrainingStatus.model_validate(
            {
                "training_job_id": record.job_id,
                "timestamp": utc_text(self.ctx.clock.now()),
                "status": record.state,
                "metadata": {"training_platform": "onward", "attempt": record.attempt},
                **fields,
            }
        )
        await self.ctx.bus.publish(
            subjects.TRAINING_STATUS, encode(status), msg_id=f"{record.job_id}:{record.attempt}:{tag}"
        )

    async def reannounce(self) -> None:
        """After a crash between a state change and its event: the server drops what it already has."""
        for record, _ in await self.table.all():
            if record.state in TERMINAL or record.attempt == 0:
                await self.announce(record)


class _Held:
    """The record of the job in hand with its newest revision; renewals are serialised."""

    def __init__(self, table: JobTable, record: JobRecord, revision: int) -> None:
        self.record = record
        self.revision = revision
        self._table = table
        self._lock = asyncio.Lock()

    async def renew(self, **changes: Any) -> None:
        async with self._lock:
            self.record, self.revision = await self._table.renew(self.record, self.revision, **changes)


async def run(ctx: Context) -> None:
    """Take requests and run jobs until cancelled."""
    trainer = Trainer(ctx)
    await trainer.reannounce()
    ctx.ready["trainer"] = True
    async with asyncio.TaskGroup() as group:
        group.create_task(
            consume(
                ctx.bus,
                stream="RL_TRAINING",
                durable="trainer",
                subject=subjects.TRAINING_REQUEST,
                handler=trainer.intake,
                clock=ctx.clock,
            )
        )
        group.create_task(trainer.work())


async def _events(child: asyncio.subprocess.Process) -> AsyncIterator[dict[str, Any]]:
    assert child.stdout is not None
    async for line in child.stdout:
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def _filters(asked: TrainingRequest) -> dict[str, Any]:
    return asked.training_config.dataset.model_dump().get("filter") or {}


def _node_id(run_dir: Path) -> str:
    path = run_dir / "node"
    if not path.exists():
        run_dir.mkdir(parents=True, exist_ok=True)
        path.write_text(new_id())
    return path.read_text()
