"""Replay of a release: each decision recomputed from the outcomes that the stream still holds.

Invariants: the evidence is a function of the stored outcomes alone, so it must come out with the same bytes.
The first difference is named. A replay changes nothing and reads no clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from onward.errors import BusError
from onward.release import rollback
from onward.release.evidence.evidence import Evidence, digest_of
from onward.release.evidence.outcome_source import BATCH, OutcomeSource, Stored, apply_message
from onward.release.evidence.rates import ArmRates, rates_of
from onward.release.explaining.trace import Trace
from onward.release.plan import State
from onward.release.record import ReleaseRecord

EMPTY_READS = 3
"""Reads without a message after which the rest counts as gone: a broken reader is opened again before."""


@dataclass
class Decision:
    """One line of a release's history, with the evidence as it was then."""

    at: str
    state: str
    step: int
    why: str
    e_values: dict[str, float] = field(default_factory=dict)
    """Empty before the first traffic."""
    rates: dict[str, ArmRates] = field(default_factory=dict)
    same: bool | None = None
    """True if the evidence came out with the same bytes; None if the record has no mark to compare with."""


@dataclass
class Replay:
    """A replayed release. ``difference`` names the first difference; None if there is none."""

    decisions: list[Decision]
    trace: Trace = field(default_factory=Trace)
    outcomes: int = 0
    difference: str | None = None


async def replay(record: ReleaseRecord, outcomes: OutcomeSource) -> Replay:
    """Replays ``record``. Raises BusError if the stream no longer holds all of its outcomes."""
    found = Replay([_decision(line) for line in record.history])
    if record.evidence is None:
        return found
    evidence = _empty(record.evidence)
    marks = [(line.get("cursor"), line.get("evidence_sha256")) for line in record.history]
    number = 0

    def decide(until: int | None) -> None:
        """Fills in the decisions that were taken before message ``until``; None: all others."""
        nonlocal number
        while number < len(marks):
            cursor, digest = marks[number]
            if cursor is not None and until is not None and cursor >= until:
                return
            if cursor is not None:
                _fill(found, number, evidence, digest)
            number += 1

    def seen(stored: Stored) -> None:
        decide(stored.sequence)
        event = apply_message(stored, evidence)
        if event is not None and event.release_id == record.release_id:
            found.outcomes += 1
            found.trace.add(evidence, stored.stored_at, event.weight)

    await _read(outcomes, evidence, int(record.evidence["cursor"]), seen)
    decide(None)
    found.difference = found.difference or _compare(record, evidence)
    return found


def _decision(line: dict[str, Any]) -> Decision:
    return Decision(line["at"], line["state"], line["step"], line["why"])


def _empty(state: dict[str, Any]) -> Evidence:
    """Returns the evidence as it was at the first traffic."""
    stored = Evidence.from_state(state)
    return Evidence(stored.release_id, stored.rules, stored.start, stored.models)


async def _read(
    outcomes: OutcomeSource, evidence: Evidence, until: int, seen: Callable[[Stored], None]
) -> None:
    empty = 0
    while evidence.cursor < until:
        batch = [one for one in await outcomes.read(evidence.cursor, BATCH) if one.sequence <= until]
        empty = 0 if batch else empty + 1
        if batch and evidence.start and evidence.cursor == evidence.start:
            _refuse_gap(batch[0].sequence, evidence)
        if empty == EMPTY_READS:
            raise BusError(
                f"Stream RL_OUTCOMES ends at {evidence.cursor} and the release was judged up to {until}: "
                f"its outcomes are gone, so it cannot be replayed."
            )
        for stored in batch:
            seen(stored)


def _refuse_gap(first: int, evidence: Evidence) -> None:
    if first > evidence.start + 1:
        raise BusError(
            f"Stream RL_OUTCOMES begins at {first} and the release was judged from {evidence.start + 1} on: "
            f"its first outcomes are gone (they are kept for 30 days), so it cannot be replayed."
        )


def _fill(found: Replay, number: int, evidence: Evidence, digest: str | None) -> None:
    decision = found.decisions[number]
    decision.e_values, decision.rates = evidence.gates.e_values(), rates_of(evidence)
    if digest is None:
        return
    decision.same = digest_of(evidence.state()) == digest
    if not decision.same and found.difference is None:
        found.difference = (
            f"decision {number + 1} ({decision.state}, {decision.at}): the evidence at outcome "
            f"{evidence.cursor} has other bytes than the record's mark"
        )


def _compare(record: ReleaseRecord, evidence: Evidence) -> str | None:
    """Returns the first difference between what is stored and what was recomputed."""
    stored = record.evidence or {}
    recomputed = json.loads(json.dumps(evidence.state()))
    given = {name: value for name, value in stored.items() if name in recomputed}
    recomputed = {name: value for name, value in recomputed.items() if name in given}
    difference = first_difference(given, recomputed, "evidence")
    if difference is None and record.state is State.ROLLED_BACK and evidence.crossing is not None:
        code = rollback.reason_for(evidence.crossing["leading"])
        difference = first_difference(record.reason_code, code, "reason_code")
    if difference is None and record.rates:
        now = {arm: rates.model_dump() for arm, rates in rates_of(evidence).items()}
        then = {arm: rates.model_dump() for arm, rates in record.rates.items()}
        difference = first_difference(then, now, "rates")
    return difference


def first_difference(stored: Any, recomputed: Any, path: str) -> str | None:
    """Returns the first place where two JSON values differ, with both; None if they are equal."""
    if isinstance(stored, dict) and isinstance(recomputed, dict):
        for name in sorted(stored.keys() | recomputed.keys(), key=str):
            found = first_difference(stored.get(name), recomputed.get(name), f"{path}.{name}")
            if found is not None:
                return found
        return None
    if isinstance(stored, list) and isinstance(recomputed, list) and len(stored) == len(recomputed):
        for index, pair in enumerate(zip(stored, recomputed, strict=True)):
            found = first_difference(*pair, f"{path}[{index}]")
            if found is not None:
                return found
        return None
    if stored == recomputed:
        return None
    return f"{path}: the record has {_short(stored)}, the replay {_short(recomputed)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
