"""Limits of an API key on model calls: requests and tokens a minute, answered as OpenAI does."""

from __future__ import annotations

import math
from collections.abc import Mapping

from onward.clock import Clock
from onward.config import KeyLimits
from onward.http.app import Caller, HttpError
from onward.http.limits import RateLimit


class Quota:
    """Counts the calls and tokens of the keys that have limits. A token is counted when its answer is there,
    so the call that exceeds the limit is the last one that passes."""

    def __init__(self, limits: Mapping[str, KeyLimits], clock: Clock) -> None:
        self._limits = {
            key: (
                RateLimit(one.requests_per_minute, clock),
                RateLimit(one.tokens_per_minute, clock),
                one,
            )
            for key, one in limits.items()
        }

    def admit(self, caller: Caller) -> dict[str, str]:
        """Counts a call and returns OpenAI's headers about the limits. Raises HttpError 429."""
        found = self._limits.get(caller.key_hash)
        if found is None:
            return {}
        requests, tokens, limits = found
        if wait := tokens.wait_for("", 1.0):
            raise _exceeded("tokens", "TPM", limits.tokens_per_minute, caller, wait)
        if wait := requests.take_token(""):
            raise _exceeded("requests", "RPM", limits.requests_per_minute, caller, wait)
        headers: dict[str, str] = {}
        for name, limit, bucket in (
            ("requests", limits.requests_per_minute, requests),
            ("tokens", limits.tokens_per_minute, tokens),
        ):
            if limit:
                left = bucket.left("")
                headers[f"x-ratelimit-limit-{name}"] = str(limit)
                headers[f"x-ratelimit-remaining-{name}"] = str(max(0, int(left)))
                headers[f"x-ratelimit-reset-{name}"] = f"{(limit - left) * 60.0 / limit:.3g}s"
        return headers

    def spend(self, caller: Caller, tokens: int) -> None:
        """Counts the tokens of an answer."""
        if (found := self._limits.get(caller.key_hash)) is not None:
            found[1].spend("", tokens)


def _exceeded(what: str, short: str, limit: int, caller: Caller, seconds: float) -> HttpError:
    whole = max(1, math.ceil(seconds))
    per = "requests" if what == "requests" else "tokens"
    return HttpError(
        429,
        f"Rate limit reached for key {caller.name} on {per} per min ({short}): Limit {limit}. Please try "
        f"again in {whole}s.",
        type=what,
        code="rate_limit_exceeded",
        headers={
            "Retry-After": str(whole),
            f"x-ratelimit-limit-{what}": str(limit),
            f"x-ratelimit-remaining-{what}": "0",
            f"x-ratelimit-reset-{what}": f"{whole}s",
        },
    )
