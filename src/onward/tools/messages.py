"""Tools on the bus: read messages for a while, publish one.

A message that the gates of a release read (rewards, outcomes, deployments) is written by one role alone; a
tool that could write it could release its own model.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from onward.bus import Bus
from onward.clock import SystemClock
from onward.contracts import Feedback, Trajectory, canonical_json, encode, subjects, to_document, validate
from onward.contracts.base import Part
from onward.errors import ConfigError, ConflictError, RedactionError
from onward.ids import new_id
from onward.tools.arguments import PublishNats, SubscribeNats
from onward.tools.results import NOTE, cleaned
from onward.tools.toolbox import Toolbox
from onward.training import intake
from onward.training.role.job_table import type_of

READABLE = (
    subjects.TRAJECTORY,
    subjects.REWARD,
    subjects.FEEDBACK,
    subjects.TRAINING_REQUEST,
    subjects.TRAINING_STATUS,
    subjects.TRAINING_CONTROL,
    subjects.TRAINING_RUBRICS,
    subjects.MODEL_DEPLOYED,
    subjects.OUTCOME,
    subjects.ALERT,
    subjects.REPORT,
)
"""Subjects that a tool may read. Dead letters and the audit are for people."""
STORED: dict[str, tuple[type[Part], str]] = {
    subjects.TRAJECTORY: (Trajectory, "trajectory_id"),
    subjects.FEEDBACK: (Feedback, "feedback_id"),
}
_BY_ONE_ROLE = {
    topic.subject: topic.publishers[0]
    for topic in subjects.TOPICS
    if not {"agent", "operator"}.intersection(topic.publishers)
}
REQUESTER = "agent-tools"
_MOST, _LEAST = 3000, 50
"""Bytes of all messages in an answer, and of each where there are many."""
_TAKEN = 8 << 20
"""Bytes of messages after which listening ends: little of them can be shown."""


async def subscribe_nats(box: Toolbox, arguments: SubscribeNats) -> dict[str, Any]:
    """Collects the messages that arrive from now on, up to a number and a time."""
    if arguments.subject not in READABLE:
        raise ConfigError(
            f"{arguments.subject[:80]!r} is not read by tools: give one of {', '.join(READABLE)}."
        )
    found: list[bytes] = []
    async with box.service.bus() as bus:
        await _collect(bus, arguments, found)
    share = max(_LEAST, _MOST // max(1, len(found)))
    return {
        "subject": arguments.subject,
        "note": NOTE,
        "ended_by": _end_of(arguments, found),
        "messages": await asyncio.to_thread(_readable, box, found, share),
    }


async def _collect(bus: Bus, arguments: SubscribeNats, found: list[bytes]) -> None:
    group = arguments.queue_group or ""
    subscription = await bus.nc.subscribe(arguments.subject, queue=group, pending_bytes_limit=_TAKEN)
    try:
        async with asyncio.timeout(arguments.timeout_seconds):
            while len(found) < arguments.count and sum(map(len, found)) < _TAKEN:
                found.append((await subscription.next_msg(timeout=None)).data)
    except TimeoutError:
        pass
    finally:
        await subscription.unsubscribe()


def _end_of(arguments: SubscribeNats, found: list[bytes]) -> str:
    if len(found) >= arguments.count:
        return "count"
    return "size" if sum(map(len, found)) >= _TAKEN else "timeout_seconds"


def _readable(box: Toolbox, found: list[bytes], most: int) -> list[dict[str, Any]]:
    """Returns messages as they are shown."""
    shown: list[dict[str, Any]] = []
    for data in found:
        try:
            shown.append({"untrusted": cleaned(json.loads(data), box.redactor, most)})
        except (ValueError, RecursionError, RedactionError):
            shown.append({"untrusted": {"not_json": f"{len(data)} bytes that are no JSON"}})
    return shown


async def publish_nats(box: Toolbox, arguments: PublishNats) -> dict[str, Any]:
    """Checks, redacts and publishes one message."""
    subject = arguments.subject
    if not arguments.schema_validate:
        raise ConfigError("schema_validate is false: a message is never sent unchecked, so leave it true.")
    if subject in _BY_ONE_ROLE:
        raise ConflictError(
            f"{subject} is published by the {_BY_ONE_ROLE[subject]} alone, since releases are decided by it: "
            f"publish a trajectory or feedback instead, and look at compute_reward for a score."
        )
    if subject in intake.SUBJECTS.values():
        return await request_training(box, subject, arguments.payload)
    if subject not in STORED:
        known = (*STORED, *intake.SUBJECTS.values())
        raise ConfigError(f"{subject[:80]!r} is no subject for tools: give one of {', '.join(known)}.")
    kind, name = STORED[subject]
    document = to_document(validate(arguments.payload, kind))
    redact = box.redactor.trajectory if kind is Trajectory else box.redactor.document
    found = await asyncio.to_thread(redact, document)
    message = validate(json.loads(canonical_json(found.document)), kind)
    message_id = getattr(message, name)
    async with box.service.bus() as bus:
        await bus.publish(subject, encode(message), msg_id=f"{message_id}:{new_id()[:8]}")
    return {"published": True, "subject": subject, name: message_id, "replaced": found.counts}


async def request_training(box: Toolbox, subject: str, document: dict[str, Any]) -> dict[str, Any]:
    """Sends a request for a job over the bus, and returns the job as soon as the trainer has taken it."""
    clean = box.redactor.document(document).document
    if intake.SUBJECTS[type_of(clean)] != subject:
        raise ConfigError(
            f"The payload is no request of {subject}: a control job has 'environment' at the top level, a "
            f"rubrics job has kind 'rubrics', and any other job has 'training_config'."
        )
    async with box.service.bus() as bus:
        done = await intake.submit(bus, SystemClock(), clean, requester=REQUESTER)
    record = done.taken()
    if record is None:
        return {
            "job_id": done.request.training_job_id,
            "state": "queued",
            "note": intake.WAITS,
        }
    return {
        "job_id": record.job_id,
        "number": record.number,
        "state": record.state,
        "next": f"call job_status with job_id {record.job_id}",
    }
