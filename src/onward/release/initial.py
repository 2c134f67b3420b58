"""Installs the first model at once, because there is no other model to compare it with.

At its first start the releaser installs the base model itself. A warm start may replace it as long as no
release has been decided on it.

Invariants: one fixed key stands for the first model and another for the model that replaces the base. So only
one of two processes that install at the same time can succeed.
"""

from __future__ import annotations

from typing import Any

from onward.clock import utc_text
from onward.context import Context
from onward.errors import ConflictError, EngineError, NotFoundError
from onward.ids import derived_id
from onward.release import events, plan, proposals
from onward.release.effects import Effects
from onward.release.plan import State
from onward.release.record import Model, ReleaseRecord, Releases
from onward.release.routes import endpoint_of
from onward.release.validation.comparison import Suite
from onward.telemetry import logs

log = logs.get("releaser")

FIRST = derived_id("release", "the first model")
INSTEAD = derived_id("release", "the first model", "instead of the base")
SETTLE_SECONDS = 60.0
"""Seconds that a warm start waits for a base model whose installation is still under way."""


async def install_base(ctx: Context, releases: Releases, suite: Suite) -> bool:
    """Installs the base model if nothing was ever installed, so that its work can be learned from. Returns
    whether a first model is now installed; False while no engine reports which base model it serves."""
    if await releases.current() is not None:
        return True
    try:
        await install_initial(ctx, None, "", base_digest=await suite.base_digest())
    except EngineError:
        return False
    except ConflictError:
        log.info("another first model was installed meanwhile")
    return True


async def install_initial(
    ctx: Context,
    adapter_digest: str | None,
    object_prefix: str,
    *,
    base_digest: str | None = None,
    training_job_id: str | None = None,
    training_samples: int | None = None,
    final_reward: float | None = None,
) -> str:
    """Makes the checkpoint at ``object_prefix`` the current model and returns its id (number 0).

    ``adapter_digest`` None means the base model alone, under its own name; ``base_digest`` is then the digest
    that its engine reports. Repeatable with the same digest. Raises ConflictError if another model serves
    already, unless that is the base model and nothing was released since.
    """
    releases = Releases(ctx.bus, ctx.clock)
    serving = await releases.current()
    if serving is not None and serving.adapter_digest == adapter_digest:
        return serving.model_id
    if adapter_digest is None:
        candidate = proposals.base_model(ctx.settings).model_copy(update={"base_digest": base_digest})
    else:
        candidate = Model(
            model_id=plan.first_model_id(ctx.settings.model.id_pattern),
            adapter_digest=adapter_digest,
            object_prefix=object_prefix,
            training_job_id=training_job_id or derived_id("initial", adapter_digest),
            info={"training_samples": training_samples or None, "final_reward": final_reward},
        )
    place, current = FIRST, proposals.base_model(ctx.settings)
    found = await releases.get(FIRST)
    if adapter_digest is not None and found is not None and found[0].candidate.adapter_digest is None:
        place, current = INSTEAD, await _untouched_base(ctx, releases)
    try:
        await _carry_out(ctx, releases, _record(ctx, place, candidate, current))
    except _TakenError as taken:
        if place == FIRST and adapter_digest is not None and taken.adapter_digest is None:
            return await install_initial(
                ctx,
                adapter_digest,
                object_prefix,
                training_job_id=training_job_id,
                training_samples=training_samples,
                final_reward=final_reward,
            )  # the base model was installed a moment earlier: replace it
        raise
    return candidate.model_id


class _TakenError(ConflictError):
    """Another model is already the first one."""

    def __init__(self, other: Model) -> None:
        super().__init__(
            f"{other.model_id} serves already: another model comes in by a release, not as the first one."
        )
        self.adapter_digest = other.adapter_digest


async def _carry_out(ctx: Context, releases: Releases, record: ReleaseRecord) -> None:
    """Creates the record, or continues the same one after a crash, and applies it."""
    found = await releases.get(record.release_id)
    try:
        found = found or (record, await releases.create(record))
    except ConflictError:
        found = await releases.get(record.release_id)
    if found is None or found[0].candidate.adapter_digest != record.candidate.adapter_digest:
        raise _TakenError(found[0].candidate if found else record.candidate)
    try:
        done = await Effects(ctx, releases).carry_out(found[0], None)
        await releases.write(done, found[1])
    except ConflictError:
        log.info("the releaser carries out the first model already")


async def _untouched_base(ctx: Context, releases: Releases) -> Model:
    """Returns the installed base model once it is settled. Raises ConflictError after a later release. A
    restart carries out an unsettled record again, so nothing may replace the base model earlier."""
    until = ctx.clock.monotonic() + SETTLE_SECONDS
    while True:
        found = await releases.get(FIRST)
        if found is None:
            raise NotFoundError("The record of the first release is gone: restart 'onward up'.")
        base = found[0].candidate
        others = [r for r in await releases.all() if r.release_id not in (FIRST, INSTEAD)]
        if others:
            raise _TakenError(await releases.current() or base)
        if found[0].settled:
            return base
        if ctx.clock.monotonic() > until:
            raise ConflictError(
                f"{base.model_id} was installed and no gateway serves it yet: start one, then try again."
            )
        await ctx.clock.sleep(0.1)


def _record(ctx: Context, place: str, candidate: Model, current: Model) -> ReleaseRecord:
    now = utc_text(ctx.clock.now())
    why: dict[str, Any] = {"at": now, "state": "promoted", "step": 0, "why": "the first model"}
    record = ReleaseRecord(
        release_id=place,
        job_id=candidate.training_job_id,
        epoch=0,
        state=State.PROMOTED,
        created_at=now,
        updated_at=now,
        candidate=candidate,
        current=current,
        started_at=now,
        closed_at=now,
        decision="promoted",
        reason="the first model",
        history=[why],
    )
    document = events.installed(record, ctx.settings, endpoint_of(ctx), ctx.clock.now())
    return record.model_copy(update={"outbox": [events.outbox_item(document)]})
