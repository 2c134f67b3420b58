"""Asks every part at once whether it works, with one deadline for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from onward.telemetry import logs

_log = logs.get("health")
Probe = Callable[[], Awaitable[bool | str]]
"""Returns True, or one word for what is wrong. An exception counts as ``away``."""
READY_SECONDS = 2.0


async def answers_within(seconds: float, work: Mapping[str, Awaitable[Any]]) -> dict[str, Any]:
    """Runs ``work`` side by side and returns each result, or the exception that it raised.

    What has not ended after ``seconds`` is cancelled, not waited for, and has a TimeoutError as its result.
    """
    tasks = {name: asyncio.ensure_future(one) for name, one in work.items()}
    if not tasks:
        return {}
    try:
        await asyncio.wait(tasks.values(), timeout=seconds)
    finally:
        for task in tasks.values():
            task.cancel()
    return {name: _result(task, seconds) for name, task in tasks.items()}


def _result(task: asyncio.Future[Any], seconds: float) -> Any:
    if not task.done() or task.cancelled():
        task.add_done_callback(_log_late)
        return TimeoutError(f"no answer within {seconds:g} s")
    return task.exception() or task.result()


def _log_late(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.debug("a part failed after its deadline", reason=str(error) or type(error).__name__)


class Readiness:
    """Answers of all parts: the roles' own marks, and ``probes``. Calls share a check that is under way."""

    def __init__(
        self, probes: Mapping[str, Probe], roles: Mapping[str, bool | str], seconds: float = READY_SECONDS
    ) -> None:
        """``probes`` and ``roles`` may grow and change later."""
        self._probes, self._roles, self._seconds = probes, roles, seconds
        self._checking: asyncio.Task[dict[str, bool | str]] | None = None

    async def __call__(self) -> dict[str, bool | str]:
        """Returns part → True, False (a role that does not work now), or one word for what is wrong."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check())
        return await asyncio.shield(self._checking)

    async def _check(self) -> dict[str, bool | str]:
        asked = {part: probe() for part, probe in dict(self._probes).items()}
        found = await answers_within(self._seconds, asked)
        return {**self._roles, **{part: _word(answer) for part, answer in found.items()}}


def _word(answer: Any) -> bool | str:
    if isinstance(answer, TimeoutError):
        return "hung"
    return "away" if isinstance(answer, Exception) else answer
