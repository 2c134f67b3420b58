"""The circuit breaker against a model that is a plain list of what happened."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onward.breaker import Breaker
from onward.clock import ManualClock

LIMIT, SECONDS = 3, 10
_STEPS = st.lists(
    st.one_of(st.just("allow"), st.just("ok"), st.just("fail"), st.integers(1, 12)), max_size=60
)


class _Model:
    """The rule as a table, over whole seconds."""

    def __init__(self) -> None:
        self.now, self.state, self.row = 0, "closed", 0
        self.until, self.probe_until = 0, None

    def seen(self) -> str:
        if self.state == "open" and self.now >= self.until:
            return "half-open"
        return self.state

    def allow(self) -> bool:
        if self.seen() == "closed":
            return True
        if self.seen() == "open" or (self.probe_until is not None and self.now < self.probe_until):
            return False
        self.probe_until = self.now + SECONDS
        return True

    def ok(self) -> None:
        self.state, self.row, self.probe_until = "closed", 0, None

    def fail(self) -> None:
        self.row += 1
        if self.probe_until is not None or (self.state == "closed" and self.row >= LIMIT):
            self.state, self.until, self.probe_until = "open", self.now + SECONDS, None


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault
@given(_STEPS)
def test_breaker_follows_the_table_of_states(steps: list[str | int]) -> None:
    clock, model = ManualClock(), _Model()
    breaker = Breaker(clock, failures=LIMIT, seconds=SECONDS)

    async def play() -> None:
        for step in steps:
            if isinstance(step, int):
                await clock.advance(step)
                model.now += step
            elif step == "allow":
                assert breaker.allow() == model.allow()
            elif step == "ok":
                breaker.succeeded(), model.ok()
            else:
                breaker.failed(), model.fail()
            assert breaker.state == model.seen()

    asyncio.run(play())


def test_half_open_lets_one_probe_pass_and_a_lost_probe_is_given_up() -> None:
    clock = ManualClock()
    breaker = Breaker(clock, failures=1, seconds=5)
    breaker.failed()
    assert (breaker.state, breaker.allow(), breaker.retry_after) == ("open", False, 5.0)
    asyncio.run(clock.advance(5))
    assert (breaker.state, breaker.allow(), breaker.allow()) == ("half-open", True, False)
    asyncio.run(clock.advance(5))
    assert breaker.allow(), "a probe that never reported must not block for good"
    breaker.succeeded()
    assert (breaker.state, breaker.retry_after) == ("closed", 0.0)


def test_failures_of_calls_from_before_do_not_prolong_an_open_breaker() -> None:
    clock = ManualClock()
    breaker = Breaker(clock, failures=1, seconds=5)
    breaker.failed()
    asyncio.run(clock.advance(4))
    breaker.failed()
    asyncio.run(clock.advance(1))
    assert breaker.allow()
