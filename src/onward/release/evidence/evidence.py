"""Evidence: outcome events of one release, in stream order, prepared for the gates.

The state holds the stream cursor; the releaser stores both in one compare-and-set record. Events that would
void the gates' guarantee are stopped here: repeats, several outcomes of one session,
outcomes of one arm that arrive later than the other's.

Invariants: everything here is a function of the events alone (their order, their own times), never of the
clock. So a replay from the stream gives the same state bit for bit.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from onward.config import ReleaseSettings
from onward.contracts import SessionOutcome, canonical_json, decode
from onward.errors import ContractError
from onward.release.evidence.gates import Gates
from onward.release.evidence.threshold import ThresholdRule

Gate = Literal["error", "reward", "feedback"]
GATES: tuple[Gate, ...] = ("error", "reward", "feedback")
ARMS = ("current", "candidate")

FEEDBACK_FACTOR = 7.5
"""Feedback matures after this many reward windows: 15 minutes at the default of 2."""
MIN_UNITS = 5
"""Minimum judged candidate sessions for a crossing to count: a guard against hidden correlation."""
MAX_SEEN = 12_000
"""Remembered session ids per gate. Above it, outcomes of the oldest minutes are refused. Both limits keep
the release record below 1 MiB, the default maximum message size of a NATS server."""
MAX_PENDING = 4_000
MAX_FAILURES = 500
_MINUTE = 60_000
JUMP = _MINUTE
"""Milliseconds by which the server's stamps may fall behind the newest one before the clock counts as set
back. Less than that is disorder between servers."""


@dataclass(frozen=True)
class Event:
    """One outcome event. Times are milliseconds since the epoch; ``at`` is never after its arrival, and
    ``stored_at`` is its arrival by the server's clock."""

    sequence: int
    session_id: str
    release_id: str
    candidate: bool
    weight: float
    assigned_at: int
    at: int
    kind: str
    value: float
    model_id: str
    stored_at: int | None = None
    failure: dict[str, Any] | None = None
    """Facts about a failed session, for the incident: error, context_tokens, domain, tool."""


def parse(sequence: int, data: bytes, stored_at_ms: int | None = None) -> Event:
    """Reads one message of RL_OUTCOMES. Raises ContractError. ``stored_at_ms`` is the server's time of the
    message: a gateway whose clock runs ahead must not make other sessions mature early."""
    outcome = decode(data, SessionOutcome)
    at = round(outcome.timestamp.timestamp() * 1000)
    if stored_at_ms is not None:
        at = min(at, stored_at_ms)
    if not 0.0 < outcome.weight <= 1.0:
        raise ContractError("schema", f"An outcome has weight {outcome.weight}: expected above 0, at most 1.")
    return Event(
        sequence=sequence,
        session_id=outcome.session_id,
        release_id=outcome.release_id or "",
        candidate=outcome.arm == "candidate",
        weight=float(outcome.weight),
        assigned_at=min(at, round(outcome.assigned_at.timestamp() * 1000)),
        at=at,
        kind=outcome.kind,
        value=float(outcome.value),
        model_id=outcome.model_id or "",
        stored_at=stored_at_ms,
        failure=_failure(outcome) if outcome.kind in ("error", "lost") else None,
    )


def _failure(outcome: SessionOutcome) -> dict[str, Any]:
    return {
        "arm": outcome.arm,
        "error": "lost" if outcome.kind == "lost" else outcome.error,
        "context_tokens": outcome.context_tokens,
        "domain": outcome.domain,
        "tool": outcome.tool,
    }


@dataclass(frozen=True)
class GateRules:
    """Rules by which a release is judged; fixed when it starts. Times are milliseconds."""

    alpha: float
    ceiling: float
    margin: float
    maturity: dict[str, int]
    horizon: int
    """Outcomes of sessions assigned longer ago than this are discarded, on either arm."""
    threshold_ms: int = 0
    """Milliseconds between two checks of the threshold rule; 0: the E-values decide."""
    consecutive: int = 1

    @classmethod
    def from_settings(cls, settings: ReleaseSettings) -> GateRules:
        reward = settings.reward_maturity_seconds * 1000
        maturity = {
            "error": round(settings.error_maturity_seconds * 1000),
            "reward": round(reward),
            "feedback": round(reward * FEEDBACK_FACTOR),
        }
        return cls(
            alpha=settings.alpha,
            ceiling=settings.error_ceiling,
            margin=settings.reward_margin,
            maturity=maturity,
            threshold_ms=round(settings.threshold_minutes * 60_000) if settings.gates == "threshold" else 0,
            consecutive=settings.consecutive,
            horizon=2 * (round(settings.lost_after_seconds * 1000) + max(maturity.values())),
        )


