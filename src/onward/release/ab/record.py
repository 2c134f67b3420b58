"""The record of an A/B test in bucket ``rl_releases``, and its stop rule. Pure, apart from the table."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from onward.bus import Bucket, Bus, read_all
from onward.clock import read_time
from onward.contracts.buckets import Record
from onward.errors import ConflictError
from onward.release.evidence.rates import ArmRates
from onward.release.record import Model

AbState = Literal["requested", "running", "stopped"]
Verdict = Literal["B is better", "A is better", "no difference beyond the margin", "open"]


class AbTest(Record):
    """One A/B test. Arm ``current`` of its outcomes is A, arm ``candidate`` is B."""

    BUCKET, KEY = "rl_releases", "ab."

    ab_id: str
    state: AbState = "requested"
    a: Model
    b: Model
    split: float = 0.5
    """B's share of new sessions."""
    margin: float = 0.0
    """A difference up to this counts as none; 0: any difference counts."""
    alpha: float = 0.05
    stop_after_sessions: int | None = None
    """Judged sessions of both arms after which it stops in any case."""
    stop_after_seconds: float | None = None
    asked_by: str
    created_at: str
    started_at: str | None = None
    stopped_at: str | None = None
    stop_asked_by: str | None = None
    """Operator who ended it before its rule did."""
    why: str | None = None
    """Reason for its end, in one sentence."""
    verdict: Verdict = "open"
    evidence: dict[str, Any] | None = None
    low: float = -1.0
    high: float = 1.0
    estimate: float | None = None
    rates: dict[str, ArmRates] = Field(default_factory=dict)

    def own_key(self) -> str:
        return self.KEY + self.ab_id

    def has_name(self, name: str) -> bool:
        """Returns whether ``name`` is this test's id, or a beginning of it of at least 8 characters."""
        return name == self.ab_id or (len(name) >= 8 and self.ab_id.startswith(name))

    @property
    def sessions(self) -> int:
        """Judged sessions with an outcome, of both arms."""
        return sum(arm.outcomes for arm in self.rates.values())


def verdict_of(low: float, high: float, margin: float) -> Verdict:
    """Returns what an interval of B - A shows."""
    if low > margin:
        return "B is better"
    if high < -margin:
        return "A is better"
    return "no difference beyond the margin" if margin > 0 and -margin <= low and high <= margin else "open"


def why_stop(test: AbTest, now: datetime) -> str | None:
    """Returns the reason to stop a running test, in one sentence; None if it goes on."""
    if test.stop_asked_by:
        return f"{test.stop_asked_by} stopped it"
    verdict = verdict_of(test.low, test.high, test.margin)
    if verdict != "open":
        return f"{verdict}: B - A lies in [{test.low:+.3f}, {test.high:+.3f}], margin {test.margin:g}"
    if test.stop_after_sessions is not None and test.sessions >= test.stop_after_sessions:
        return f"{test.sessions:,} sessions are judged, as its rule asks"
    if test.stop_after_seconds is not None and test.started_at is not None:
        passed = (now - read_time(test.started_at)).total_seconds()
        if passed >= test.stop_after_seconds:
            return f"{passed / 3600:.1f} hours have passed, as its rule asks"
    return None


class AbTests:
    """Typed access to the A/B tests of bucket ``rl_releases``."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def create(self, test: AbTest) -> int:
        """Stores a new test. Raises ConflictError if its id was given."""
        return await self._bucket.create(test.own_key(), test.dump())

    async def write(self, test: AbTest, revision: int) -> int:
        """Writes by compare-and-set. Raises ConflictError if the test was written elsewhere since."""
        return await self._bucket.update(test.own_key(), test.dump(), revision)

    async def all(self) -> list[AbTest]:
        """Returns every test that can be read, oldest first."""
        stored = await read_all(self._bucket, AbTest)
        found = [entry.document for entry in stored if entry.document is not None]
        return sorted(found, key=lambda test: (test.created_at, test.ab_id))

    async def open(self) -> tuple[AbTest, int] | None:
        """Returns the test that is requested or running, or None."""
        stored = await read_all(self._bucket, AbTest)
        found = [(entry.document, entry.revision) for entry in stored if entry.document is not None]
        still = [(test, revision) for test, revision in found if test.state != "stopped"]
        return min(still, key=lambda pair: (pair[0].created_at, pair[0].ab_id), default=None)


async def refuse_during_ab(bus: Bus, then: str) -> None:
    """Raises ConflictError while an A/B test is open. ``then``: the next step."""
    found = await AbTests(bus.bucket(AbTest.BUCKET)).open()
    if found is not None:
        test = found[0]
        raise ConflictError(
            f"An A/B test of {test.a.model_id} and {test.b.model_id} is {test.state}, and no release or "
            f"other test runs beside it: end it with 'onward ab stop', then {then}."
        )
