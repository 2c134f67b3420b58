"""Outcomes of sessions for the gates, joined from the gateway's own assignment records.

At most one outcome of each kind is published per session and release, under an id derived from those three.
So neither redelivery nor a second gateway can count a session twice. A changed vote is published again and
replaces the one before: the gates count one vote per session, the last before the vote matures. Nothing is
published for a session whose release is closed or rolled back. Each outcome is signed with the gateway's
key; an outcome on the stream without a valid signature is ignored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Literal

import nats.errors

from onward.bus import Ack, Bus, Disposition, Message, Retry, consume
from onward.bus.cancellation import until_cancelled
from onward.bus.pull import PullBroken, Puller
from onward.capture import provenance
from onward.clock import Clock, read_time
from onward.contracts import Feedback, Reward, SessionOutcome, decode, encode, subjects
from onward.contracts.buckets import Assignment
from onward.errors import BusError, ContractError
from onward.feedback.votes import is_negative
from onward.ids import derived_id
from onward.lru import Lru
from onward.roles import together
from onward.serving.metrics import GatewayMetrics
from onward.serving.recording.failures import UNKNOWN_FAILURE, Failure
from onward.serving.routing.arms import Routes
from onward.serving.routing.assignments import MOST_KNOWN, Assignments
from onward.telemetry import logs

_log = logs.get("gateway")
DURABLE = "gateway-outcomes"
VOTES_DURABLE = "gateway-votes"
REWARDS_STREAM = "RL_REWARDS"
FEEDBACK_STREAM = "RL_FEEDBACK"
OUTCOMES_STREAM = "RL_OUTCOMES"
RELEASES_KEPT = 8
CLOCK_TOLERANCE = timedelta(minutes=1)
"""Difference between stamp and measured time from which the wall clock counts as set."""
Kind = Literal["error", "reward", "lost", "feedback"]
_COUNTED = ("error", "reward", "lost", "feedback", "unknown")
"""Kinds after which a session owes no outcome."""


class SessionVotes:
    """Last vote per release and session: its time, and 1 for a negative or 0 for a positive vote.

    The votes are read back from the outcome stream after a restart. So a redelivered vote is not forwarded
    again, and an older vote never replaces a newer one.
    """

    def __init__(self) -> None:
        self._last: Lru[str, dict[str, tuple[datetime, float]]] = Lru(RELEASES_KEPT)

    def changes_vote(self, release_id: str, session_id: str, at: datetime, value: float) -> bool:
        """Returns whether this vote changes the session's vote at the gates. A later vote with the same value
        does not; it is stored as the last one."""
        known = (self._last.get(release_id) or {}).get(session_id)
        if known is None:
            return True
        if at > known[0] and value == known[1]:
            self.note(release_id, session_id, at, value)
        return at > known[0] and value != known[1]

    def note(self, release_id: str, session_id: str, at: datetime, value: float) -> None:
        """Stores a vote that was sent to the gates."""
        sessions = self._last.setdefault(release_id, {})
        known = sessions.get(session_id)
        if known is None or at > known[0]:
            sessions[session_id] = (at, value)


class OutcomePublisher:
    """Publishes outcomes of the release that ``routes()`` reports as open."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        assignments: Assignments,
        metrics: GatewayMetrics,
        routes: Callable[[], Routes],
        *,
        lost_after_seconds: float,
        signing_key: bytes,
    ) -> None:
        self._signing_key = signing_key
        self._bus, self._clock, self._assignments = bus, clock, assignments
        self._metrics, self._routes = metrics, routes
        self._lost_after = lost_after_seconds
        self._release: str | None = None
        self._waiting: dict[str, Assignment] = {}
        """Sessions of the open release without any outcome yet."""
        self._seen: Lru[str, set[tuple[str, str]]] = Lru(RELEASES_KEPT)
        """Release → (session, kind) that are on the stream, for the newest few releases."""
        self._begun: Lru[tuple[str, str], tuple[float, float]] = Lru(MOST_KNOWN)
        """(Release, session) → this process's monotonic time when it met the session, and the session's age
        in seconds then, by its stamp."""
        self._votes = SessionVotes()
        self._caught_up = False
        self._answered: list[tuple[str, str]] = []
        """Sessions and their releases that are to be recorded as answered."""

    def register(self, assignment: Assignment) -> None:
        """Registers an assigned session: from now on it owes an outcome."""
        self._follow_release()
        self._meet(assignment)
        if assignment.release_id == self._release and not self._has_any(assignment):
            self._waiting.setdefault(assignment.session_id, assignment)

    async def publish_error(self, assignment: Assignment, failure: Failure = UNKNOWN_FAILURE) -> None:
        """Publishes an error: the engine failed for this session."""
        await self._publish(assignment, "error", 1.0, failure=failure)

    def note_answered(self, session_id: str) -> None:
        """Notes that a task of this session ended with an answer that was not judged: the session is not
        lost, its outcome is unknown. No outcome is published; the next round of ``_sweeps`` records it for
        the other gateways, and for this one after a restart."""
        self._follow_release()
        if self._release is not None:
            self._note(self._release, session_id, "unknown")
            self._answered.append((session_id, self._release))

    async def run(self) -> None:
        """Consumes rewards and feedback, follows the outcomes, sweeps for lost sessions; until cancelled."""
        rewards = consume(
            self._bus,
            stream=REWARDS_STREAM,
            durable=DURABLE,
            subject=subjects.REWARD,
            handler=self.on_rewards,
            clock=self._clock,
        )
        votes = consume(
            self._bus,
            stream=FEEDBACK_STREAM,
            durable=VOTES_DURABLE,
            subject=subjects.FEEDBACK,
            handler=self.on_feedback,
            clock=self._clock,
        )
        await together(self._tail(), self._sweeps(), rewards, votes)

    async def on_rewards(self, messages: list[Message]) -> list[Disposition]:
        return await self._each(messages, self._on_reward)

    async def on_feedback(self, messages: list[Message]) -> list[Disposition]:
        if self._routes().open and not self._caught_up:  # votes published before a restart are not known yet
            return [Retry(1.0)] * len(messages)
        return await self._each(messages, self._on_feedback)

    async def _each(
        self, messages: list[Message], handle: Callable[[bytes], Awaitable[None]]
    ) -> list[Disposition]:
        done: list[Disposition] = []
        for message in messages:
            try:
                await handle(message.data)
                done.append(Ack())
            except ContractError as error:
                _log.warning("message not readable", sequence=message.sequence, reason=error.reason)
                done.append(Ack())  # the rewarder's consumers dead-letter it; it says nothing about a session
            except BusError:
                done.append(Retry(2.0))
        return done

    async def _on_feedback(self, data: bytes) -> None:
        routes = self._routes()
        if not routes.open:
            return
        feedback = decode(data, Feedback)
        negative = is_negative(feedback)
        if negative is None:
            return
        assignment = await self._assignments.find(feedback.session_id)
        if assignment is None or assignment.release_id != routes.release_id:
            return
        at, value = min(feedback.timestamp, self._clock.now()), float(negative)
        if at < self._assigned_at_earliest(assignment):
            return
        if self._votes.changes_vote(assignment.release_id, assignment.session_id, at, value):
            await self._publish(assignment, "feedback", value, at=at, vote=feedback.feedback_id)

    async def _on_reward(self, data: bytes) -> None:
        routes = self._routes()
        if not routes.open:
            return
        reward = decode(data, Reward)
        assignment = await self._assignments.find(reward.session_id)
        if assignment is None or assignment.release_id != routes.release_id:
            return
        if reward.timestamp < self._assigned_at_earliest(assignment):
            return
        if self._is_foreign(reward, assignment):
            return
        if reward.metadata.supersedes or "cause" in (reward.metadata.model_extra or {}):
            self._waiting.pop(assignment.session_id, None)  # judged again, or late: gates count first rewards
            return
        judged = reward.metadata.outcome
        if judged is None:
            self._waiting.pop(assignment.session_id, None)  # a reward arrived, but its value is unknown
            return
        if judged.unparsable:
            failure = Failure("unparsable", domain=reward.metadata.task_type)
            await self._publish(assignment, "error", 1.0, failure=failure)
        value = 1.0 if judged.success else 0.0
        await self._publish(assignment, "reward", value, raw_total=_unit(reward.metadata.raw_total))

    def _is_foreign(self, reward: Reward, assignment: Assignment) -> bool:
        """Returns whether the reward belongs to an earlier release of the session. A claim that fits neither
        is counted as a mismatch, and the gateway's own record decides."""
        claimed = reward.metadata.release_id
        extra = reward.metadata.model_extra or {}
        arm = extra.get("arm")
        if claimed is not None and claimed in assignment.earlier:
            return True
        if (claimed is not None and claimed != assignment.release_id) or (
            arm is not None and arm != assignment.arm
        ):
            self._metrics.mismatches.inc()
        return False

    async def _publish(
        self,
        assignment: Assignment,
        kind: Kind,
        value: float,
        *,
        at: datetime | None = None,
        vote: str | None = None,
        failure: Failure = UNKNOWN_FAILURE,
        raw_total: float | None = None,
    ) -> None:
        """Publishes an outcome. ``at`` is its time (None: now). ``vote`` is the id of a vote, of which a
        session may have several."""
        self._follow_release()
        release, session = assignment.release_id, assignment.session_id
        if release != self._release or (vote is None and (session, kind) in self._known(release)):
            return
        outcome_id = derived_id("outcome", release, session, kind, *([vote] if vote else []))
        outcome = SessionOutcome(
            outcome_id=outcome_id,
            session_id=session,
            release_id=release,
            arm=assignment.arm,
            weight=assignment.weight,
            assigned_at=self._assigned_at(assignment),
            timestamp=at or self._clock.now(),
            kind=kind,
            value=value,
            raw_total=raw_total,
            model_id=assignment.model_id,
            error=failure.error,
            context_tokens=failure.context_tokens,
            domain=failure.domain,
            tool=failure.tool,
        )
        signed = encode(provenance.sign_outcome(outcome, self._signing_key))
        msg_id = provenance.outcome_message_id(outcome_id, self._signing_key)
        await self._bus.publish(subjects.OUTCOME, signed, msg_id=msg_id, deadline=30.0)
        self._note(release, session, kind)
        if kind == "feedback":
            self._votes.note(release, session, outcome.timestamp, value)
        self._metrics.outcomes.labels(arm=assignment.arm, kind=kind).inc()
        if kind in ("error", "lost"):
            self._metrics.model_errors.labels(model_version=assignment.model_id).inc()

    # Lost sessions.

    async def sweep(self) -> int:
        """Publishes ``lost`` for sessions that have owed an outcome for too long; returns their number. Does
        nothing while rewards wait in the stream: a session is lost only if none of its rewards is there.

        The time is counted by this process's monotonic clock, from when it met the session: a jump of the
        wall clock loses none. After a restart the wait of an open session begins again."""
        self._follow_release()
        limit = self._clock.monotonic() - self._lost_after
        late = [a for a in self._waiting.values() if self._meet(a)[0] <= limit]
        if not late or not self._caught_up or not await self._rewards_drained():
            return 0
        count = 0
        for assignment in late:
            if assignment.session_id not in self._waiting:
                continue
            if await self._assignments.is_answered(assignment):
                self._note(assignment.release_id, assignment.session_id, "unknown")
                continue
            await self._publish(assignment, "lost", 1.0)
            count += 1
        return count

    async def record_answered(self) -> None:
        """Records the sessions that ``note_answered`` noted. Raises BusError; the rest is tried again."""
        while self._answered:
            await self._assignments.mark_answered(*self._answered[0])
            del self._answered[0]

    # Time. Stamps of assignments are wall-clock times, which may jump.

    def _meet(self, assignment: Assignment) -> tuple[float, float]:
        """Returns when this process met the session and its age then, and stores both the first time."""
        key = (assignment.release_id, assignment.session_id)
        known = self._begun.get(key)
        if known is None:
            age = self._clock.now() - read_time(assignment.assigned_at)
            known = (self._clock.monotonic(), max(0.0, age.total_seconds()))
            self._begun[key] = known
        return known

    def _assigned_at(self, assignment: Assignment) -> datetime:
        """Returns the time of the assignment by the wall clock as it is now. It differs from the stamp only
        if the clock was set meanwhile; else a session would seem an hour older or younger than it is."""
        stamp = read_time(assignment.assigned_at)
        since, age = self._meet(assignment)
        measured = self._clock.now() - timedelta(seconds=self._clock.monotonic() - since + age)
        return measured if abs(measured - stamp) > CLOCK_TOLERANCE else stamp

    def _assigned_at_earliest(self, assignment: Assignment) -> datetime:
        """Returns the earlier of stamp and ``_assigned_at``. An answer to the session may have been stamped
        before or after the clock was set, so only one that is older than both was made before it."""
        return min(read_time(assignment.assigned_at), self._assigned_at(assignment))

    async def load_sessions(self) -> None:
        """Loads the sessions that another process (or this one, before a restart) assigned."""
        self._follow_release()
        release = self._release
        if release is None:
            return
        for assignment in await self._assignments.of_release(release):
            self.register(assignment)

    async def _sweeps(self) -> None:
        interval = max(0.2, min(10.0, self._lost_after / 10))
        loaded_for: str | None = None
        loaded_at = 0.0
        for _ in until_cancelled():
            try:
                self._follow_release()
                now = self._clock.monotonic()
                if self._release and (loaded_for != self._release or now - loaded_at > self._lost_after):
                    await self.load_sessions()
                    loaded_for, loaded_at = self._release, now
                await self.record_answered()
                await self.sweep()
            except (BusError, nats.errors.Error) as error:
                _log.warning("sweep postponed", reason=type(error).__name__)
            await self._clock.sleep(interval)

    async def _rewards_drained(self) -> bool:
        info = await self._bus.js.consumer_info(REWARDS_STREAM, DURABLE)
        return not info.num_pending and not info.num_ack_pending

    # Outcomes that are already on the stream.

    async def _tail(self) -> None:
        """Follows RL_OUTCOMES from its start: outcomes from before a restart, and from other gateways."""
        after, rounds = 0, until_cancelled()
        for _ in rounds:
            puller: Puller | None = None
            try:
                puller = await Puller.after(
                    self._bus, OUTCOMES_STREAM, subjects.OUTCOME, after, prefix="outcomes"
                )
                for _ in rounds:
                    batch = await puller.pull(512)
                    if not batch:
                        self._caught_up = True
                        batch = await puller.pull(512, linger=5.0)
                    for message in batch:
                        self._note_message(message.data)
                        after = message.metadata.sequence.stream
            except (PullBroken, BusError, nats.errors.Error) as error:
                _log.debug("outcome tail starts again", reason=type(error).__name__)
                self._caught_up = False
                await self._bus.revive()
                await self._clock.sleep(0.5)
            finally:
                if puller is not None:
                    await puller.close(delete=True)

    def _note_message(self, data: bytes) -> None:
        try:
            outcome = decode(data, SessionOutcome)
        except ContractError:
            return
        if outcome.release_id is None or not provenance.is_signed(outcome, self._signing_key):
            return
        self._note(outcome.release_id, outcome.session_id, outcome.kind)
        if outcome.kind == "feedback":
            self._votes.note(outcome.release_id, outcome.session_id, outcome.timestamp, outcome.value)

    def _note(self, release_id: str, session_id: str, kind: str) -> None:
        self._known(release_id).add((session_id, kind))
        if release_id == self._release:
            self._waiting.pop(session_id, None)

    def _known(self, release_id: str) -> set[tuple[str, str]]:
        return self._seen.setdefault(release_id, set())

    def _has_any(self, assignment: Assignment) -> bool:
        known = self._known(assignment.release_id)
        return any((assignment.session_id, kind) in known for kind in _COUNTED)

    def _follow_release(self) -> None:
        routes = self._routes()
        release = routes.release_id if routes.open else None
        if release != self._release:
            self._release = release
            self._waiting = {}


def _unit(raw_total: float | None) -> float | None:
    """Returns the raw total if it is in its range, from 0 to 1. Another evaluator's number may not be: it is
    unknown then, and the gates judge the outcome."""
    return raw_total if raw_total is not None and 0.0 <= raw_total <= 1.0 else None
