"""The lease on the running job, which its trainer renews while it works."""

from __future__ import annotations

import asyncio
from typing import Any

from onward.clock import Clock
from onward.errors import ConflictError, ContractError
from onward.training.role.job_table import JobRecord, JobTable


class JobLease:
    """The lease on the running job: its record and newest revision; renewals are serialised by ``lock``."""

    def __init__(
        self, table: JobTable, record: JobRecord, revision: int, clock: Clock, term: float, started: float
    ) -> None:
        """``started``: before the claim was sent, so the lease ends before another owner may claim."""
        self.record = record
        self.revision = revision
        self.lock = asyncio.Lock()
        self._table = table
        self._clock = clock
        self._term = term
        self._until = started + term

    async def renew(self, **changes: Any) -> None:
        """Renews the lease. Raises ConflictError for another owner, BusError if it expired without NATS."""
        async with self.lock:
            while True:
                started = self._clock.monotonic()
                try:
                    self.record, self.revision = await self._table.renew(
                        self.record, self.revision, deadline=max(0.0, self._until - started), **changes
                    )
                except ConflictError:
                    await self._read_again()
                    continue
                self._until = started + self._term
                return

    async def refresh(self) -> None:
        """Reads what others wrote into the record, such as a request to cancel. Raises ConflictError for
        another owner."""
        async with self.lock:
            await self._read_again()

    async def _read_again(self) -> None:
        try:
            record, revision = await self._table.get(self.record.job_id)
        except ContractError as error:
            raise ConflictError(str(error)) from None
        mine = (self.record.owner, self.record.attempt)
        if record.state != "running" or (record.owner, record.attempt) != mine:
            raise ConflictError(f"Job {record.job_id} has another owner: this attempt ends.")
        self.record, self.revision = record, revision