def digest_of(state: dict[str, Any]) -> str:
    """Returns the SHA-256 of an evidence state in its canonical form."""
    return hashlib.sha256(canonical_json(state)).hexdigest()


class _Cohort:
    """Sessions of one gate: waiting to mature, or judged already (by a short hash)."""

    def __init__(self) -> None:
        self.pending: dict[str, list[Any]] = {}
        """short id → [assigned_at, candidate, weight, value, kind]"""
        self.order: list[tuple[int, str]] = []
        self.seen: dict[int, set[str]] = {}
        """Minute of assignment → short ids."""
        self.seen_count = 0
        self._texts: dict[int, str] = {}
        self.floor = 0
        self.frontier: list[int | None] = [None, None]
        """Time of the newest assignment with an outcome, per arm (for feedback: with any outcome)."""

    def advance_frontier(self, candidate: bool, assigned_at: int) -> None:
        newest = self.frontier[candidate]
        self.frontier[candidate] = assigned_at if newest is None else max(newest, assigned_at)

    def is_judged(self, key: str) -> bool:
        """Returns whether a session was judged. After a jump of a clock it may have been assigned in another
        minute by its next event, so all minutes are searched."""
        return any(key in keys for keys in self.seen.values())

    def mark_judged(self, key: str, assigned_at: int) -> None:
        minute = assigned_at // _MINUTE
        self.seen.setdefault(minute, set()).add(key)
        self.seen_count += 1
        self._texts.pop(minute, None)

    def await_maturity(self, key: str, unit: list[Any]) -> None:
        self.pending[key] = unit
        heapq.heappush(self.order, (unit[0], key))

    def pop_matured(self, maturity: int, watermark: int) -> tuple[str, list[Any]] | None:
        """Removes and returns the oldest unit if it has matured and both arms have newer ones; else None."""
        current, candidate = self.frontier
        if not self.order or current is None or candidate is None:
            return None
        assigned_at, key = self.order[0]
        if assigned_at + maturity > watermark or assigned_at > min(current, candidate):
            return None
        heapq.heappop(self.order)
        return key, self.pending.pop(key)

    def prune(self, oldest: int) -> int:
        """Closes minutes before ``oldest`` ms or beyond the limits. Returns the number of discarded units."""
        self.floor = max(self.floor, oldest)
        while self.seen:
            minute = min(self.seen)
            if (minute + 1) * _MINUTE > self.floor and self.seen_count <= MAX_SEEN:
                break
            self.seen_count -= len(self.seen.pop(minute))
            self._texts.pop(minute, None)
            self.floor = max(self.floor, (minute + 1) * _MINUTE)
        dropped = 0
        while len(self.order) > MAX_PENDING:
            assigned_at, key = heapq.heappop(self.order)
            del self.pending[key]
            self.mark_judged(key, assigned_at)
            dropped += 1
        return dropped

    def _text(self, minute: int) -> str:
        """Returns the ids of a minute in one string. Only minutes that changed are joined again."""
        if minute not in self._texts:
            self._texts[minute] = "".join(sorted(self.seen[minute]))
        return self._texts[minute]

    def state(self) -> dict[str, Any]:
        return {
            "pending": {key: self.pending[key] for _, key in sorted(self.order)},
            "seen": {str(minute): self._text(minute) for minute in sorted(self.seen)},
            "floor": self.floor,
            "frontier": list(self.frontier),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> _Cohort:
        cohort = cls()
        cohort.pending = {key: list(unit) for key, unit in state["pending"].items()}
        cohort.order = sorted((unit[0], key) for key, unit in cohort.pending.items())
        for minute, text in state["seen"].items():
            cohort.seen[int(minute)] = {text[i : i + _SHORT] for i in range(0, len(text), _SHORT)}
        cohort.seen_count = sum(len(keys) for keys in cohort.seen.values())
        cohort.floor = state["floor"]
        cohort.frontier = list(state["frontier"])
        return cohort


_SHORT = 8


def _short(session_id: str) -> str:
    """Returns 48 bits of a session id: among 12,000 remembered ids a false repeat has odds of 1 in 4·10⁶."""
    digest = hashlib.blake2b(session_id.encode(), digest_size=6).digest()
    return base64.urlsafe_b64encode(digest).decode()


def _tally() -> dict[str, float]:
    counts = dict.fromkeys(("judged", "failed", "lost", "rewarded"), 0)
    return {**counts, "reward_sum": 0.0, "feedback": 0, "negative": 0}


class Evidence:
    """Evidence about one release from the events so far. It is changed only by ``apply`` and ``skip``."""

    def __init__(
        self, release_id: str, rules: GateRules, cursor: int = 0, models: tuple[str, str] | None = None
    ) -> None:
        """``cursor``: the stream sequence before the first event that may count. ``models``: the ids of
        (current, candidate); an outcome that names the other arm's model is a mismatch and is ignored."""
        self.release_id = release_id
        self.rules = rules
        self.models = models
        self.start = self.cursor = cursor
        """``start``: where a replay begins."""
        self.watermark = 0
        """Newest event time of this release in ms: the clock for all maturity."""
        self.offset = 0
        """Milliseconds added to all stamps, so that a jump of the server's clock is no time that passed."""
        self.arrived = 0
        """Arrival of the newest event, with ``offset``."""
        self.gates = Gates(ceiling=rules.ceiling, margin=rules.margin)
        self.cohorts: dict[str, _Cohort] = {name: _Cohort() for name in GATES}
        self.arms: dict[str, dict[str, float]] = {arm: _tally() for arm in ARMS}
        self.ignored: dict[str, int] = {}
        self.crossing: dict[str, Any] | None = None
        self.failures: list[dict[str, Any]] = []
        """Facts about failed sessions of both arms, the first ``MAX_FAILURES``."""
        self.threshold = ThresholdRule(
            rules.threshold_ms or 1, rules.consecutive, ceiling=rules.ceiling, margin=rules.margin
        )

    def apply(self, event: Event) -> None:
        """Applies one event, in stream order. Events after a crossing do not count: the decision is final."""
        if event.sequence <= self.cursor:
            return
        self.cursor = event.sequence
        if event.release_id != self.release_id or self.crossing is not None:
            return
        if self.models and event.model_id == self.models[not event.candidate] != self.models[event.candidate]:
            self._ignore("other_model")
            return
        event = self._without_jumps(event)
        self.watermark = max(self.watermark, event.at)
        if event.failure is not None and event.value >= 0.5 and len(self.failures) < MAX_FAILURES:
            self.failures.append(event.failure)
        # Few sessions give feedback. Any outcome of an arm shows that its feedback would arrive too.
        self.cohorts["feedback"].advance_frontier(event.candidate, event.assigned_at)
        if event.kind in ("error", "lost"):
            self._note("error", event, float(event.kind == "lost" or event.value >= 0.5))
        elif event.kind == "reward":
            self._note("reward", event, min(1.0, max(0.0, event.value)))
            self._note("error", event, 0.0)
        elif event.kind == "feedback":
            self._note("feedback", event, float(event.value >= 0.5))
        self._settle()

    def _without_jumps(self, event: Event) -> Event:
        """Returns the event in the evidence's own time, which goes neither back nor far ahead at once.

        A clock that is set back by an hour would make all new sessions older than the horizon. One that is
        set ahead would mature all that wait and discard them. So the time between two arrivals counts as
        nothing if it is negative, and as the longest maturity at most.
        """
        stored = event.at if event.stored_at is None else event.stored_at
        arrival = stored + self.offset
        longest = max(self.rules.maturity.values())
        if self.arrived and arrival < self.arrived - JUMP:
            self.offset += self.arrived - arrival
        elif self.arrived and arrival > self.arrived + longest + JUMP:
            self.offset -= arrival - self.arrived - longest
        self.arrived = max(self.arrived, stored + self.offset)
        if not self.offset:
            return event
        return replace(event, at=event.at + self.offset, assigned_at=event.assigned_at + self.offset)

    def skip(self, sequence: int, why: str) -> None:
        """Skips a message that is no usable event, and counts it."""
        if sequence > self.cursor:
            self.cursor = sequence
            self._ignore(why)

    def matured(self, arm: str = "candidate") -> int:
        """Number of sessions of ``arm`` that are fully judged: with an outcome, or lost."""
        return int(self.arms[arm]["rewarded"] + self.arms[arm]["lost"])

    def _ignore(self, why: str) -> None:
        self.ignored[why] = self.ignored.get(why, 0) + 1

    def _note(self, gate: Gate, event: Event, value: float) -> None:
        cohort = self.cohorts[gate]
        if event.assigned_at < cohort.floor:
            self._ignore("too_late")
            return
        cohort.advance_frontier(event.candidate, event.assigned_at)
        key = _short(event.session_id)
        if cohort.is_judged(key):
            if not (gate == "error" and event.kind == "reward"):
                self._ignore("judged_already")
            return
        unit = cohort.pending.get(key)
        if unit is None:
            cohort.await_maturity(
                key, [event.assigned_at, int(event.candidate), event.weight, value, event.kind]
            )
        elif bool(unit[1]) != event.candidate:
            self._ignore("two_arms")
        elif gate == "error":
            if event.kind == "lost":
                self._ignore("not_lost")
            elif value > unit[3]:
                unit[3:] = [value, event.kind]
        elif gate == "feedback":
            unit[3] = value
        else:
            self._ignore("repeated")

    def _settle(self) -> None:
        """Judges every unit that has matured on both arms, oldest assignment first."""
        oldest = self.watermark - self.rules.horizon
        for gate in GATES:
            cohort = self.cohorts[gate]
            while self.crossing is None:
                found = cohort.pop_matured(self.rules.maturity[gate], self.watermark)
                if found is None:
                    break
                key, unit = found
                cohort.mark_judged(key, unit[0])
                self._judge(gate, key, unit)
            dropped = cohort.prune(oldest)
            if dropped:
                self.ignored["overflow"] = self.ignored.get("overflow", 0) + dropped

    def _judge(self, gate: Gate, key: str, unit: list[Any]) -> None:
        assigned_at, candidate, weight, value, kind = unit
        tally = self.arms[ARMS[candidate]]
        if gate == "error":
            tally["judged"] += 1
            tally["failed"] += value
            if kind == "lost":
                tally["lost"] += 1
                self._close_reward(key, assigned_at)
            self.gates.observe_error(bool(candidate), value > 0, weight)
        elif gate == "reward":
            tally["rewarded"] += 1
            tally["reward_sum"] += value
            self.gates.observe_reward(bool(candidate), value)
        else:
            tally["feedback"] += 1
            tally["negative"] += value
            self.gates.observe_feedback(bool(candidate), value > 0, weight)
        units = max(self.arms["candidate"]["judged"], self.arms["candidate"]["rewarded"])
        if units < MIN_UNITS:
            return
        if not self.rules.threshold_ms:
            leading = self.gates.leading() if self.gates.crossed(self.rules.alpha) else None
        else:
            leading = self.threshold.check(self.watermark, self.arms)
        if leading is not None:
            self.crossing = {
                "at": self.watermark - self.offset,
                "sequence": self.cursor,
                "leading": leading,
                "e_values": self.gates.e_values(),
            }

    def _close_reward(self, key: str, assigned_at: int) -> None:
        """Marks a lost session as judged, so that a later reward does not count it twice."""
        cohort = self.cohorts["reward"]
        if key in cohort.pending:
            del cohort.pending[key]
            cohort.order = [item for item in cohort.order if item[1] != key]
            heapq.heapify(cohort.order)
        if not cohort.is_judged(key):
            cohort.mark_judged(key, assigned_at)

    def summary(self) -> dict[str, Any]:
        """Returns sessions, rates and e-values, for people and decisions."""
        arms = {}
        for arm in ARMS:
            tally = self.arms[arm]
            rewarded = tally["rewarded"]
            arms[arm] = {
                **{name: int(value) for name, value in tally.items() if name != "reward_sum"},
                "matured": self.matured(arm),
                "error_rate": tally["failed"] / tally["judged"] if tally["judged"] else None,
                "mean_outcome": tally["reward_sum"] / rewarded if rewarded else None,
            }
        return {"arms": arms, "e_values": self.gates.e_values(), "ignored": dict(self.ignored)}

    def state(self) -> dict[str, Any]:
        """Returns everything as JSON, cursor included."""
        return {
            "release_id": self.release_id,
            "rules": asdict(self.rules),
            "start": self.start,
            "cursor": self.cursor,
            "models": list(self.models) if self.models else None,
            "watermark": self.watermark,
            "offset": self.offset,
            "arrived": self.arrived,
            "gates": self.gates.state(),
            "intakes": {name: cohort.state() for name, cohort in self.cohorts.items()},
            "arms": {arm: dict(tally) for arm, tally in self.arms.items()},
            "ignored": dict(sorted(self.ignored.items())),
            "crossing": self.crossing,
            "failures": list(self.failures),
            "threshold": self.threshold.state() if self.rules.threshold_ms else None,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Evidence:
        models = tuple(state["models"]) if state["models"] else None
        known = {field.name for field in fields(GateRules)}
        rules = GateRules(**{name: value for name, value in state["rules"].items() if name in known})
        evidence = cls(state["release_id"], rules, state["cursor"], models)
        evidence.start = state.get("start", 0)
        evidence.watermark = state["watermark"]
        evidence.offset, evidence.arrived = state.get("offset", 0), state.get("arrived", 0)
        evidence.gates = Gates.from_state(state["gates"])
        evidence.cohorts = {name: _Cohort.from_state(state["intakes"][name]) for name in GATES}
        evidence.arms = {arm: dict(state["arms"][arm]) for arm in ARMS}
        evidence.ignored = dict(state["ignored"])
        evidence.crossing = state["crossing"]
        evidence.failures = [dict(failure) for failure in state.get("failures") or ()]
        if state.get("threshold"):
            evidence.threshold.restore(state["threshold"])
        return evidence
