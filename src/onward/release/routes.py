"""Desired routes and the gateways' reports: ``desired`` in ``rl_releases`` against ``rl_gateways.*``.

Invariants: a change of routes counts only when every live gateway reports it, not when it was written. A
gateway counts as dead only after it has been silent for its whole lease. By then it serves the current model
by itself (it fails closed).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from onward.bus import Bucket, Stored, read_all, read_stored
from onward.clock import Clock
from onward.context import Context
from onward.contracts.buckets import (
    GATEWAY_LEASE_SECONDS,
    Desired,
    DesiredArm,
    DesiredRoutes,
    GatewayReport,
    PreviousModel,
)
from onward.errors import ConflictError
from onward.release.plan import State
from onward.release.record import Model, ReleaseRecord
from onward.telemetry.crashpoints import crashpoint


def endpoint_of(ctx: Context) -> str:
    """Returns the URL of the gateway: as bound, else as configured."""
    http = ctx.settings.http
    base = ctx.endpoints.get("gateway_url") or f"http://{http.host}:{http.gateway_port}"
    return f"{base.rstrip('/')}/v1"


def arm(name: str, model: Model, weight: float) -> DesiredArm:
    return DesiredArm(
        arm=name,
        model_id=model.model_id,
        adapter_digest=model.adapter_digest,
        model_digest=model.model_digest,
        weight=round(weight, 9),
    )


def single_arm(model: Model, previous: Model | None) -> DesiredRoutes:
    """Returns routes with all traffic on one model and no release under way."""
    arms = [arm("current", model, 1.0)]
    return DesiredRoutes(release_id=None, step=0, arms=arms, previous=_previous(previous))


def routes_for(record: ReleaseRecord) -> DesiredRoutes | None:
    """Returns the desired state for a release, without its revision; None if the release needs no routes."""
    if record.serving:
        share = record.schedule.steps[record.step].share
        return DesiredRoutes(
            release_id=record.release_id,
            step=record.step,
            arms=[arm("current", record.current, 1.0 - share), arm("candidate", record.candidate, share)],
            previous=_previous(record.current),
        )
    if record.state is State.PROMOTED:
        return single_arm(record.candidate, record.current)
    if record.state is State.RESTORING:
        return single_arm(record.current, None)
    if record.undone and record.started_at is not None:
        return single_arm(record.candidate, record.current if record.current.state == "previous" else None)
    if record.closed and record.started_at is not None:
        return single_arm(record.current, None)
    return None


def _previous(model: Model | None) -> PreviousModel | None:
    if model is None:
        return None
    return PreviousModel(model_id=model.model_id, adapter_digest=model.adapter_digest)


class DesiredWriter:
    """The writer of ``desired``. Its ``revision`` identifies the routes and rises with each change of them.

    Its ``epoch`` is the lease epoch of the releaser that wrote last. A releaser that lost its lease unnoticed
    is refused as soon as the next releaser has written.
    """

    def __init__(self, releases: Bucket) -> None:
        self._bucket = releases
        self.epoch = 0
        """Epoch of this writer's lease; 0 without a lease (a first model that is installed by hand)."""

    async def read(self) -> Stored[Desired]:
        return await read_stored(self._bucket, Desired)

    async def claim(self) -> None:
        """Writes this epoch to the unchanged routes. Raises ConflictError if a newer releaser has written."""
        stored = await self.read()
        now = stored.document
        if now is not None and (self._fenced(now) < self.epoch or not stored.readable):
            claimed = now.model_copy(update={"epoch": self.epoch})
            await self._bucket.update(Desired.KEY, claimed.dump(), stored.revision)

    async def set(self, wanted: DesiredRoutes) -> int:
        """Makes ``wanted`` the desired state and returns its revision. An unchanged state is not written.
        Raises ConflictError if a releaser with a higher epoch has written."""
        stored = await self.read()
        now = stored.document
        desired = Desired(**dict(wanted), revision=1, epoch=self.epoch)
        if stored.revision == 0:
            crashpoint("release.desired.before")
            await self._bucket.create(Desired.KEY, desired.dump())
            crashpoint("release.desired.after")
            return 1
        if now is None:
            revision = stored.revision  # above the revision of all earlier routes: each was one write
        else:
            desired = desired.with_unknown_fields(now)
            epoch = self._fenced(now)
            same = now == desired.model_copy(update={"revision": now.revision, "epoch": now.epoch})
            if same and epoch == self.epoch and stored.readable:
                return now.revision
            revision = now.revision if same else now.revision + 1
        crashpoint("release.desired.before")
        changed = desired.model_copy(update={"revision": revision})
        await self._bucket.update(Desired.KEY, changed.dump(), stored.revision)
        crashpoint("release.desired.after")
        return revision

    def _fenced(self, now: Desired) -> int:
        """Returns the epoch of ``now``. Raises ConflictError if it is newer than this one."""
        epoch = now.epoch or 0
        if epoch > self.epoch:
            raise ConflictError(
                f"A releaser with epoch {epoch} writes the routes: this one has {self.epoch} and must stop."
            )
        return epoch


def shares(arms: Iterable[DesiredArm]) -> dict[str, tuple[str, str | None, float]]:
    """Arm → (model id, adapter digest, weight). Routes with equal values are the same for a session."""
    return {arm.arm: (arm.model_id, arm.adapter_digest, arm.weight) for arm in arms}


@dataclass(frozen=True)
class GatewayCheck:
    """State of the gateways for a revision: ``done``, ``late`` (alive, still on other routes), ``dead``."""

    done: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    """Gateway → why it does not serve the candidate's adapter."""

    @property
    def verified(self) -> bool:
        """True if at least one gateway is alive and all live ones serve the revision."""
        return bool(self.done) and not self.late


class Gateways:
    """Reads ``rl_gateways``. A gateway is alive while its record keeps changing.

    Only this process's monotonic clock decides. A gateway whose own clock is wrong, or whose record is seen
    for the first time, is alive until its record has not changed for a whole lease.
    """

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket = bucket
        self._clock = clock
        self._moved: dict[str, tuple[int, float]] = {}

    async def check(self, wanted_revision: int, arms: Iterable[DesiredArm]) -> GatewayCheck:
        """Compares every gateway with ``wanted_revision``, with its ``arms`` (model, adapter and share of
        each), and with the adapters that it must have loaded for them."""
        found = GatewayCheck()
        wanted = shares(arms)
        digests = {digest for _, digest, _ in wanted.values() if digest is not None}
        now = self._clock.monotonic()
        for entry in await read_all(self._bucket, GatewayReport):
            key, report = entry.key, entry.document or GatewayReport()
            if self._moved.get(key, (-1, 0.0))[0] != entry.revision:
                self._moved[key] = (entry.revision, now)
            if (
                report.revision >= wanted_revision
                and shares(report.arms) == wanted
                and digests <= set(report.served)
            ):
                found.done.add(key)
            elif now - self._moved[key][1] > GATEWAY_LEASE_SECONDS:
                found.dead.add(key)
            else:
                found.late.add(key)
                if report.error:
                    found.refused[key] = str(report.error)
        return found
