"""The release in hand: its record, its evidence, and the moves on it. Each move is one compare-and-set.

The record in the bucket is the truth; this is a copy of it, which a releaser forgets when another one wrote.
"""

from __future__ import annotations

from onward.context import Context
from onward.release import moves
from onward.release.evidence import gauges
from onward.release.evidence.evidence import Evidence
from onward.release.record import ReleaseRecord, Releases
from onward.release.routes import endpoint_of
from onward.telemetry import logs

log = logs.get("releaser")


class InHand:
    """State of one release between ticks; ``record`` is None while there is none."""

    def __init__(self, ctx: Context, releases: Releases) -> None:
        self._ctx = ctx
        self._releases = releases
        self.record: ReleaseRecord | None = None
        self.evidence: Evidence | None = None
        self.dirty = True
        """True if the record has effects that were not carried out yet."""
        self._revision = 0
        self.written_at = self.ticked_at = ctx.clock.monotonic()

    def take(self, found: tuple[ReleaseRecord, int] | None) -> None:
        """Takes a record with its revision, as it is in the bucket."""
        if found is None:
            return
        self.record, self._revision = found
        self.evidence = Evidence.from_state(self.record.evidence) if self.record.evidence else None
        if self.evidence is not None:
            gauges.show_evidence(self._ctx.metrics, self.record, self.evidence)
        self.dirty = True
        self.written_at = self.ticked_at = self._ctx.clock.monotonic()

    def forget(self) -> None:
        self.record, self.evidence = None, None

    @property
    def open(self) -> ReleaseRecord:
        if self.record is None:
            raise ValueError("No release is in hand.")
        return self.record

    @property
    def inputs(self) -> moves.MoveInputs:
        return moves.MoveInputs(self._ctx.settings, endpoint_of(self._ctx), self._ctx.clock.now())

    async def write(self, record: ReleaseRecord) -> None:
        """Writes the record: the one compare-and-set. Raises ConflictError if another releaser wrote it."""
        self.record, self._revision = await self._releases.write(record, self._revision)
        self.written_at = self._ctx.clock.monotonic()

    async def move(self, record: ReleaseRecord) -> None:
        """Writes a record in a new state, which is carried out at the end of the tick."""
        self.dirty = True
        await self.write(record)

    async def enter(self, step: int, why: str) -> None:
        await self.move(moves.enter_step(self.open, step, why, self.inputs))
        log.info("release step", release_id=self.open.release_id, step=step)

    async def hold(self, why: str) -> None:
        await self.move(moves.hold(self.open, why, self.inputs))

    async def resume(self, words: str) -> None:
        await self.move(moves.resume(self.open, words, self.inputs))

    async def go_on(self, why: str) -> None:
        """Ends the step: enters the next one, or promotes."""
        record = self.open
        if record.step == record.schedule.bake:
            await self.move(moves.promote(record, why, self.inputs))
        else:
            await self.enter(record.step + 1, why)
