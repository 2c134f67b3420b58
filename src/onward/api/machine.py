"""Needs of the training service, as ``GET /health`` reports them: device, memory, disk, queue.

The facts are those of the machine of this process. A part that does not answer in time is null.
"""

from __future__ import annotations

import asyncio
from typing import Any

from onward.context import Context
from onward.errors import OnwardError
from onward.health.disk import room_now
from onward.health.readiness import answers_within
from onward.lm import devices
from onward.memory import free_memory
from onward.training.role.job_table import JobTable

HEALTH_SECONDS = 1.0


class Machine:
    """Reads the facts; ``report`` is what ``/health`` adds."""

    def __init__(self, ctx: Context, table: JobTable) -> None:
        self._ctx, self._table = ctx, table

    async def report(self) -> dict[str, Any]:
        """Returns ``{"training": {…}}``; the queue is null while NATS does not answer."""
        found = await answers_within(
            HEALTH_SECONDS,
            {
                "disk": room_now(self._ctx.settings.data_dir),
                "memory": asyncio.to_thread(free_memory),
                "jobs": self._table.all(),
            },
        )
        known = {name: None if isinstance(value, Exception) else value for name, value in found.items()}
        for value in found.values():
            if isinstance(value, Exception) and not isinstance(value, OnwardError | OSError):
                raise value
        jobs = known["jobs"]
        states = None if jobs is None else [record.state for record, _ in jobs]
        wanted = self._ctx.settings.model.device
        return {
            "training": {
                "trainer": self._ctx.ready.get("trainer", "runs elsewhere"),
                "device": "cuda" if devices.is_gpu(wanted) else "cpu",
                "gpus": devices.gpus(),
                "memory_free_bytes": known["memory"],
                "disk_free_bytes": None if known["disk"] is None else known["disk"].free,
                "queued": None if states is None else states.count("queued"),
                "running": None if states is None else states.count("running"),
            }
        }
