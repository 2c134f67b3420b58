"""Effects of a release record: models, routes, events, alerts, and the check that gateways follow.

Everything here is derived from the record and may be repeated: after a crash the same record gives the same
entries, the same desired state and the same message ids.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from onward.clock import utc_text
from onward.context import Context
from onward.contracts import canonical_json, subjects
from onward.contracts.buckets import Desired, DesiredArm, DesiredRoutes, GatewayReport
from onward.errors import BusError, ContractError
from onward.release import rollback
from onward.release.plan import State
from onward.release.record import Model, ReleaseRecord, Releases, alert
from onward.release.routes import DesiredWriter, GatewayCheck, Gateways, routes_for, single_arm
from onward.telemetry.crashpoints import crashpoint

REFUSED_SECONDS = 20.0
"""Seconds after a change of routes after which a model counts as one that gateways cannot load: they have
had time to fetch and try it."""
FOLLOW_SECONDS = 60.0
"""Seconds after a change of routes until an alert is raised if not every live gateway serves them."""


def models_of(record: ReleaseRecord) -> list[Model]:
    """Returns the entries of ``rl_models`` that follow from this record."""
    candidate = record.candidate
    if record.serving:
        return [candidate.model_copy(update={"state": "candidate"})]
    if record.state is State.PROMOTED:
        entries = [candidate.model_copy(update={"state": "current"})]
        if record.current.registered:
            entries.append(record.current.model_copy(update={"state": "previous"}))
        return entries
    if record.undone:
        return []
    if record.started_at is not None and record.state in (State.ROLLED_BACK, State.ABORTED):
        entries = [candidate.model_copy(update={"state": str(record.state)})]
        if record.kind == "rollback":
            entries.insert(0, record.current.model_copy(update={"state": "current"}))
        return entries
    return []


class Effects:
    """Carries out a record. One object per releaser; its state only avoids repeated work."""

    def __init__(self, ctx: Context, releases: Releases) -> None:
        self._ctx = ctx
        self._releases = releases
        self.desired = DesiredWriter(ctx.bus.bucket(Desired.BUCKET))
        self._gateways = Gateways(ctx.bus.bucket(GatewayReport.BUCKET), ctx.clock)
        self._told_dead: set[str] = set()
        self._wanted: DesiredRoutes | None = None
        self._changed_at = ctx.clock.monotonic()

    async def carry_out(self, record: ReleaseRecord, pinned: Model | None) -> ReleaseRecord:
        """Writes models, then routes (a gateway looks the model up), then sends the outbox.

        Returns the record to write next, with the routes noted and an empty outbox. Raises ConflictError if a
        newer releaser has written.
        """
        await self.desired.claim()
        for model in models_of(record):
            await self._releases.put_model(model, self.desired.claim)
        if record.state is State.PROMOTED or (record.kind == "rollback" and record.decision == "rolled_back"):
            await self._retire(record)
        wanted = single_arm(pinned, None) if pinned is not None else routes_for(record)
        revision = None if wanted is None else await self.set_routes(wanted)
        for item in record.outbox:
            await self._send(item)
        return record.model_copy(update={"desired_revision": revision, "outbox": []})

    async def set_routes(self, wanted: DesiredRoutes) -> int:
        revision = await self.desired.set(wanted)
        if wanted != self._wanted:
            self._show_traffic(wanted.arms, self._wanted.arms if self._wanted else ())
            self._wanted = wanted
            self._changed_at = self._ctx.clock.monotonic()
        return revision

    def seconds_since_change(self) -> float:
        """Seconds since the routes changed."""
        return self._ctx.clock.monotonic() - self._changed_at

    async def check_gateways(self, record: ReleaseRecord) -> GatewayCheck:
        """Returns which gateways serve the routes of ``record``. Raises one alert for each dead gateway."""
        if record.desired_revision is None:
            raise ContractError(
                "release_record", f"Release {record.release_id} has no revision of routes: abort it."
            )
        return await self.check_routes(record.desired_revision)

    async def check_routes(self, revision: int) -> GatewayCheck:
        """Returns which gateways serve ``revision`` of the routes that were set last. Raises one alert for
        each dead gateway."""
        arms = self._wanted.arms if self._wanted else ()
        found = await self._gateways.check(revision, arms)
        for name in sorted(found.dead - self._told_dead):
            await self._ctx.alerts.raise_(
                "gateway_dead",
                f"Gateway {name} has been silent for its whole lease: it counts as dead.",
                gateway=name,
            )
        self._told_dead = (self._told_dead | found.dead) - found.late - found.done
        return found

    def after_check(self, record: ReleaseRecord, found: GatewayCheck) -> ReleaseRecord:
        """Returns the record after a check of the gateways: verified, overdue with an alert, or unchanged."""
        now = self._ctx.clock.now()
        if found.verified:
            changes: dict[str, Any] = {"verified_revision": record.desired_revision}
            if record.closed:
                changes["settled"] = True
                if record.state is not State.PROMOTED and record.started_at is not None and not record.undone:
                    changes["verified_zero_at"] = utc_text(now)
            return record.model_copy(update=changes)
        late = self.seconds_since_change() > FOLLOW_SECONDS
        if record.overdue or not (late or rollback.over_budget(record, now)):
            return record
        told = alert(
            "routes_not_verified",
            f"Not every live gateway serves revision {record.desired_revision} after "
            f"{FOLLOW_SECONDS:.0f} s: {', '.join(sorted(found.late)) or 'no gateway is alive'}.",
            "critical",
            release_id=record.release_id,
            late=sorted(found.late),
            dead=sorted(found.dead),
            errors=found.refused,
        )
        return record.model_copy(update={"overdue": True, "outbox": record.outbox_with(told)})

    async def _retire(self, record: ReleaseRecord) -> None:
        """Retires older models, so that only one model is ``previous``."""
        keep = {record.current.model_id, record.candidate.model_id}
        for key in await self._releases.model_keys():
            model = await self._releases.model(key)
            if model and model.model_id not in keep and model.state in ("previous", "current"):
                retired = model.model_copy(update={"state": "retired"})
                await self._releases.put_model(retired, self.desired.claim)

    async def _send(self, item: dict[str, Any]) -> None:
        if item["type"] == "event":
            document = item["document"]
            crashpoint("release.event.before")
            await self._ctx.bus.publish(
                subjects.MODEL_DEPLOYED, canonical_json(document), msg_id=document["deployment_id"]
            )
            crashpoint("release.event.after")
            self._ctx.metrics.model_deployments.labels(status=document["metadata"]["event"]).inc()
        elif item["type"] == "report":
            await self._report(item["message"])
        else:
            await self._ctx.alerts.raise_(item["kind"], item["message"], item["severity"], **item["facts"])

    async def _report(self, message: str) -> None:
        """Reports to the superior agent. It may be lost, like an alert."""
        body = {"message": message, "timestamp": utc_text(self._ctx.clock.now())}
        with contextlib.suppress(BusError):
            await self._ctx.bus.notify(subjects.REPORT, canonical_json(body))

    def _show_traffic(self, arms: Iterable[DesiredArm], before: Iterable[DesiredArm]) -> None:
        gauge = self._ctx.metrics.model_traffic
        for arm in before:
            gauge.labels(model_version=arm.model_id).set(0)
        for arm in arms:
            gauge.labels(model_version=arm.model_id).set(100.0 * arm.weight)
