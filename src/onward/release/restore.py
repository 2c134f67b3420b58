"""Returning to a model that had all traffic before: an operator's decision after a promotion.

The request is a record of its own among the releases. The releaser carries it out like any other: model
entries, routes, event, verification by the gateways. In it ``candidate`` is the model that is rolled back and
``current`` is the model that is restored.

Invariants: the releaser decides by the model that serves when it takes up the record. The operator who made
the request saw an older state. Model entries and the event follow only after every live gateway serves the
restored model, or after 20 s all that can; if one reports that it cannot load it, only the routes have to be
set back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.bus import Bus
from onward.clock import Clock
from onward.errors import ConflictError, EngineError, NotFoundError, ObjectError, TamperedError
from onward.release import events
from onward.release.commands import refuse_if_busy, requested_record
from onward.release.moves import MoveInputs
from onward.release.plan import State
from onward.release.record import Model, ReleaseRecord, Releases, alert
from onward.telemetry import audit, logs

if TYPE_CHECKING:
    from onward.release.validation.comparison import Suite

log = logs.get("releaser")

REASON = "operator_request"
"""``metadata.reason`` of the event. The operator's words are stored beside it."""


async def request_restore(bus: Bus, model_id: str | None, why: str, *, clock: Clock) -> ReleaseRecord:
    """Requests a return to ``model_id`` (None: the model before). Returns the record of this request.

    The request goes to the audit stream first. Raises NotFoundError for a model that never had all traffic,
    and ConflictError while something else decides which model serves.
    """
    releases = Releases(bus, clock)
    records = await releases.all()
    await refuse_if_busy(bus, records, "go back")
    serving = await releases.current()
    if serving is None:
        raise NotFoundError("No model was released yet, so there is none to go back to.")
    target = await _target(releases, records, serving, model_id)
    record = await requested_record(
        bus, clock, f"goes back to {target.model_id}: {why}",
        job_id=serving.training_job_id, epoch=0, kind="rollback",
        candidate=serving, current=target, asked_why=why,
    )  # fmt: skip
    await audit.record(
        bus,
        clock,
        "models.rollback",
        taken_back=serving.model_id,
        restored=target.model_id,
        reason=why,
        release_id=record.release_id,
        result="asked",
    )
    await releases.create(record)
    return record


async def _target(
    releases: Releases, records: list[ReleaseRecord], serving: Model, model_id: str | None
) -> Model:
    served = {record.candidate.model_id for record in records if record.state is State.PROMOTED}
    served.discard(serving.model_id)
    if model_id is None:
        found = await _before(releases, serving, served)
        if found is None and not served:
            raise NotFoundError(f"No model but {serving.model_id} ever served: there is none to go back to.")
        if found is None:
            raise NotFoundError(
                f"There is no model before {serving.model_id}: name one of {_named(served)} "
                f"('onward models list' shows them)."
            )
        return found
    if model_id == serving.model_id:
        raise ConflictError(f"{model_id} serves already: there is nothing to go back to.")
    found = await releases.model(model_id) if model_id in served else None
    if found is None:
        raise NotFoundError(
            f"{model_id!r} never served everybody, so it cannot be gone back to: expected {_named(served)}."
        )
    return found


async def _before(releases: Releases, serving: Model, served: set[str]) -> Model | None:
    """Returns the nearest ancestor that was not rolled back itself; else the entry in state ``previous``."""
    seen, name = {serving.model_id}, serving.parent
    while name is not None and name not in seen:
        seen.add(name)
        model = await releases.model(name)
        if model is None:
            break
        if name in served and model.state != "rolled_back":
            return model
        name = model.parent
    for key in await releases.model_keys():
        model = await releases.model(key)
        if model is not None and model.state == "previous":
            return model
    return None


def _named(served: set[str]) -> str:
    return ", ".join(sorted(served)) or "none, since no other one ever did"


async def _why_unusable(model: Model, suite: Suite) -> str | None:
    """Returns why no gateway could load ``model``; None if one could, or if that is unknown."""
    try:
        await suite.check_stored(model.adapter_digest, model.object_prefix, model.manifest_sha256)
    except (NotFoundError, TamperedError) as error:
        return str(error)
    except (EngineError, ObjectError) as error:
        log.warning("the model's files were not checked", model_id=model.model_id, error=str(error))
    return None


async def restore_or_reject(
    record: ReleaseRecord, serving: Model, suite: Suite, inputs: MoveInputs
) -> ReleaseRecord:
    """Starts to restore the model, unless the model to roll back no longer serves, or the restored one cannot
    be loaded."""
    taken, restored = record.candidate.model_id, record.current.model_id
    if serving.model_id != taken:
        words, code = f"{taken} was to be taken back, but {serving.model_id} serves now", "stale_start"
    elif (unusable := await _why_unusable(record.current, suite)) is not None:
        words, code = f"{restored} cannot be loaded: {unusable.rstrip('.')}", "not_loadable"
    else:
        words = f"waiting until a gateway serves {restored}"
        return record.moved(State.RESTORING, inputs.text, words, started_at=inputs.text)
    closed = record.close(State.REJECTED, inputs.text, words, code=code)
    told = alert("rollback_refused", f"Nothing was changed: {words}.", release_id=record.release_id)
    return closed.with_outbox(told)


def finish(record: ReleaseRecord, inputs: MoveInputs) -> ReleaseRecord:
    """Completes the rollback once gateways serve the restored model (``Releaser._carry_out``)."""
    taken, restored = record.candidate.model_id, record.current.model_id
    words = f"{record.asked_by} asked for it: {record.asked_why}"
    closed = record.close(State.ROLLED_BACK, inputs.text, words, code=REASON, overdue=record.overdue)
    event = events.restored(
        closed, inputs.settings, inputs.endpoint, inputs.at, event="rollback", reason=REASON
    )
    told = alert(
        "rolled_back",
        f"{record.asked_by} took model {taken} back to {restored}: {record.asked_why}",
        release_id=record.release_id,
        reason=REASON,
    )
    return closed.with_outbox(events.outbox_item(event), told)
