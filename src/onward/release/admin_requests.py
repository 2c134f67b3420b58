"""Requests of the gateway's admin API, carried out by the releaser: register a model, change its traffic.

The gateway stores a request and waits; it decides nothing. Each request is answered once, in its own
document. A change of traffic is a command, a release or a return to an earlier model: the same requests that
the command line makes, audited before they are made.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from onward.bus import Stored, read_all
from onward.bus.cancellation import until_cancelled
from onward.bus.leases import Lease
from onward.context import Context
from onward.contracts.buckets import SHARE, AdminRequest, AdminResult, ReleaseCommand
from onward.errors import BusError, ConfigError, ConflictError, ContractError, NotFoundError, OnwardError
from onward.moments import parse_time
from onward.release.adding import add_adapter, request_release
from onward.release.commands import refuse_if_busy
from onward.release.overriding import is_open_to
from onward.release.plan import State
from onward.release.record import Model, ReleaseRecord, Releases
from onward.release.restore import request_restore
from onward.release.routes import routes_for
from onward.telemetry import audit, logs
from onward.training.checkpoints import ADAPTER_FILES, MANIFEST, SIGNATURE
from onward.warehouse.objects import check_key

log = logs.get("releaser")

POLL_SECONDS = 0.3
OBEY_SECONDS = 8.0
"""Longest wait for the releaser to obey a command. The gateway waits longer for its answer."""
KEEP = timedelta(minutes=10)
"""Age at which a request is deleted whose gateway never came back for the answer."""
_STATUS: tuple[tuple[type[OnwardError], int], ...] = (
    (ContractError, 400),
    (ConfigError, 400),
    (NotFoundError, 404),
    (ConflictError, 409),
)


async def work(ctx: Context, lease: Lease) -> None:
    """Answers requests while ``lease`` is held, until cancelled."""
    requests = AdminRequests(ctx)
    for _ in until_cancelled():
        try:
            if lease.held:
                await requests.answer_all()
        except (BusError, ConflictError) as error:
            log.warning("admin requests are answered later", cause=str(error))
        await ctx.clock.sleep(POLL_SECONDS)


class AdminRequests:
    """Answers the requests that are stored."""

    def __init__(self, ctx: Context) -> None:
        bus = ctx.bus
        self._ctx = ctx
        self._bucket = bus.bucket(AdminRequest.BUCKET)
        self._releases = Releases(bus, ctx.clock)

    async def answer_all(self) -> None:
        """Answers each request that waits, and deletes the answers that no gateway read. Raises BusError."""
        for stored in await read_all(self._bucket, AdminRequest):
            asked = stored.document
            if asked is None or not stored.readable:
                continue
            age = self._ctx.clock.now() - parse_time(asked.asked_at, "asked_at", self._ctx.clock)
            if age > KEEP:
                await self._bucket.delete(stored.key)
            elif asked.result is None:
                await self._answer(asked, stored)

    async def _answer(self, asked: AdminRequest, stored: Stored[AdminRequest]) -> None:
        try:
            result = await (self._register(asked) if asked.kind == "register" else self._traffic(asked))
        except BusError:
            raise
        except OnwardError as error:
            status = next((code for kind, code in _STATUS if isinstance(error, kind)), 503)
            result = AdminResult(status=status, document={"message": str(error)})
        except Exception as error:  # else the same request would stop the releaser again after its restart
            log.error("an admin request stopped on a defect", kind=asked.kind, exc_info=error)
            words = f"The request stopped on a defect ({type(error).__name__}): the releaser's log has more."
            result = AdminResult(status=500, document={"message": words})
        done = asked.model_copy(update={"result": result})
        await self._bucket.update(stored.key, done.dump(), stored.revision)

    async def _register(self, asked: AdminRequest) -> AdminResult:
        """Stores the adapter at ``checkpoint_path`` under ``model_id``, as ``onward models add`` does."""
        ctx, body = self._ctx, asked.body
        settings = ctx.settings
        base = body.get("base_model")
        if base not in (None, settings.model.base, Path(settings.model.base).name):
            raise ConfigError(
                f"base_model is {str(base)[:80]!r}, but this installation serves {settings.model.base!r}: "
                f"register an adapter of that one, or set model.base."
            )
        stores = (settings.objects_at, (settings.data_dir / "objects").resolve().as_uri())
        prefix = confined_key(str(body["checkpoint_path"]), stores[: 1 if settings.objects.models_url else 2])
        with tempfile.TemporaryDirectory(prefix="onward-admin-") as scratch:
            folder = Path(scratch) / "checkpoint"
            folder.mkdir()
            for name in ADAPTER_FILES:
                await ctx.objects.get_file(f"{prefix}/{name}", folder / name)
            for name in (MANIFEST, SIGNATURE):
                if await ctx.objects.exists(f"{prefix}/{name}"):
                    await ctx.objects.get_file(f"{prefix}/{name}", folder / name)
            await self._audit(asked, result="asked")
            model = await add_adapter(
                ctx.bus, ctx.objects, settings, folder, str(body["model_id"]), clock=ctx.clock
            )
        return AdminResult(
            status=201,
            document={
                "model_id": model.model_id,
                "base_model": settings.model.base,
                "checkpoint_path": body["checkpoint_path"],
                "adapter_digest": model.adapter_digest,
                "state": model.state,
                "traffic_percentage": 0.0,
            },
        )

    async def _traffic(self, asked: AdminRequest) -> AdminResult:
        """Decides what a share means now, and has it done. Raises ConflictError if it means nothing."""
        name, percentage = str(asked.body["model_id"]), float(asked.body["traffic_percentage"])
        records = await self._releases.all()
        record = next((one for one in records if not one.closed), None)
        if record is not None:
            return await self._during(record, asked, name, percentage)
        serving = await self._releases.current()
        if serving is not None and serving.model_id == name:
            if percentage == 100.0:
                return AdminResult(status=200, document=_shown(name, 100.0))
            raise ConflictError(
                f"{name} serves alone, so there is no other model to give {100 - percentage:g} % to: name "
                f"the model that shall get traffic."
            )
        model = await self._releases.model(name)
        if model is None:
            raise NotFoundError(f"There is no model {name[:80]!r}: POST /admin/models registers one.")
        return await self._without_release(model, asked, percentage, records)

    async def _without_release(
        self, model: Model, asked: AdminRequest, percentage: float, records: list[ReleaseRecord]
    ) -> AdminResult:
        """Goes back to a model that served, or asks for the release of one that never did."""
        ctx, name = self._ctx, model.model_id
        if percentage == 0.0:
            return AdminResult(status=200, document=_shown(name, 0.0))
        if model.state in ("added", "candidate"):
            await refuse_if_busy(ctx.bus, records, "ask again")
            await self._audit(asked, result="release asked")
            needs = f"{asked.by} asked for a person's approval" if _wants_approval(asked) else None
            record = await request_release(ctx.bus, name, clock=ctx.clock, needs_approval=needs)
            note = "It is validated first, and the ramp decides its share: ask again while it ramps."
            return AdminResult(
                status=202, document=_shown(name, 0.0, record, state=str(record.state), note=note)
            )
        if percentage != 100.0:
            raise ConflictError(
                f"{name} is {model.state} and no release is under way, so {percentage:g} % cannot be given "
                f"to it: ask for 100 to go back to it."
            )
        if _wants_approval(asked):
            raise ConflictError(
                f"{name} served before: going back to it is a rollback ('onward models rollback {name}')."
            )
        await self._audit(asked, result="return asked")
        record = await request_restore(ctx.bus, name, f"PUT /admin/traffic by {asked.by}", clock=ctx.clock)
        done = await self._until(record.release_id, lambda now: now.closed or now.state is State.RESTORING)
        return AdminResult(status=202, document=_shown(name, 100.0, done, state=str(done.state)))

    async def _during(
        self, record: ReleaseRecord, asked: AdminRequest, name: str, percentage: float
    ) -> AdminResult:
        """Overrides the ramp of the release under way."""
        wanted = _candidates_percentage(record, name, percentage)
        if not record.serving and name == record.current.model_id and wanted == 0.0:
            return AdminResult(status=200, document=self._now(record, name))  # it has all traffic already
        if wanted == 0.0:
            command = ReleaseCommand(command="abort")
        elif _wants_approval(asked):
            raise ConflictError(
                f"Release {record.release_id} of {record.candidate.model_id} is {record.state}: only a "
                f"person gives it more traffic ('onward releases')."
            )
        elif not record.serving:
            raise ConflictError(
                f"Release {record.release_id} of {record.candidate.model_id} is {record.state}: it has no "
                f"traffic to change yet, ask again while it ramps."
            )
        elif not is_open_to(record):
            if wanted == 100.0:
                return AdminResult(status=200, document=self._now(record, name))
            raise ConflictError(
                f"{record.candidate.model_id} has all traffic but its comparison: give it 100 or 0."
            )
        elif wanted / 100.0 >= record.schedule.steps[record.schedule.bake].share:
            command = ReleaseCommand(command="promote")
        else:
            command = ReleaseCommand(command=SHARE, share=wanted / 100.0)
        command = command.model_copy(update={"release_id": record.release_id, "by": asked.by})
        await self._audit(asked, result=command.command, release_id=record.release_id)
        revision = await self._ctx.bus.bucket(command.BUCKET).put(command.KEY, command.dump())
        done = await self._until(
            record.release_id,
            lambda now: now.command_revision >= revision and now.desired_revision is not None,
        )
        return AdminResult(status=200, document=self._now(done, name))

    async def _until(self, release_id: str, reached: Any) -> ReleaseRecord:
        """Returns the record once ``reached`` holds. Raises ConflictError after OBEY_SECONDS."""
        clock = self._ctx.clock
        until = clock.monotonic() + OBEY_SECONDS
        while clock.monotonic() < until:
            found = await self._releases.get(release_id)
            if found is not None and reached(found[0]):
                return found[0]
            await clock.sleep(POLL_SECONDS / 3)
        raise ConflictError(
            f"The releaser has not carried this out within {OBEY_SECONDS:g} s: 'onward releases show "
            f"{release_id}' shows what comes of it."
        )

    def _now(self, record: ReleaseRecord, name: str) -> dict[str, Any]:
        routes = routes_for(record)
        arms = routes.arms if routes is not None else []
        share = sum(arm.weight for arm in arms if arm.model_id == name)
        if not arms and name == record.current.model_id:  # a release that never had traffic
            share = 1.0
        return _shown(name, round(100.0 * share, 6), record, state=str(record.state))

    async def _audit(self, asked: AdminRequest, **facts: Any) -> None:
        await audit.record(
            self._ctx.bus, self._ctx.clock, f"admin.{asked.kind}", key=asked.by, asked=asked.body, **facts
        )


def _wants_approval(asked: AdminRequest) -> bool:
    """Returns whether what gives a model traffic must wait for a person: an agent's tools ask for that."""
    return bool(asked.body.get("require_approval"))


