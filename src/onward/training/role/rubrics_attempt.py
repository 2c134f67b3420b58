"""One attempt at a rubrics job: a request of ``agent.rl.training.rubrics.v1``, run as a job child.

Its result is a rubric writer. The child compares it on validation tasks with its warm start and with the
writer that is released. The files go to ``rubrics/<job>/<attempt>/`` in the object store, the comparison to a
version in bucket ``rl_writers``, and a writer that passes becomes the released one (``training.writers``).

Invariants: files, then version, then pointer. A crash between any two leaves the released writer as it was,
and the next attempt goes on. A writer is released only over the one that it was compared with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import structlog

from onward import extras
from onward.contracts import encode
from onward.contracts.buckets import ReleasedWriter, WriterVersion
from onward.contracts.codec import validate
from onward.contracts.training import RubricsRequest
from onward.errors import (
    ConflictError,
    ContractError,
    MissingExtraError,
    TamperedError,
    TrainingError,
)
from onward.files import write_whole
from onward.telemetry.crashpoints import crashpoint
from onward.training.job import rubrics
from onward.training.role.attempt import folder_of
from onward.training.role.control_attempt import UploadingAttempt
from onward.training.writers.files import WriterFiles
from onward.training.writers.record import RELEASED, WAS_RELEASED, Writers, state_of

TRAINER = "trainer"
"""Name of who releases a writer by its validation."""
COMPARISONS = 3
"""Comparisons of one writer: it is compared again if another writer was released meanwhile."""
log = structlog.get_logger(__name__)


def refuse_impossible(asked: RubricsRequest) -> None:
    """Raises TrainingError("DATA") for a request whose plan cannot be, and where a part is not installed."""
    try:
        extras.require("lm", "torch", "A job for a rubric writer")
        rubrics.refuse_wrong_settings(asked)
    except MissingExtraError as error:
        raise TrainingError("DATA", str(error)) from None


class RubricsAttempt(UploadingAttempt):
    MODULE = "onward.training.job.rubrics"

    async def run_rubrics(self) -> dict[str, Any]:
        """Returns the child's last event, with the place and the version of the writer. Raises TrainingError,
        ObjectError, BusError."""
        record = self._lease.record
        await self._announcer.announce(record)
        try:
            asked = validate(record.request, RubricsRequest)
        except ContractError as error:
            raise TrainingError("DATA", f"The request in the job's record cannot be read: {error}") from None
        refuse_impossible(asked)
        folder = folder_of(self.ctx, record.job_id)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / rubrics.SPEC, encode(asked))
        done, version, released = await self._trained(folder)
        outcome = {"version": version.version, "passed": version.passed, "why": version.why}
        done = {**done, "metrics": {**done["metrics"], **outcome, "released_now": released}}
        return self._stored(done, version.object_prefix)

    async def _trained(self, folder: Path) -> tuple[dict[str, Any], WriterVersion, bool]:
        """Trains, compares, records, and releases. Returns the child's last event, the version, and whether
        it is released now. The child trains once: another run of it compares alone."""
        writers = Writers(self.ctx.bus, self.ctx.clock)
        files = WriterFiles(self.ctx.objects, self.ctx.settings)
        left = COMPARISONS
        while True:
            left -= 1
            pointer, problem = await self._put_released(writers, files, folder)
            done = await self._compute(folder, {"samples": None, "excluded": {}})
            found = {**done["metrics"], **({"problem": problem} if problem else {})}
            version = await self._record(writers, files, folder, found)
            try:
                return done, version, await self._release(writers, version, pointer)
            except ConflictError as error:
                log.warning("another rubric writer was released meanwhile", why=str(error), tries_left=left)
                if not left:
                    return done, version, False

    async def _put_released(
        self, writers: Writers, files: WriterFiles, folder: Path
    ) -> tuple[ReleasedWriter | None, str]:
        """Names the released writer in the job's folder, for the comparison. Returns it, and why it cannot be
        compared with (empty if it can)."""
        path = folder / rubrics.RELEASED
        path.unlink(missing_ok=True)
        pointer, problem = await writers.released(), ""
        if pointer is not None:
            try:
                place = str(await files.fetch(pointer))
                write_whole(path, json.dumps({"version": pointer.version, "folder": place}).encode())
            except TamperedError as error:  # training goes on: what it makes may be needed the more
                problem = str(error)
                await self.ctx.alerts.raise_("writer_refused", problem, "critical", writer=pointer.version)
        return pointer, problem

    async def _record(
        self, writers: Writers, files: WriterFiles, folder: Path, found: dict[str, Any]
    ) -> WriterVersion:
        job = self._lease.record
        facts = await files.store_judged(folder / rubrics.RUN / "writer", job.job_id, job.attempt, found)
        crashpoint("writers.stored")
        return await writers.record(job.job_id, **facts)

    async def _release(
        self, writers: Writers, version: WriterVersion, pointer: ReleasedWriter | None
    ) -> bool:
        """Releases a writer that passed, as the settings say. Returns whether it is released now. Raises
        ConflictError if it was compared with a writer that is not the released one any more."""
        mode = self.ctx.settings.rubrics.release
        state = state_of(version, await writers.released())
        if state in WAS_RELEASED:  # by an earlier attempt, and maybe replaced since
            return state == RELEASED
        if version.passed and mode == "auto":
            expected = None if pointer is None else pointer.version
            await writers.release(version, kind="released", expected=expected, by=TRAINER, why=version.why)
            log.info("rubric writer released", version=version.version, why=version.why)
            return True
        if version.passed and mode == "approval":
            await self.ctx.alerts.raise_(
                "approval_needed",
                f"{version.version} waits for approval ({version.why}): run 'onward rubrics promote "
                f"{version.version} --reason …'.",
                writer=version.version,
            )
        log.info("rubric writer not released", version=version.version, mode=mode, why=version.why)
        return False
