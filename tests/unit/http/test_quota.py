"""Limits of a key: requests and tokens a minute, answered in OpenAI's form."""

from __future__ import annotations

import asyncio
import json

import pytest

from onward.clock import ManualClock
from onward.config import KeyLimits
from onward.http.app import Caller, HttpError
from onward.serving.http.quota import Quota

CALLER, OTHER = Caller("a" * 64, frozenset({"chat"}), "ours"), Caller("b" * 64, frozenset({"chat"}))


def quota(clock: ManualClock, requests: int = 0, tokens: int = 0) -> Quota:
    return Quota({"a" * 64: KeyLimits(requests_per_minute=requests, tokens_per_minute=tokens)}, clock)


def test_requests_beyond_the_limit_are_answered_as_openai_does() -> None:
    clock = ManualClock()
    limits = quota(clock, requests=3)
    assert [limits.admit(CALLER)["x-ratelimit-remaining-requests"] for _ in range(3)] == ["2", "1", "0"]
    with pytest.raises(HttpError) as refused:
        limits.admit(CALLER)
    error = refused.value
    assert (error.status, error.headers["Retry-After"], error.headers["x-ratelimit-limit-requests"]) == (
        429, "20", "3")  # fmt: skip
    body = json.loads(bytes(error.response().body))["error"]
    assert (body["type"], body["code"]) == ("requests", "rate_limit_exceeded")
    assert limits.admit(OTHER) == {}, "a key without limits is not counted"
    asyncio.run(clock.advance(20))
    limits.admit(CALLER)


def test_an_answer_larger_than_the_rest_delays_the_next_call_until_it_is_paid_off() -> None:
    clock = ManualClock()
    limits = quota(clock, tokens=600)
    limits.admit(CALLER)
    limits.spend(CALLER, 1800)  # 1200 in debt, of which 10 are paid off in a second
    asyncio.run(clock.advance(120))
    with pytest.raises(HttpError) as refused:
        limits.admit(CALLER)
    assert refused.value.type == "tokens" and refused.value.headers["Retry-After"] == "1"
    asyncio.run(clock.advance(1))
    assert limits.admit(CALLER)["x-ratelimit-remaining-tokens"] == "10"
