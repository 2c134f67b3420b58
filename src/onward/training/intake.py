"""The way of a training request from a program or a person to the trainer.

What the envelope lacks is filled in; the request is checked as a message's is, published, and then awaited in
the job table, whose record decides: the trainer alone writes it.

Invariants: the same id and the same words are one job, however often they come, and whatever was filled in.
An id with other words is a conflict.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import nats.errors
import nats.js.errors

from onward.bus import Bus
from onward.clock import Clock, utc_text
from onward.contracts import TrainingRequest, TrainingStatus, decode_document, encode, subjects, to_document
from onward.contracts.codec import canonical_json, validate
from onward.contracts.training import ControlRequest, RubricsRequest
from onward.errors import (
    BusError,
    ConflictError,
    ContractError,
    MissingExtraError,
    NotServedError,
    OnwardError,
)
from onward.ids import check_id, new_id
from onward.training.job import rubrics
from onward.training.role.job_table import JobRecord, JobRequest, JobTable, type_of
from onward.training.spec import request

TAKEN_SECONDS = 5.0
"""Time in which a trainer that runs has recorded a request."""
LOOK_SECONDS = 0.05
WAITS = "The request is stored; no trainer has taken it yet."
_NO_TRAINER = "No trainer runs: start one ('onward run trainer', or 'onward up')."
_ENVELOPE = ("timestamp", "requester", "trigger_reason")
SUBJECTS: dict[type[JobRequest], str] = {
    TrainingRequest: subjects.TRAINING_REQUEST,
    ControlRequest: subjects.TRAINING_CONTROL,
    RubricsRequest: subjects.TRAINING_RUBRICS,
}
"""Kind of a request → its subject."""


@dataclass(frozen=True)
class Submitted:
    """A request that is stored for good. ``record`` is None while no trainer has taken it."""

    request: JobRequest
    record: JobRecord | None
    created: bool

    def taken(self) -> JobRecord | None:
        """Returns the job's record, None while no trainer has taken it. Raises OnwardError for a job that
        failed at once because it cannot run here."""
        record = self.record
        if record is not None and record.state == "failed" and not record.attempt and record.error:
            raise OnwardError(f"Job {record.job_id} failed at once. {record.error.message}")
        return record

    def waiting(self, advice: str = "") -> TrainingStatus:
        """Returns the status of a request that no trainer has taken yet. ``advice``: what to do about it."""
        asked, note = self.request, f"{WAITS} {advice}".strip()
        return TrainingStatus.model_validate(
            {
                "training_job_id": asked.training_job_id,
                "timestamp": to_document(asked)["timestamp"],
                "status": "queued",
                "metadata": {"note": note},
            }
        )


def filled(document: dict[str, Any], requester: str, now: str, job_id: str | None = None) -> dict[str, Any]:
    """Returns ``document`` as a whole request: what it lacks of the envelope is added.

    ``kind`` "rubrics" is a rubrics job, ``environment`` at the top level a control job. Any other document
    with ``algorithm`` there is a training configuration alone. Raises ContractError for an id that cannot be
    one.
    """
    document = _with_configuration(document)
    given = document.get("training_job_id", job_id)
    envelope = {"timestamp": now, "requester": requester}
    if type_of(document) is TrainingRequest:
        envelope["trigger_reason"] = "manual"
    whole = {**envelope, **document}
    whole["training_job_id"] = check_id(given, "Job id") if isinstance(given, str) else given or new_id()
    return whole


def _with_configuration(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a training configuration alone as part of a request, and a request as it is."""
    if type_of(document) is TrainingRequest and "training_config" not in document and "algorithm" in document:
        return {"training_config": document}
    return document


