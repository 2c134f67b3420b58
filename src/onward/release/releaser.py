"""The releaser role: takes one release at a time from a completed job to its end.

A release ends promoted, rolled back, rejected or aborted. Each tick reads the operator's commands and the
outcome stream, changes the record by one compare-and-set, then applies the record (``effects``).

Invariants: every decision is part of that one write. A restart can repeat every action from the record alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from onward.bus.cancellation import until_cancelled
from onward.bus.leases import Lease
from onward.capture import provenance
from onward.context import Context
from onward.errors import BusError, ConflictError, ContractError
from onward.release import (
    admin_requests,
    approval,
    effects,
    moves,
    plan,
    power,
    proposals,
    restore,
    retention,
    rollback,
    wording,
)
from onward.release.ab.running import AbRunner
from onward.release.commands import OperatorRequests
from onward.release.evidence import gauges
from onward.release.evidence.evidence import Evidence, GateRules
from onward.release.evidence.gates import e_value
from onward.release.evidence.outcome_source import OutcomeSource, OutcomeStream, apply_outcomes
from onward.release.evidence.rates import figures, step_counts
from onward.release.explaining.logged_work import with_estimate
from onward.release.in_hand import InHand
from onward.release.initial import install_base, install_initial
from onward.release.operating import PERSIST_SECONDS, Operating
from onward.release.plan import State
from onward.release.record import HUMAN_SCORE, Model, ReleaseRecord, Releases
from onward.release.tensorzero import following
from onward.release.traffic import sessions_per_day
from onward.release.validation.comparison import Suite
from onward.release.validation.trial import Trial
from onward.release.validation.verdict import with_human_score
from onward.roles import lead, together
from onward.telemetry import logs

log = logs.get("releaser")

POLL_SECONDS = 0.5
IDLE_SECONDS = 1.0
RATIO_LIMIT = 1000.0
"""At this E-value of the sample-ratio guard, or more, the split between the arms counts as broken."""
LEASE_SECONDS = 10.0
UNSIGNED_ALERT_SECONDS = 60.0
"""Seconds between two alerts about outcomes that no gateway signed."""

Traffic = Callable[[], Awaitable[float | None]]

__all__ = ["Releaser", "install_initial", "run"]


class Releaser:
    """The role between ticks. ``hand`` has the release under way, ``operator`` what people ask for."""

    def __init__(
        self, ctx: Context, outcomes: OutcomeSource, suite: Suite, *, traffic: Traffic | None = None
    ) -> None:
        """``traffic`` measures sessions a day, None if not known; default: in the warehouse."""
        bus = ctx.bus
        self.ctx = ctx
        self.outcomes = outcomes
        self.traffic = traffic or (lambda: sessions_per_day(ctx.warehouse, ctx.clock.now()))
        self.releases = Releases(bus, ctx.clock)
        self.effects = effects.Effects(ctx, self.releases)
        self.jobs = proposals.CompletedJobs(bus.bucket("rl_jobs"), self.releases)
        self.requests = OperatorRequests(ctx, self.releases)
        self.ab = AbRunner(ctx, self.effects, outcomes, self.current)
        self.suite = suite
        self.trial = Trial(suite, ctx.settings)
        self.hand = InHand(ctx, self.releases)
        self.operator = Operating(
            ctx,
            self.hand,
            self.effects,
            self.requests,
            current=self.current,
            abort=self._abort,
            choose=self._choice,
            start=self._start,
        )
        self._installed = self._claimed = False
        self._quiet_until = 0.0
        self._pinned: str | None = None

    def lead(self, epoch: int) -> None:
        """Starts a lease with ``epoch``. Later writes by an older lease holder are refused."""
        self.effects.desired.epoch = epoch
        self._claimed = False

    async def tick(self) -> None:
        """Runs one tick. Raises BusError if the bus is away; then nothing was decided."""
        try:
            await self._tick()
        except ConflictError:
            log.warning("release record changed elsewhere; reading it again")
            await self._forget()

    async def work(self, lease: Lease) -> None:
        """Ticks while ``lease`` is held, until cancelled."""
        assert lease.epoch is not None
        self.lead(lease.epoch)
        try:
            for _ in until_cancelled():
                try:
                    if lease.held:
                        await self.tick()
                except BusError as error:
                    log.warning("the bus is away", error=str(error))
                await self.ctx.clock.sleep(POLL_SECONDS if self.record is not None else IDLE_SECONDS)
        finally:
            await self.close()

    async def close(self) -> None:
        await self._forget()

    async def _tick(self) -> None:
        if not self._claimed:
            await self.effects.desired.claim()
            self._claimed = True
        if self.record is None:
            self.hand.take(await self.releases.unsettled())
        pinned, is_pinned = await self.requests.read_pin()
        if self.record is None:
            self._installed = self._installed or await install_base(self.ctx, self.releases, self.suite)
        if self.record is None and await self.ab.tick(is_pinned):
            return
        if self.record is None and not is_pinned:
            await self._next_job()
        record = self.record
        if record is None:
            await self.operator.idle_routes(pinned, is_pinned)
            return
        if is_pinned and not record.closed:
            await self._abort("a model is pinned")
        else:
            await self.operator.obey()
        await self._advance()
        await self._carry_out(pinned)

    # The record.

    @property
    def record(self) -> ReleaseRecord | None:
        """The release in hand."""
        return self.hand.record

    async def _forget(self) -> None:
        await self.trial.stop()
        self.hand.forget()

    async def current(self) -> Model:
        return await self.releases.current() or proposals.base_model(self.ctx.settings)

    async def _next_job(self) -> None:
        job = await self.jobs.next()
        if job is None:
            return
        keys, command = await self.releases.all_model_keys(), await self.requests.newest_revision()
        record = proposals.propose(
            job, await self.current(), keys, self.ctx.settings, self.ctx.clock, command
        )
        revision = await self.releases.create(record)
        self.hand.take((record, revision))
        log.info("release proposed", release_id=record.release_id, job_id=record.job_id)

    # The states.

    async def _advance(self) -> None:
        record = self.hand.open
        if record.state is State.PROPOSED:
            await self._begin(record)
        elif record.state is State.VALIDATING:
            await self._validate(record)
        elif record.state is State.WAITING:
            await self.operator.wait(record)
        elif record.serving:
            await self._serve(record)
        self.hand.ticked_at = self.ctx.clock.monotonic()

    async def _begin(self, record: ReleaseRecord) -> None:
        current = await self.current()
        if record.kind == "rollback":
            return await self.hand.move(
                await restore.restore_or_reject(record, current, self.suite, self.hand.inputs)
            )
        if record.asked_by or proposals.start_is_current(record.start_digest, current):
            return await self.hand.move(moves.begin_validation(record, current, self.hand.inputs))
        start = (record.start_digest or "the base model")[:12]
        words = f"it was trained from {start}, but {current.model_id} serves now"
        await self.hand.move(moves.reject(record, "stale_start", words, self.hand.inputs))

    async def _validate(self, record: ReleaseRecord) -> None:
        found = await self.trial.poll(record)
        if isinstance(found, tuple):
            await self.hand.move(moves.reject(record, *found, self.hand.inputs))
        elif found is not None:
            await self._validated(record, found)

    async def _validated(self, record: ReleaseRecord, found: dict[str, Any]) -> None:
        """Rejects the candidate, or gives it a plan and its first traffic."""
        found = await with_estimate(found, self.ctx.bus.bucket("rl_jobs"), record.job_id)
        stored = await self.releases.model(record.candidate.model_id)
        found = with_human_score(found, (stored or record.candidate).validation.get(HUMAN_SCORE))
        record = record.model_copy(update={"validation": found})
        gauges.show_scores(self.ctx.metrics, record)
        settings = self.ctx.settings.release
        choice = self._choice(record)
        if choice.strategy is None or not found["passed"]:
            words = wording.why_not_released(found) or choice.reason
            await self.hand.move(moves.reject(record, "validation_failed", words, self.hand.inputs))
            return
        if settings.mode == "shadow":
            await self.hand.move(approval.close_shadow(record, self.hand.inputs))
            return
        needed = approval.why_needed(found, choice, settings) or record.needs_approval
        if needed:
            await self.hand.move(approval.wait(record, needed, self.hand.inputs))
        else:
            await self._start(record, choice)

    def _choice(self, record: ReleaseRecord) -> plan.Choice:
        found = record.validation or {}
        verdict = approval.verdict_of(found)
        return plan.choose(found.get("improvement", 0.0), self.ctx.settings.release, verdict)

    async def _start(self, record: ReleaseRecord, choice: plan.Choice) -> None:
        """Makes the plan for the measured traffic, says what it can find, and gives the first traffic."""
        settings = self.ctx.settings.release
        per_day = await self.traffic()
        made = plan.make(choice, settings, per_day)
        shown = None
        if per_day:
            shown = await asyncio.to_thread(power.simulate, made, GateRules.from_settings(settings), per_day)
        cursor = await self.outcomes.last_sequence()
        started = moves.start_traffic(record, choice, cursor, self.hand.inputs, made, shown)
        await self.hand.move(started)
        self.hand.evidence = Evidence.from_state(started.evidence or {})

    async def _serve(self, record: ReleaseRecord) -> None:
        """Takes in evidence, then decides. State, evidence and cursor go into one write."""
        evidence = self.hand.evidence
        if evidence is None:
            raise ContractError(
                "release_record", f"Release {record.release_id} is in traffic without evidence: abort it."
            )
        assigned = await self.outcomes.assigned()  # first: if it fails, the evidence is as the record has it
        applied = await apply_outcomes(self.outcomes, evidence)
        if applied.changed:
            gauges.show_evidence(self.ctx.metrics, record, evidence)
        now = self.ctx.clock.monotonic()
        if applied.unsigned:
            await self._report_unsigned(applied.unsigned)
        passed = now - self.hand.ticked_at
        revision = record.verified_revision
        verified = revision is not None and revision == record.desired_revision
        counts = verified and record.state is not State.HELD
        record = record.model_copy(
            update={
                "step_total": record.step_total + passed,
                "step_served": record.step_served + (passed if counts else 0.0),
                **moves.silence(record, assigned, applied.known, passed),
                **(figures(evidence) if applied.changed else {}),
            }
        )
        self.hand.record = record
        if evidence.crossing is not None:
            inputs = self.hand.inputs
            back = rollback.roll_back(record, evidence, inputs.settings, inputs.endpoint, inputs.at)
            await self.hand.move(back)
            log.error("release taken back", release_id=record.release_id, reason=self.hand.open.reason)
            return
        await self._decide(record, evidence, verified)
        if self.record is record and (applied.changed or now - self.hand.written_at >= PERSIST_SECONDS):
            await self.hand.write(record)

    async def _report_unsigned(self, count: int) -> None:
        """Counts outcomes that no gateway signed, and raises an alert about the first ones of a while."""
        metrics, now = self.ctx.metrics, self.ctx.clock.monotonic()
        metrics.outcomes_refused.inc(count)
        if now < self._quiet_until:
            return
        self._quiet_until = now + UNSIGNED_ALERT_SECONDS
        await self.ctx.alerts.raise_(
            "unsigned_outcome",
            "An outcome without a gateway's signature was on the bus and does not count: if a gateway runs "
            "in another data folder, give it this run/gateway.key; otherwise find out who has a login that "
            "may publish there, and give agents the one in run/agent.url.",
            "critical",
            count=count,
        )

    async def _decide(self, record: ReleaseRecord, evidence: Evidence, verified: bool) -> None:
        """Holds, advances or changes nothing. Called when no gate crossed."""
        settings = self.ctx.settings.release
        held = record.state is State.HELD
        quiet = record.silent_seconds > settings.lost_after_seconds + settings.reward_maturity_seconds
        broken = e_value(evidence.gates.ratio.log_e) >= RATIO_LIMIT
        counts = step_counts(record.rates, record.step_rates)
        verdict, shown = plan.step_verdict(
            record.schedule,
            record.step,
            served=record.step_served,
            total=record.step_total,
            candidate=counts["candidate"],
            current=counts["current"],
            support=e_value(evidence.gates.support.log_e),
        )
        if held and record.held_why in moves.SELF_ENDING:
            if not quiet and not broken and verdict != "lost":
                await self.hand.resume("the cause of the hold is gone")
            return
        if held and record.held_why == "operator":
            return
        if not held and (quiet or broken):
            await self.hand.hold("silence" if quiet else "sample_ratio")
            return
        if verdict == "advance" and verified and not quiet and not broken:
            self.hand.record = record.model_copy(update={"shown": shown})
            words = wording.shown_words(shown)
            known = counts["candidate"].known
            await self.hand.go_on(f"{record.step_served:.0f} s, {known} sessions, {words}")
        elif verdict in ("hold", "ask", "deadline", "lost") and not held:
            self.hand.record = record.model_copy(update={"shown": shown})
            await self.hand.hold(verdict)

    async def _abort(self, words: str) -> None:
        await self.trial.stop()
        await self.hand.move(moves.abort(self.hand.open, words, self.hand.inputs))

    # Effects.

    async def _carry_out(self, pinned: Model | None) -> None:
        name = pinned.model_id if pinned is not None else None
        if self.hand.dirty or self.hand.open.outbox or name != self._pinned:
            self._pinned = name
            done = await self.effects.carry_out(self.hand.open, pinned)
            if done != self.hand.open:
                await self.hand.write(done)
            self.hand.dirty = False
        record = self.hand.open
        if record.desired_revision is None:
            if record.closed:
                await self.hand.write(record.model_copy(update={"settled": True}))
                await self._forget()
            return
        if record.verified_revision == record.desired_revision and not record.closed:
            return
        found = await self.effects.check_gateways(record)
        restoring = record.state is State.RESTORING
        waited = self.effects.seconds_since_change() > effects.REFUSED_SECONDS
        if restoring and (found.verified or (waited and found.done and not found.refused)):
            return await self.hand.move(restore.finish(record, self.hand.inputs))
        if waited and found.refused and not record.closed and (restoring or not found.done):
            gateway, why = next(iter(found.refused.items()))
            who = f"gateway {gateway} cannot" if found.done else "no gateway can"
            return await self._abort(f"{who} load it ({why.rstrip('.')})")
        noted = self.effects.after_check(record, found)
        if noted != record:
            await self.hand.write(noted)
            if noted.settled:
                log.info("release settled", release_id=noted.release_id, state=str(noted.state))
                await self._forget()


async def run(ctx: Context) -> None:
    """Runs the releaser role: ticks while it holds the lease, until cancelled."""
    from onward.release.validation.kept import FOLDER, KeptSuite
    from onward.release.validation.suite import EngineSuite

    outcomes = OutcomeStream(ctx.bus, provenance.load_key(ctx.settings.run_dir, create=True))
    suite = KeptSuite(EngineSuite(ctx), ctx.settings.data_dir / FOLDER)
    releaser = Releaser(ctx, outcomes, suite)
    try:
        await lead(
            ctx,
            "releaser",
            LEASE_SECONDS,
            lambda lease: together(
                releaser.work(lease),
                retention.work(ctx, lease),
                admin_requests.work(ctx, lease),
                following.work(ctx, lease),
            ),
        )
    finally:
        await outcomes.close()
