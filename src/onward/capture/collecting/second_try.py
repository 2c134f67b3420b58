"""Second try of held messages, and their removal by a person.

A held message is judged again by today's rules, its age as when it came, and then takes the way that the
collector would have sent it; one that the gateway recorded takes the gateway's, under the same message id.
Know before changing: it leaves the quarantine last, so a crash repeats a step instead of losing it; the
message id is made from id and content, or is the trajectory's, so a repeat is a duplicate.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import datetime

from onward.bus import Bus, Message
from onward.bus.deadletter import bury, fits
from onward.capture import claim_check
from onward.capture.collecting.collector import count_opted_out, republish
from onward.capture.collecting.quarantine import GATEWAY, Held, Quarantine
from onward.capture.collecting.verdict import ARRIVED, Fate, Item, Judge
from onward.capture.recorder.core import HEADERS
from onward.capture.recorder.intake import Intake
from onward.clock import Clock, utc_text
from onward.contracts import subjects
from onward.errors import ContractError, NotFoundError
from onward.telemetry import audit
from onward.telemetry.crashpoints import crashpoint


@dataclass(frozen=True)
class Retried:
    held_id: str
    fate: Fate
    """``store``: published clean. ``bury``: now a dead letter. ``drop``: opted out. ``hold``: still held."""
    reason: str = ""


async def retry(bus: Bus, quarantine: Quarantine, name: str, clock: Clock, judge: Judge) -> Retried:
    """Raises NotFoundError, ConfigError (its key is not here), TamperedError, BusError, ObjectError."""
    held, message = await quarantine.open(name)
    if held.source == GATEWAY:
        result = await _send_captured(bus, quarantine, held, message, clock, judge)
        if result.fate is not Fate.HOLD:
            await _settle(bus, quarantine, held, clock, result.fate)
        return result
    item = await asyncio.to_thread(judge.judge, message, clock.now())
    if item.fate is Fate.BURY and not fits(bus, item.body):
        return Retried(name, Fate.HOLD, f"{item.reason}, and too large for a dead letter")
    if item.fate is Fate.HOLD:
        return Retried(name, Fate.HOLD, item.reason)
    await _send(bus, quarantine, held, item, clock)
    await _settle(bus, quarantine, held, clock, item.fate)
    return Retried(name, item.fate, item.reason)


async def discard(bus: Bus, quarantine: Quarantine, name: str, clock: Clock) -> None:
    """Remove a held message for good; the audit stream has it first. Raises NotFoundError, BusError."""
    held = await quarantine.facts(name)
    await _audit(bus, clock, "quarantine.drop", held, "dropped")
    crashpoint("quarantine.audited")
    await quarantine.drop(name)


async def _settle(bus: Bus, quarantine: Quarantine, held: Held, clock: Clock, fate: Fate) -> None:
    crashpoint("quarantine.sent")
    await _audit(bus, clock, "quarantine.retry", held, str(fate))
    try:
        await quarantine.drop(held.held_id)
    except NotFoundError:
        pass  # somebody else retried it at the same time
    crashpoint("quarantine.dropped")


async def _send_captured(
    bus: Bus, quarantine: Quarantine, held: Held, message: Message, clock: Clock, judge: Judge
) -> Retried:
    """What the gateway recorded is prepared as the gateway does and published as it would have been."""
    document = json.loads(message.data)
    if judge.opt_out.matches_document(document):
        await count_opted_out(bus, [held.held_id])
        return Retried(held.held_id, Fate.DROP)
    intake = Intake(judge.redactor, has_store=True)
    try:
        body = await asyncio.to_thread(intake.prepare, document)
    except Exception as error:  # whatever it is, its text may repeat the document
        reason = error.reason if isinstance(error, ContractError) else "redaction"
        return Retried(held.held_id, Fate.HOLD, reason)
    await claim_check.publish(
        bus,
        quarantine.objects,
        clock.now(),
        body,
        subject=subjects.TRAJECTORY,
        msg_id=held.trajectory_id,
        headers={**HEADERS, ARRIVED: utc_text(datetime.fromisoformat(held.arrived))},
    )
    return Retried(held.held_id, Fate.STORE)


async def _send(bus: Bus, quarantine: Quarantine, held: Held, item: Item, clock: Clock) -> None:
    if item.fate is Fate.STORE:
        await republish(bus, item, quarantine.objects, clock.now())
    elif item.fate is Fate.BURY:
        await bury(bus, held.stream, claim_check.direct(item.message), item.reason, item.detail, item.body)
    else:
        await count_opted_out(bus, [held.sequence])


async def _audit(bus: Bus, clock: Clock, event: str, held: Held, result: str) -> None:
    await audit.record(
        bus, clock, event, held_id=held.held_id, reason=held.reason, size=held.size, result=result
    )
