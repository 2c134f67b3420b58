"""The first model: put in place at once, because there is nothing to compare it with."""

from __future__ import annotations

from onward.clock import utc_text
from onward.context import Context
from onward.errors import ConflictError
from onward.ids import derived_id
from onward.release import events, intake, plan
from onward.release.effects import Effects
from onward.release.plan import State
from onward.release.record import Model, ReleaseRecord, Releases, release_id
from onward.release.routes import endpoint_of
from onward.telemetry import logs

log = logs.get("releaser")


async def install_initial(
    ctx: Context,
    adapter_digest: str | None,
    object_prefix: str,
    *,
    training_job_id: str | None = None,
    training_samples: int | None = None,
    final_reward: float | None = None,
) -> str:
    """Make the checkpoint at ``object_prefix`` the current model; return its id (number 0).

    Repeatable with the same digest. Raises ConflictError when another model serves already.
    """
    releases = Releases(ctx.bus.bucket("rl_releases"), ctx.bus.bucket("rl_models"), ctx.clock)
    serving = await releases.current()
    if serving is not None:
        if serving.adapter_digest == adapter_digest:
            return serving.model_id
        raise ConflictError(
            f"{serving.model_id} serves already: another model comes in by a release, not as the first one."
        )
    job_id = training_job_id or derived_id("initial", adapter_digest or "base")
    candidate = Model(
        model_id=plan.first_model_id(ctx.settings.model.id_pattern),
        adapter_digest=adapter_digest,
        object_prefix=object_prefix,
        training_job_id=job_id,
        info={"training_samples": training_samples or None, "final_reward": final_reward},
    )
    now = utc_text(ctx.clock.now())
    record = ReleaseRecord(
        release_id=release_id(job_id, 0),
        job_id=job_id,
        epoch=0,
        state=State.PROMOTED,
        created_at=now,
        updated_at=now,
        candidate=candidate,
        current=intake.base_model(ctx.settings),
        started_at=now,
        closed_at=now,
        decision="promoted",
        reason="the first model",
        history=[{"at": now, "state": "promoted", "step": 0, "why": "the first model"}],
    )
    document = events.installed(record, ctx.settings, endpoint_of(ctx), ctx.clock.now())
    record = record.model_copy(update={"outbox": [events.announced(document)]})
    try:
        found = await releases.get(record.release_id)
        if found is None:
            found = (record, await releases.create(record))
        done = await Effects(ctx, releases).carry_out(found[0], None)
        await releases.write(done, found[1])
    except ConflictError:
        log.info("the releaser carries out the first model already")
    return candidate.model_id