async def submit(
    bus: Bus, clock: Clock, document: dict[str, Any], *, requester: str, job_id: str | None = None
) -> Submitted:
    """Publishes a request and waits until the trainer recorded it, a few seconds at most. ``job_id``: for a
    document without one.

    Raises ContractError for a request that no trainer would record, TrainingError("DATA") for a rubrics job
    whose settings cannot be, ConflictError for an id that belongs to another request, BusError.
    """
    asked = checked(filled(document, requester, utc_text(clock.now()), job_id))
    if isinstance(asked, RubricsRequest):
        with suppress(MissingExtraError):  # the trainer decides; a thread, since some settings load torch
            await asyncio.to_thread(rubrics.refuse_wrong_settings, asked)
    table = JobTable(bus.bucket("rl_jobs"), clock)
    known = await find(table, asked.training_job_id)
    if known is not None:
        return _same(known, document, asked)
    words = hashlib.sha256(canonical_json(document)).hexdigest()[:16]
    await bus.publish(
        SUBJECTS[type(asked)], encode(asked), msg_id=f"{asked.training_job_id}:{words}"
    )  # the same words again are dropped by the stream
    known = await _taken(table, clock, asked.training_job_id)
    return Submitted(asked, None, True) if known is None else _same(known, document, asked)


async def submit_again(bus: Bus, clock: Clock, job_id: str, new_id: str) -> Submitted:
    """Publishes the request of a job that failed or was cancelled, as that of job ``new_id``, and waits like
    ``submit``. Raises IllegalTransitionError for a job in another state, ContractError, BusError."""
    table = JobTable(bus.bucket("rl_jobs"), clock)
    asked = await table.request_again(job_id, new_id)
    if isinstance(asked, TrainingRequest):
        request.refuse_operators_rights(asked)
    await bus.publish(SUBJECTS[type(asked)], encode(asked), msg_id=f"{new_id}:again")
    return Submitted(asked, await _taken(table, clock, new_id), True)


async def advice_for_waiting(bus: Bus, job_id: str) -> str:
    """Returns what to do about a request that waits: to start a trainer where none runs, nothing where one
    does, or where that is not known."""
    try:
        await bus.request(subjects.TRAINING_STATUS_REQUEST, canonical_json({"job_id": job_id}))
    except NotServedError:
        return _NO_TRAINER
    except BusError:
        return ""
    return ""


async def is_newest(bus: Bus, job_id: str) -> bool:
    """Returns whether a stored request of any kind, the newest of its kind, is that of job ``job_id``. Raises
    BusError."""
    for subject in SUBJECTS.values():
        try:
            raw = await bus.js.get_last_msg("RL_TRAINING", subject)
            document = decode_document(raw.data or b"")
        except (nats.js.errors.NotFoundError, ContractError):
            continue
        except nats.errors.Error as error:
            raise BusError(f"The requests could not be read ({type(error).__name__}).") from None
        if isinstance(document, dict) and document.get("training_job_id") == job_id:
            return True
    return False


async def _taken(table: JobTable, clock: Clock, job_id: str) -> JobRecord | None:
    """Waits until a trainer has recorded a job. Returns None after a few seconds without one."""
    until = clock.monotonic() + TAKEN_SECONDS
    while clock.monotonic() < until:
        known = await find(table, job_id)
        if known is not None and known.number:  # else its record is being made
            return known
        await clock.sleep(LOOK_SECONDS)
    return None


def checked(whole: dict[str, Any]) -> JobRequest:
    """Returns a whole request as a message. Raises ContractError for one that no trainer would record."""
    asked = validate(whole, type_of(whole))
    if isinstance(asked, TrainingRequest):
        request.refuse_operators_rights(asked)
    return asked


async def find(table: JobTable, job_id: str) -> JobRecord | None:
    """Returns a job, or None if there is none. Raises ContractError for one that cannot be read."""
    try:
        return (await table.get(job_id))[0]
    except ContractError as error:
        if error.reason != "unknown_job":
            raise
    return None


def _same(record: JobRecord, document: dict[str, Any], asked: JobRequest) -> Submitted:
    """Returns the job of a request that came before. Raises ConflictError for a request with other words."""
    envelope = {name: record.request[name] for name in _ENVELOPE if name in record.request}
    whole = {**envelope, **_with_configuration(document), "training_job_id": record.job_id}
    kind = type(asked)
    other = kind is not type_of(record.request)
    if other or hashlib.sha256(encode(validate(whole, kind))).hexdigest() != record.request_sha256:
        raise ConflictError(
            f"Job id {record.job_id} belongs to a different request: send a new id, or leave it out."
        )
    return Submitted(asked, record, encode(asked) == encode(validate(record.request, kind)))
