"""Asks one provider: retries what may pass, leaves it alone when it keeps failing, and hides its key.

Invariants: the address comes from the settings alone, and redirects are not followed. A call is tried again
only before any byte of its answer went to the client. The key appears in no error and no log.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from onward.breaker import Breaker
from onward.clock import Clock
from onward.config import ProviderSettings
from onward.http.app import HttpError
from onward.http.lean_transport import LeanTransport
from onward.retry import Backoff
from onward.serving.metrics import GatewayMetrics
from onward.telemetry import logs

_log = logs.get("gateway")
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
PATIENCE_SECONDS = 30.0
"""A longer Retry-After is passed on to the client at once."""
TOLD = 1000
"""Characters of a provider's own words in an error."""
_PASSING = frozenset((408, 409, 429))


class Upstream:
    def __init__(
        self, name: str, settings: ProviderSettings, key: str, clock: Clock, metrics: GatewayMetrics
    ) -> None:
        self.name, self._key, self._clock, self._metrics = name, key, clock, metrics
        self._retries = settings.retries
        self.breaker = Breaker(clock, failures=settings.breaker_failures, seconds=settings.breaker_seconds)
        headers = {"User-Agent": "onward"}
        if key and settings.kind == "anthropic":
            headers["x-api-key"] = key
        elif key:
            headers["Authorization"] = f"Bearer {key}"
        self._client = httpx.AsyncClient(
            base_url=settings.url,
            headers=headers,
            timeout=httpx.Timeout(settings.timeout_seconds, connect=settings.connect_seconds),
            transport=LeanTransport(),
            trust_env=False,
            follow_redirects=False,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> httpx.Response:
        """Returns an answer of status 200 whose body was not read yet; the caller closes it. Raises
        HttpError."""
        backoff, left = Backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=0.25), self._retries
        while True:
            self._check_breaker()
            try:
                response = await self._client.send(
                    self._client.build_request("POST", path, json=body, headers=dict(headers)), stream=True
                )
            except httpx.HTTPError as error:
                problem, asked_to_wait = self.lost(error), 0.0
                may_repeat = not isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout)
            else:
                if response.status_code == 200:
                    self._answered("ok")
                    return response
                problem, asked_to_wait = await self._refusal(response)
                may_repeat = response.status_code in _PASSING or response.status_code >= 500
            if not may_repeat or not left or asked_to_wait > PATIENCE_SECONDS:
                raise problem
            left -= 1
            _log.warning("provider asked again", provider=self.name, status=problem.status)
            await self._clock.sleep(max(asked_to_wait, backoff.next()))

    async def read(self, response: httpx.Response) -> dict[str, Any]:
        """Returns the answer's JSON object and closes it. Raises HttpError."""
        try:
            document = json.loads(await response.aread())
        except httpx.HTTPError as error:
            raise self.lost(error) from None
        except (ValueError, RecursionError):
            document = None
        finally:
            await response.aclose()
        if not isinstance(document, dict):
            raise self._error(502, f"The provider {self.name} sent no JSON object: check its base_url.")
        return document

    def lost(self, error: httpx.HTTPError) -> HttpError:
        """Counts a failed connection and returns the error for the client."""
        self.breaker.failed()
        self._count("lost")
        if isinstance(error, httpx.TimeoutException):
            return self._error(504, f"The provider {self.name} did not answer in time: send the call again.")
        why = type(error).__name__
        return self._error(503, f"The provider {self.name} is away ({why}): send the call again later.", 1)

    def hide(self, text: str) -> str:
        """Returns ``text`` without the key."""
        return text.replace(self._key, "…") if self._key else text

    def _check_breaker(self) -> None:
        if self.breaker.allow():
            return
        self._count("refused")
        seconds = max(1, math.ceil(self.breaker.retry_after))
        raise self._error(
            503,
            f"The provider {self.name} failed several times and is left alone: try again in {seconds} s.",
            seconds,
        )

    async def _refusal(self, response: httpx.Response) -> tuple[HttpError, float]:
        """Returns the error for the client, and the seconds that the provider asks to wait."""
        status = response.status_code
        try:
            body = await response.aread()
        except httpx.HTTPError as error:
            return self.lost(error), 0.0
        finally:
            await response.aclose()
        wait = retry_after(response.headers.get("retry-after"), self._clock)
        said = _said(body)
        told = self.hide(str(said.get("message") or "it gave no reason"))[:TOLD]
        if status >= 500 or status == 408:
            self.breaker.failed()
            self._count("error")
            seconds = max(1, math.ceil(wait))
            message = f"The provider {self.name} failed with HTTP {status}: {told}"
            return self._error(503, message, seconds), wait
        self._answered("limited" if status == 429 else "denied")
        if status in (401, 403) or status < 400:
            why = "refuses its key or this model: check" if status >= 400 else "redirects elsewhere: check"
            setting = "the key" if status >= 400 else "base_url"
            return self._error(
                502, f"The provider {self.name} {why} {setting} in [providers.{self.name}]."
            ), wait
        error = HttpError(
            status,
            told,
            type=self._word(said, "type") or "invalid_request_error",
            param=self._word(said, "param"),
            code=self._word(said, "code"),
            headers={"Retry-After": str(max(1, math.ceil(wait)))} if status == 429 else None,
        )
        return error, wait

    def _word(self, said: Mapping[str, Any], name: str) -> str | None:
        """Returns one of the short fields of a provider's error, without the key."""
        given = said.get(name)
        return self.hide(given)[:TOLD] if isinstance(given, str) else None

    def _answered(self, result: str) -> None:
        self.breaker.succeeded()
        self._count(result)

    def _count(self, result: str) -> None:
        self._metrics.provider_calls.labels(provider=self.name, result=result).inc()

    def _error(self, status: int, message: str, seconds: int = 0) -> HttpError:
        headers = {"Retry-After": str(seconds)} if seconds else None
        return HttpError(status, message, type="provider_error", headers=headers)


def retry_after(given: str | None, clock: Clock) -> float:
    """Returns the seconds of a ``Retry-After`` header, which has seconds or a date; 0 if it has neither."""
    if not given:
        return 0.0
    try:
        seconds = float(given)
    except ValueError:
        try:
            until = parsedate_to_datetime(given)
        except ValueError:
            return 0.0
        until = until if until.tzinfo else until.replace(tzinfo=UTC)
        seconds = (until - clock.now()).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def _said(body: bytes) -> dict[str, Any]:
    """Returns the error object in a body: both APIs have it under ``error``."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    error = document.get("error") if isinstance(document, dict) else None
    return error if isinstance(error, dict) else {"message": error} if isinstance(error, str) else {}
