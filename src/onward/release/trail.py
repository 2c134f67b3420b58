"""Trail of who changed what serves, and when: the audit stream, and the decisions in the records of releases.

People are in the audit stream, which has their entry before the action. The releaser's own decisions are in
the records alone. Nothing is changed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import nats.errors
import nats.js.errors

from onward.bus import Bus
from onward.contracts import subjects
from onward.errors import BusError
from onward.release.plan import State
from onward.release.record import ReleaseRecord

STREAM = "RL_AUDIT"
RELEASER = "releaser"
"""Name of who decides by evidence and settings, without a person."""
_DECISIONS = {
    State.PROMOTED: "promoted",
    State.ROLLED_BACK: "rolled back",
    State.REJECTED: "rejected",
    State.ABORTED: "aborted",
    State.SHADOWED: "validated only",
    State.WAITING: "waits for approval",
}
_ABOUT = ("model_id", "writer", "taken_back", "restored", "release_id", "ab_id")
"""Facts of an entry that name what it is about."""
_OWN = ("event", "by", "answered_by", "key", "timestamp", "reason")


@dataclass(frozen=True)
class Action:
    """One action: who did what to what, when and why."""

    at: str
    by: str
    what: str
    about: str
    why: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def concerns(self, name: str) -> bool:
        """Returns whether ``name`` (a model or a release) is what it is about, or among its facts."""
        return name == self.about or name in self.facts.values()


async def entries(bus: Bus) -> list[dict[str, Any]]:
    """Returns the audit entries that can be read, oldest first. Raises BusError if the stream cannot be."""
    found: list[dict[str, Any]] = []
    position = 1
    while True:
        try:
            raw = await bus.js.get_msg(STREAM, seq=position, subject=subjects.AUDIT, next=True)
        except nats.js.errors.NotFoundError:
            return found
        except nats.errors.Error as error:
            raise BusError(
                f"The audit stream could not be read ({type(error).__name__}): is NATS up?"
            ) from None
        position = (raw.seq or position) + 1
        try:
            entry = json.loads(raw.data or b"")
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("event"), str):
            found.append(entry)


def trail(audited: Iterable[Mapping[str, Any]], records: Iterable[ReleaseRecord]) -> list[Action]:
    """Returns all actions, oldest first."""
    actions = [_of_entry(entry) for entry in audited]
    for record in records:
        actions += _of_record(record)
    return sorted(actions, key=lambda action: action.at)


def _of_entry(entry: Mapping[str, Any]) -> Action:
    """A name that was given with the action comes before the user of the process that carried it out. What a
    request of the admin API asked for is among its facts."""
    asked = entry.get("asked")
    if isinstance(asked, Mapping):
        entry = {**asked, **{name: value for name, value in entry.items() if name != "asked"}}
    by = entry.get("answered_by") or entry.get("key") or entry.get("by") or "unknown"
    about = next((str(entry[name]) for name in _ABOUT if entry.get(name)), "")
    facts = {name: value for name, value in entry.items() if name not in _OWN and value is not None}
    shown = (f"{name} {value}" for name, value in sorted(facts.items()) if str(value) != about)
    why = str(entry.get("reason") or "") or ", ".join(shown)
    return Action(str(entry.get("timestamp", "")), str(by), str(entry["event"]), about, why, facts)


def _of_record(record: ReleaseRecord) -> Iterator[Action]:
    facts = {"release_id": record.release_id, "job_id": record.job_id, "current": record.current.model_id}
    told: set[str] = set()
    for line in record.history:
        state = State(line["state"])
        what = "first traffic" if state in (State.RAMPING, State.BAKING) else _DECISIONS.get(state)
        if what is not None and what not in told:  # an approval is noted in the state of waiting
            told.add(what)
            name = record.candidate.model_id
            yield Action(str(line["at"]), RELEASER, what, name, str(line["why"]), facts)
