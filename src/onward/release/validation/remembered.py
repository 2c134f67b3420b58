"""A suite that runs each policy once: the current model was the candidate of an earlier release.

A result of the suite is a function of policy, task and seed, so a second run would give the same results.
Only results in memory are reused; after a restart the suite runs again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from onward.errors import EngineError
from onward.lru import Lru
from onward.release.validation.checks import CheckResult
from onward.release.validation.judge import Suite
from onward.release.validation.suite import TaskResult

POLICIES = 4
"""Number of policies whose results are cached: current, candidate, and those before them."""

Result = TypeVar("Result")
Key = tuple[str, str | None]
"""Digest of the base model, digest of the adapter (None: the base alone)."""


class Remembered:
    """Wraps ``inner`` and caches the results of the last ``POLICIES`` policies."""

    def __init__(self, inner: Suite) -> None:
        self._inner = inner
        self._tasks: Lru[Key, list[TaskResult]] = Lru(POLICIES)
        self._checks: Lru[Key, list[CheckResult]] = Lru(POLICIES)

    async def base_digest(self) -> str:
        return await self._inner.base_digest()

    async def check_stored(
        self, digest: str | None, object_prefix: str, manifest_sha256: str | None = None
    ) -> None:
        await self._inner.check_stored(digest, object_prefix, manifest_sha256)

    async def prepare(
        self, digest: str | None, object_prefix: str, manifest_sha256: str | None = None
    ) -> None:
        """Verifies and loads again each time, because a file may have changed since."""
        await self._inner.prepare(digest, object_prefix, manifest_sha256)

    async def run_suite(self, digest: str | None) -> list[TaskResult]:
        return await self._once(self._tasks, digest, self._inner.run_suite)

    async def run_checks(self, digest: str | None) -> list[CheckResult]:
        return await self._once(self._checks, digest, self._inner.run_checks)

    async def _once(
        self,
        kept: Lru[Key, list[Result]],
        digest: str | None,
        ask: Callable[[str | None], Awaitable[list[Result]]],
    ) -> list[Result]:
        """Returns a copy of the cached results of this policy, or runs it. It now counts as used last."""
        key = await self._key(digest)
        if key is None:
            return await ask(digest)
        if key not in kept:
            kept[key] = await ask(digest)
        return list(kept[key])

    async def _key(self, digest: str | None) -> Key | None:
        """Returns the cache key; None, so that nothing is cached, if the engine reports no base model."""
        try:
            return await self.base_digest(), digest
        except EngineError:
            return None

    async def finish(self) -> None:
        await self._inner.finish()
