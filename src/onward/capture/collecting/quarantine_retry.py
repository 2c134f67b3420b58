"""Retries held messages, and removes them on request.

A held message is judged again by the present rules, with its age at arrival, and then continues as the
collector would have sent it. One that the gateway recorded is published as the gateway does, under the same
message id.

Invariants: the message is deleted from the quarantine last, so a crash repeats a step and loses nothing. The
message id is derived from id and content, or is the trajectory's, so a repeat is a duplicate.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import datetime

from onward.bus import Bus, Message
from onward.bus.deadletter import fits_dead_letter, store_dead_letter
from onward.capture import claim_check
from onward.capture.collecting.collector import count_opted_out, republish
from onward.capture.collecting.inspection import ARRIVED, Fate, Inspector, Item
from onward.capture.collecting.quarantine import GATEWAY, HeldMessage, Quarantine
from onward.capture.recorder.core import HEADERS
from onward.capture.recorder.preparation import Preparer
from onward.capture.retrying import reason_of
from onward.clock import Clock, utc_text
from onward.contracts import subjects
from onward.errors import NotFoundError
from onward.telemetry import audit
from onward.telemetry.crashpoints import crashpoint


@dataclass(frozen=True)
class RetryResult:
    held_id: str
    fate: Fate
    """``store``: published clean. ``dead_letter``: now one. ``drop``: opted out. ``hold``: still held."""
    reason: str = ""


async def retry(
    bus: Bus, quarantine: Quarantine, name: str, clock: Clock, inspector: Inspector
) -> RetryResult:
    """Retries one held message. Raises NotFoundError, ConfigError (its key is missing), TamperedError,
    BusError, ObjectError."""
    held, message = await quarantine.open(name)
    if held.source == GATEWAY:
        result = await _send_trajectory(bus, quarantine, held, message, clock, inspector)
        if result.fate is not Fate.HOLD:
            await _settle(bus, quarantine, held, clock, result.fate)
        return result
    item = await asyncio.to_thread(inspector.inspect, message, clock.now())
    if item.fate is Fate.DEAD_LETTER and not fits_dead_letter(bus, item.body):
        return RetryResult(name, Fate.HOLD, f"{item.reason}, and too large for a dead letter")
    if item.fate is Fate.HOLD:
        return RetryResult(name, Fate.HOLD, item.reason)
    await _send(bus, quarantine, held, item, clock)
    await _settle(bus, quarantine, held, clock, item.fate)
    return RetryResult(name, item.fate, item.reason)


async def discard(bus: Bus, quarantine: Quarantine, name: str, clock: Clock) -> None:
    """Deletes a held message for good, after a record in the audit stream. Raises NotFoundError, BusError."""
    held = await quarantine.facts(name)
    await _audit(bus, clock, "quarantine.drop", held, "dropped")
    crashpoint("quarantine.audited")
    await quarantine.drop(name)


async def _settle(bus: Bus, quarantine: Quarantine, held: HeldMessage, clock: Clock, fate: Fate) -> None:
    crashpoint("quarantine.sent")
    await _audit(bus, clock, "quarantine.retry", held, str(fate))
    try:
        await quarantine.drop(held.held_id)
    except NotFoundError:
        pass  # another process retried it at the same time
    crashpoint("quarantine.dropped")


async def _send_trajectory(
    bus: Bus, quarantine: Quarantine, held: HeldMessage, message: Message, clock: Clock, inspector: Inspector
) -> RetryResult:
    """Prepares and publishes a trajectory that the gateway recorded, in the same way as the gateway."""
    document = json.loads(message.data)
    if inspector.opt_out.matches_document(document):
        await count_opted_out(bus, [held.held_id])
        return RetryResult(held.held_id, Fate.DROP)
    preparer = Preparer(inspector.redactor, has_store=True)
    try:
        body = await asyncio.to_thread(preparer.prepare, document)
    except Exception as error:  # any error: its text may repeat the document
        return RetryResult(held.held_id, Fate.HOLD, reason_of(error))
    await claim_check.publish(
        bus,
        quarantine.objects,
        clock.now(),
        body,
        subject=subjects.TRAJECTORY,
        msg_id=held.trajectory_id,
        headers={**HEADERS, ARRIVED: utc_text(datetime.fromisoformat(held.arrived))},
    )
    return RetryResult(held.held_id, Fate.STORE)


async def _send(bus: Bus, quarantine: Quarantine, held: HeldMessage, item: Item, clock: Clock) -> None:
    if item.fate is Fate.STORE:
        await republish(bus, item, quarantine.objects, clock.now())
    elif item.fate is Fate.DEAD_LETTER:
        await store_dead_letter(
            bus, held.stream, claim_check.without_claim(item.message), item.reason, item.detail, item.body
        )
    else:
        await count_opted_out(bus, [held.sequence])


async def _audit(bus: Bus, clock: Clock, event: str, held: HeldMessage, result: str) -> None:
    await audit.record(
        bus, clock, event, held_id=held.held_id, reason=held.reason, size=held.size, result=result
    )