def confined_key(path: str, stores: Sequence[str]) -> str:
    """Returns the key of ``path`` in the object store, whose address is any of ``stores``. Raises ConfigError
    for a path outside of it, and ObjectError for one that could lead out of it."""
    roots = [store.rstrip("/") + "/" for store in stores]
    root = next((root for root in roots if path.startswith(root)), None)
    if root is None:
        raise ConfigError(
            f"checkpoint_path is {path[:120]!r}: expected a folder in the store of models, {roots[0]}, so "
            f"copy the checkpoint there first."
        )
    return check_key(path.removeprefix(root).strip("/"))


def _candidates_percentage(record: ReleaseRecord, name: str, percentage: float) -> float:
    """Returns the candidate's percentage that follows from the one of model ``name``. Raises ConflictError
    for a model that is not part of the release."""
    if name == record.candidate.model_id and record.kind == "candidate":
        return percentage
    if name == record.current.model_id and record.kind == "candidate":
        return 100.0 - percentage
    raise ConflictError(
        f"Release {record.release_id} of {record.candidate.model_id} is {record.state} beside "
        f"{record.current.model_id}: {name[:80]!r} cannot get traffic before it has ended."
    )


def _shown(name: str, percentage: float, record: ReleaseRecord | None = None, **more: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {"model_id": name, "traffic_percentage": percentage, **more}
    if record is not None:
        shown["release_id"] = record.release_id
    return shown
