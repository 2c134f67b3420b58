"""Evidence: outcome events of one release, in stream order, prepared for the gates.

The state holds the stream cursor; the releaser stores both in one compare-and-set record. Events that would
void the gates' guarantee are stopped here: repeats, several outcomes of one session,
outcomes of one arm that arrive later than the other's.

Invariants: everything here is a function of the events alone (their order, their own times), never of the
clock. So a replay from the stream gives the same state bit for bit.
"""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from onward.config import ReleaseSettings
from onward.contracts import canonical_json
from onward.release.evidence.cohort import MINUTE, Cohort, short_id
from onward.release.evidence.event import Event
from onward.release.evidence.gates import BOTH, OUTCOME, Gates, Signal
from onward.release.evidence.threshold import ThresholdRule

Gate = Literal["error", "reward", "feedback"]
GATES: tuple[Gate, ...] = ("error", "reward", "feedback")
ARMS = ("current", "candidate")

FEEDBACK_FACTOR = 7.5
"""Feedback matures after this many reward windows: 15 minutes at the default of 2."""
MIN_UNITS = 5
"""Minimum judged candidate sessions for a crossing to count: a guard against hidden correlation."""
MAX_FAILURES = 500
JUMP = MINUTE
"""Milliseconds by which the server's stamps may fall behind the newest one before the clock counts as set
back. Less than that is disorder between servers."""


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
    reward_signal: Signal = OUTCOME
    """Numbers that the reward gate judges: with ``both`` raw totals beside the outcomes."""
    least_sessions: int = 0
    """Sessions of an arm that a window of the threshold rule needs; 0: any number, as earlier versions."""

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
            reward_signal=settings.reward_signal,
            least_sessions=settings.threshold_sessions if settings.gates == "threshold" else 0,
            horizon=2 * (round(settings.lost_after_seconds * 1000) + max(maturity.values())),
        )

    def state(self) -> dict[str, Any]:
        """Returns the rules as JSON. A rule that an earlier version did not have is left out while it has no
        effect, so that evidence of that version is replayed to the same bytes."""
        state = asdict(self)
        for name in ("reward_signal", "least_sessions"):
            if state[name] == GateRules.__dataclass_fields__[name].default:
                del state[name]
        return state


def digest_of(state: dict[str, Any]) -> str:
    """Returns the SHA-256 of an evidence state in its canonical form."""
    return hashlib.sha256(canonical_json(state)).hexdigest()


def _tally(signal: Signal) -> dict[str, float]:
    counts = dict.fromkeys(("judged", "failed", "lost", "rewarded"), 0)
    raw = {"raw_known": 0, "raw_sum": 0.0} if signal == BOTH else {}
    return {**counts, "reward_sum": 0.0, "feedback": 0, "negative": 0, **raw}


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
        self.cohorts: dict[str, Cohort] = {name: Cohort() for name in GATES}
        self.arms: dict[str, dict[str, float]] = {arm: _tally(rules.reward_signal) for arm in ARMS}
        self.ignored: dict[str, int] = {}
        self.crossing: dict[str, Any] | None = None
        self.failures: list[dict[str, Any]] = []
        """Facts about failed sessions of both arms, the first ``MAX_FAILURES``."""
        self.threshold = ThresholdRule(
            rules.threshold_ms or 1,
            rules.consecutive,
            ceiling=rules.ceiling,
            margin=rules.margin,
            least=rules.least_sessions,
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
        key = short_id(event.session_id)
        if cohort.is_judged(key):
            if not (gate == "error" and event.kind == "reward"):
                self._ignore("judged_already")
            return
        unit = cohort.pending.get(key)
        if unit is None:
            cohort.await_maturity(
                key,
                [
                    event.assigned_at,
                    int(event.candidate),
                    event.weight,
                    value,
                    event.kind,
                    *self._raw(gate, event),
                ],
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

    def _raw(self, gate: Gate, event: Event) -> list[float]:
        """Returns the raw total of a reward in a list; an empty one if it is not known or is not judged. It
        has four digits: with all of them, the sessions that wait would make the record too long."""
        if gate != "reward" or self.rules.reward_signal != BOTH or event.raw_total is None:
            return []
        return [round(event.raw_total, 4)]

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
        assigned_at, candidate, weight, value, kind, *raw = unit
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
            if raw:
                tally["raw_known"] += 1
                tally["raw_sum"] += raw[0]
            self.gates.observe_reward(bool(candidate), value, *raw)
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
            rewarded, raw_known = tally["rewarded"], tally.get("raw_known")
            arms[arm] = {
                **{name: int(value) for name, value in tally.items() if not name.endswith("_sum")},
                "matured": self.matured(arm),
                "error_rate": tally["failed"] / tally["judged"] if tally["judged"] else None,
                "mean_outcome": tally["reward_sum"] / rewarded if rewarded else None,
                "mean_raw_total": tally["raw_sum"] / raw_known if raw_known else None,
            }
        return {"arms": arms, "e_values": self.gates.e_values(), "ignored": dict(self.ignored)}

    def state(self) -> dict[str, Any]:
        """Returns everything as JSON, cursor included."""
        return {
            "release_id": self.release_id,
            "rules": self.rules.state(),
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
        evidence.cohorts = {name: Cohort.from_state(state["intakes"][name]) for name in GATES}
        evidence.arms = {arm: dict(state["arms"][arm]) for arm in ARMS}
        evidence.ignored = dict(state["ignored"])
        evidence.crossing = state["crossing"]
        evidence.failures = [dict(failure) for failure in state.get("failures") or ()]
        if state.get("threshold"):
            evidence.threshold.restore(state["threshold"])
        return evidence
