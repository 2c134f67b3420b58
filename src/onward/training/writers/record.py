"""The record of rubric writers: versions, and the pointer to the released one.

Invariants: the pointer is changed by compare-and-set alone, in one write for each release, promotion and
rollback. Whatever dies before that write leaves the writer that was released. The audit entry comes first.
"""

from __future__ import annotations

import contextlib
from typing import Any

from onward.bus import Bus, Stored, read_all, read_stored
from onward.clock import Clock, utc_text
from onward.contracts.buckets import MOST_CHANGES, ReleasedWriter, WriterChange, WriterVersion
from onward.errors import ConflictError, NotFoundError
from onward.spelling import closest_name
from onward.telemetry import audit
from onward.telemetry.crashpoints import crashpoint


class Writers:
    """Reads and changes the record."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus, self._clock = bus, clock
        self._bucket = bus.bucket(ReleasedWriter.BUCKET)

    async def all(self) -> list[WriterVersion]:
        """Returns every version that can be read, oldest first."""
        found = [stored.document for stored in await read_all(self._bucket, WriterVersion)]
        return sorted((one for one in found if one is not None), key=lambda one: one.number)

    async def released(self) -> ReleasedWriter | None:
        """Returns the pointer; None if no writer is released."""
        return (await self._pointer()).document

    async def version(self, name: str) -> WriterVersion:
        """Returns a version. Raises NotFoundError, with the name that may be meant."""
        known = {one.version: one for one in await self.all()}
        if name not in known:
            near = closest_name(name, known)
            hint = f"did you mean {near}?" if near else "'onward rubrics releases' lists them."
            raise NotFoundError(f"There is no rubric writer {name!r}: {hint}")
        return known[name]

    async def record(self, job_id: str, **facts: Any) -> WriterVersion:
        """Records the writer of a job, and returns its version. ``facts`` are fields of WriterVersion.

        A job has one version: a later attempt replaces the facts of an earlier one, unless that one was
        released before its job could end.
        """
        while True:
            stored = await read_all(self._bucket, WriterVersion)
            known = [one.document for one in stored if one.document is not None]
            pointer = await self.released()
            before = next((one for one in known if one.job_id == job_id), None)
            if before is not None and pointer is not None and state_of(before, pointer) in WAS_RELEASED:
                return before
            number = before.number if before is not None else _next_number(stored)
            made = WriterVersion(
                version=f"{WriterVersion.NAME}{number}",
                number=number,
                job_id=job_id,
                made_at=utc_text(self._clock.now()),
                **facts,
            )
            with contextlib.suppress(ConflictError):  # another trainer took the number, or this job's record
                if before is None:
                    await self._bucket.create(made.own_key(), made.dump())
                else:
                    read = next(one.revision for one in stored if one.key == made.own_key())
                    await self._bucket.update(made.own_key(), made.dump(), read)
                crashpoint("writers.recorded")
                return made

    async def release(
        self, version: WriterVersion, *, kind: str, expected: str | None, by: str, why: str
    ) -> ReleasedWriter:
        """Makes ``version`` the released writer. ``expected``: the version that is released now. Raises
        ConflictError if another one is, by now."""
        stored = await self._pointer()
        now = stored.document
        present = None if now is None else now.version
        if kind == BY_JOB and not stored.readable:
            raise ConflictError(
                "What is released cannot be read, so that no job changes it: see 'onward buckets show "
                "rl_writers released', and promote a version with 'onward rubrics promote'."
            )
        if present == version.version and now is not None:
            return now
        if present != expected:
            raise ConflictError(
                f"Another rubric writer was released meanwhile ({present}): look at 'onward rubrics "
                f"releases', and run the command again."
            )
        back = [] if now is None else [*now.back, now.version]
        back = [name for name in back if name != version.version]
        return await self._point(stored, version, kind, back, by, why)

    async def target_of_rollback(self) -> tuple[ReleasedWriter, WriterVersion]:
        """Returns the pointer, and the version that was released before. Raises NotFoundError if no writer
        is released, ConflictError if none was before it."""
        now = await self.released()
        if now is None:
            raise NotFoundError("No rubric writer is released, so there is nothing to roll back.")
        if not now.back:
            raise ConflictError(
                f"{now.version} is the first released rubric writer, and there is none to go back to: "
                f"promote another version with 'onward rubrics promote'."
            )
        return now, await self.version(now.back[-1])

    async def roll_back(self, expected: str, to: WriterVersion, *, by: str, why: str) -> ReleasedWriter:
        """Makes ``to``, the version before, the released writer again. Raises ConflictError if ``expected``
        is not released any more."""
        stored = await self._pointer()
        now = stored.document
        if now is None or now.version != expected or now.back[-1:] != [to.version]:
            raise ConflictError("The released rubric writer was changed meanwhile: run the command again.")
        return await self._point(stored, to, "rolled back", now.back[:-1], by, why)

    async def _pointer(self) -> Stored[ReleasedWriter]:
        return await read_stored(self._bucket, ReleasedWriter)

    async def _point(
        self, stored: Stored[ReleasedWriter], to: WriterVersion, kind: Any, back: list[str], by: str, why: str
    ) -> ReleasedWriter:
        now = stored.document
        before = None if now is None else now.version
        change = WriterChange(
            at=utc_text(self._clock.now()), kind=kind, version=to.version, before=before, by=by, why=why
        )
        pointer = ReleasedWriter(
            version=to.version,
            digest=to.digest,
            object_prefix=to.object_prefix,
            manifest_sha256=to.manifest_sha256,
            back=back[-MOST_CHANGES:],
            changes=[*([] if now is None else now.changes), change][-MOST_CHANGES:],
        )
        await audit.record(
            self._bus, self._clock, f"writer.{kind.replace(' ', '_')}", writer=to.version, before=before,
            digest=to.digest, reason=why, answered_by=by,
        )  # fmt: skip
        crashpoint("writers.audited")
        if stored.revision:
            await self._bucket.update(stored.key, pointer.dump(), stored.revision)
        else:
            await self._bucket.create(stored.key, pointer.dump())
        return pointer


BY_JOB = "released"
"""Kind of a change by the validation of a job."""
RELEASED, BEFORE, ROLLED_BACK = "released", "released before", "rolled back"
PASSED, NOT_PASSED = "passed", "not passed"
WAS_RELEASED = (RELEASED, BEFORE, ROLLED_BACK)


def _next_number(stored: list[Stored[WriterVersion]]) -> int:
    """Returns the number after the highest one, that of versions which cannot be read included."""
    names = [one.key.removeprefix(WriterVersion.KEY + WriterVersion.NAME) for one in stored]
    return max((int(name) for name in names if name.isdecimal()), default=0) + 1


def state_of(version: WriterVersion, pointer: ReleasedWriter | None) -> str:
    """Returns what became of a version, by the newest change of the pointer that names it."""
    name = version.version
    if pointer is not None:
        if pointer.version == name:
            return RELEASED
        last = next((one for one in reversed(pointer.changes) if name in (one.version, one.before)), None)
        if last is not None:
            return ROLLED_BACK if last.kind == "rolled back" and last.before == name else BEFORE
    return PASSED if version.passed else NOT_PASSED
