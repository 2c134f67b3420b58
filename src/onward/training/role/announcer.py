"""The status messages of jobs: ``agent.rl.training.status.v1``."""

from __future__ import annotations

from typing import Any

from onward.clock import utc_text
from onward.context import Context
from onward.contracts import TrainingStatus, encode, subjects
from onward.training.role.job_table import JobRecord, JobTable
from onward.training.role.results import evaluation_results, status_metrics
from onward.training.spec import differences


class Announcer:
    """Publishes what a job's record says."""

    def __init__(self, ctx: Context, table: JobTable) -> None:
        self._ctx = ctx
        self._table = table

    async def announce(self, record: JobRecord) -> None:
        """Publishes the record's state. The same state of the same attempt has the same message id."""
        extra: dict[str, Any] = {}
        if record.state == "completed":
            extra["artifacts"] = record.places
            if record.resource_usage:
                extra["resource_usage"] = record.resource_usage
            extra["metrics"] = status_metrics(record)
            held_out = evaluation_results(record.progress.get("metrics") or {})
            if held_out:
                extra["evaluation_results"] = held_out
        if record.error is not None:
            extra["error"] = record.error.model_dump(exclude_none=True)
        place = (await self._table.positions()).get(record.job_id) if record.state == "queued" else None
        await self._publish(record, record.state, place, **extra)

    async def announce_progress(self, record: JobRecord, progress: dict[str, Any], metrics: Any) -> None:
        tag = f"step-{progress['current_step']}"
        await self._publish(record, tag, None, progress=progress, metrics={"current": metrics})

    async def _publish(self, record: JobRecord, tag: str, place: int | None, **fields: Any) -> None:
        differs = differences.stored_differences(record.request, self._ctx.settings)
        notes = {
            "number": record.number,
            "position": place,
            "changes": record.changes,
            "cancelled_by": record.cancelled_by,
            "not_as_asked": differs,
        }
        status = TrainingStatus.model_validate(
            {
                "training_job_id": record.job_id,
                "timestamp": utc_text(self._ctx.clock.now()),
                "status": record.state,
                "metadata": {
                    "training_platform": "onward",
                    "attempt": record.attempt,
                    **{name: note for name, note in notes.items() if note},
                },
                **fields,
            }
        )
        await self._ctx.bus.publish(
            subjects.TRAINING_STATUS, encode(status), msg_id=f"{record.job_id}:{record.attempt}:{tag}"
        )
