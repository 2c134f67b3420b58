"""Long work of tools: it runs beside the calls, and a call returns its job at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from onward.errors import ConflictError, OnwardError
from onward.ids import new_id

AT_ONCE_SECONDS = 0.5
"""Time in which short work is awaited, so that its result needs no second call."""
MOST_RUNNING = 4
KEPT = 50
"""Ended jobs whose results stay."""


class Background:
    """The jobs of one toolbox. They end with it."""

    def __init__(self) -> None:
        self._jobs: dict[str, asyncio.Task[dict[str, Any]]] = {}

    async def start(self, kind: str, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        """Starts work and returns its job: id and state, with the result if it is done at once. Raises
        ConflictError while too many run."""
        running = [name for name, task in self._jobs.items() if not task.done()]
        if len(running) >= MOST_RUNNING:
            work.close()
            raise ConflictError(f"{len(running)} jobs run already: wait for {running[0]}.")
        ended = [name for name, task in self._jobs.items() if task.done()]
        for name in ended[: max(0, len(ended) - KEPT)]:
            del self._jobs[name]
        job_id = f"{kind}-{new_id()}"
        task = self._jobs[job_id] = asyncio.create_task(work, name=job_id)
        await asyncio.wait({task}, timeout=AT_ONCE_SECONDS)
        return self.find(job_id) or {}

    def find(self, job_id: str) -> dict[str, Any] | None:
        """Returns a job with its result or its error; None if it is none of these."""
        task = self._jobs.get(job_id)
        if task is None:
            return None
        shown: dict[str, Any] = {"job_id": job_id, "state": "running"}
        if not task.done():
            return {**shown, "next": f"call job_status with job_id {job_id}"}
        if task.cancelled():
            return {**shown, "state": "cancelled"}
        error = task.exception()
        if error is None:
            return {**shown, "state": "completed", "result": task.result()}
        text = str(error) if isinstance(error, OnwardError) else f"a defect ({type(error).__name__})"
        return {**shown, "state": "failed", "error": text}

    async def cancel(self, job_id: str) -> bool:
        """Cancels a job and waits for its end; returns False if it is none of these."""
        task = self._jobs.get(job_id)
        if task is None:
            return False
        task.cancel()
        await asyncio.wait({task})
        return True

    async def close(self) -> None:
        """Cancels all jobs and waits for their end."""
        for task in self._jobs.values():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._jobs.values(), return_exceptions=True)
