"""Runs the open A/B test inside the releaser: routes, evidence, stop rule.

Invariants: while a test is open no release begins. The routes go back to the current model before the test
counts as stopped, so a release that follows never inherits its split.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from onward.clock import utc_text
from onward.context import Context
from onward.contracts.buckets import DesiredRoutes
from onward.release import wording
from onward.release.ab.evidence import AbEvidence
from onward.release.ab.record import AbTest, AbTests, verdict_of, why_stop
from onward.release.effects import REFUSED_SECONDS, Effects
from onward.release.evidence.evidence import GateRules
from onward.release.evidence.outcome_source import OutcomeSource, apply_outcomes
from onward.release.evidence.rates import rates_of
from onward.release.record import Model
from onward.release.routes import arm, single_arm
from onward.telemetry import logs

log = logs.get("releaser")


class AbRunner:
    """The A/B test between ticks. The record in the bucket is the truth; the evidence here is a copy."""

    def __init__(
        self, ctx: Context, effects: Effects, outcomes: OutcomeSource, current: Callable[[], Awaitable[Model]]
    ) -> None:
        self._ctx = ctx
        self._effects = effects
        self._outcomes = outcomes
        self._current = current
        self._tests = AbTests(ctx.bus.bucket(AbTest.BUCKET))
        self._known: tuple[int, AbEvidence] | None = None
        self._told: str | None = None
        """Test about which an alert was raised, because no gateway can load its models."""

    async def tick(self, is_pinned: bool) -> bool:
        """Advances the open test by one tick. Returns whether a test has the traffic after it. Raises
        ConflictError if another releaser took over."""
        found = await self._tests.open()
        if found is None:
            return False
        test, revision = found
        if is_pinned:
            await self._stop(test, revision, "a model is pinned")
        elif test.state == "requested":
            return await self._start(test, revision)
        else:
            return await self._go_on(test, revision)
        return False

    async def _start(self, test: AbTest, revision: int) -> bool:
        if test.stop_asked_by:
            await self._stop(test, revision, f"{test.stop_asked_by} stopped it")
            return False
        rules = GateRules.from_settings(self._ctx.settings.release)
        cursor = await self._outcomes.last_sequence()
        models = (test.a.model_id, test.b.model_id)
        evidence = AbEvidence(test.ab_id, rules, cursor, models, test.alpha)
        started = test.model_copy(
            update={
                "state": "running",
                "started_at": utc_text(self._ctx.clock.now()),
                "evidence": evidence.whole_state(),
            }
        )
        await self._tests.write(started, revision)
        await self._effects.set_routes(routes_of(started))
        log.info("A/B test started", ab_id=test.ab_id, a=test.a.model_id, b=test.b.model_id)
        return True

    async def _go_on(self, test: AbTest, revision: int) -> bool:
        evidence = self._evidence(test, revision)
        await self._check_loaded(test, await self._effects.set_routes(routes_of(test)))
        if (await apply_outcomes(self._outcomes, evidence)).changed:
            interval = evidence.interval
            test = test.model_copy(
                update={
                    "evidence": evidence.whole_state(),
                    "rates": rates_of(evidence),
                    "low": interval.low,
                    "high": interval.high,
                    "estimate": interval.estimate,
                    "verdict": verdict_of(interval.low, interval.high, test.margin),
                }
            )
            revision = await self._tests.write(test, revision)
            self._known = (revision, evidence)
        why = why_stop(test, self._ctx.clock.now()) or _harm(evidence)
        if why is None:
            return True
        await self._stop(test, revision, why)
        return False

    async def _check_loaded(self, test: AbTest, routes_revision: int) -> None:
        """Raises an alert once if no gateway can load A or B, and resolves it when one serves both. The test
        gets no session meanwhile: it stays open, since the files may be mended."""
        found = await self._effects.check_routes(routes_revision)
        if found.done and self._told == test.ab_id:
            self._told = None
            message = f"A gateway serves both models of the A/B test {test.ab_id} now."
            await self._ctx.alerts.resolve("ab_not_loaded", message, ab_id=test.ab_id)
        waited = self._effects.seconds_since_change() > REFUSED_SECONDS
        if not waited or found.done or not found.refused or self._told == test.ab_id:
            return
        self._told = test.ab_id
        gateway, why = next(iter(sorted(found.refused.items())))
        await self._ctx.alerts.raise_(
            "ab_not_loaded",
            f"No gateway can load the models of the A/B test {test.ab_id}, {test.a.model_id} and "
            f"{test.b.model_id} ({gateway}: {why.rstrip('.')}), so it gets no sessions: mend the model, or "
            f"end the test with 'onward ab stop'.",
            "critical",
            ab_id=test.ab_id,
            refused=found.refused,
        )

    def _evidence(self, test: AbTest, revision: int) -> AbEvidence:
        if self._known is None or self._known[0] != revision or self._known[1].release_id != test.ab_id:
            self._known = (revision, AbEvidence.from_whole_state(test.evidence or {}))
        return self._known[1]

    async def _stop(self, test: AbTest, revision: int, why: str) -> None:
        await self._effects.set_routes(single_arm(await self._current(), None))
        now = utc_text(self._ctx.clock.now())
        await self._tests.write(
            test.model_copy(update={"state": "stopped", "stopped_at": now, "why": why}), revision
        )
        self._known = None
        await self._ctx.alerts.raise_(
            "ab_stopped",
            f"The A/B test of {test.a.model_id} and {test.b.model_id} ended: {why}.",
            ab_id=test.ab_id,
            verdict=test.verdict,
        )


def routes_of(test: AbTest) -> DesiredRoutes:
    """Returns the desired state of a running test: both models at its fixed split."""
    arms = [arm("current", test.a, 1.0 - test.split), arm("candidate", test.b, test.split)]
    return DesiredRoutes(release_id=test.ab_id, step=0, arms=arms, previous=None)


def _harm(evidence: AbEvidence) -> str | None:
    """Returns the reason to stop if the gates of a release found B worse than A."""
    crossing = evidence.crossing
    if crossing is None:
        return None
    words = wording.crossed(
        rates_of(evidence), crossing["e_values"], crossing["leading"], evidence.rules.alpha
    )
    return f"B does harm: {words}"
