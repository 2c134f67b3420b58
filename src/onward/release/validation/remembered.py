"""A suite that asks each policy once: the current model was the candidate of an earlier release.

The one thing to know: an answer of the suite is a function of policy, task and seed, so playing it again
would give the same results; only what is kept in memory is reused, and a restart plays again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from onward.errors import EngineError
from onward.release.validation.checks import CheckResult
from onward.release.validation.judge import Suite
from onward.release.validation.suite import TaskResult

POLICIES = 4
"""Policies whose results are kept: current, candidate, and those before them."""

Result = TypeVar("Result")
Key = tuple[str, str | None]
"""Digest of the base model, digest of the adapter (None: the base alone)."""


class Remembered:
    """``inner``, with the results of the last ``POLICIES`` policies kept."""

    def __init__(self, inner: Suite) -> None:
        self._inner = inner
        self._tasks: OrderedDict[Key, list[TaskResult]] = OrderedDict()
        self._checks: OrderedDict[Key, list[CheckResult]] = OrderedDict()

    async def base_digest(self) -> str:
        return await self._inner.base_digest()

    async def prepare(
        self, digest: str | None, object_prefix: str, manifest_sha256: str | None = None
    ) -> None:
        """Verified and loaded again each time: a file may have been changed since."""
        await self._inner.prepare(digest, object_prefix, manifest_sha256)

    async def run_suite(self, digest: str | None) -> list[TaskResult]:
        return await self._once(self._tasks, digest, self._inner.run_suite)

    async def run_checks(self, digest: str | None) -> list[CheckResult]:
        return await self._once(self._checks, digest, self._inner.run_checks)

    async def _once(
        self,
        kept: OrderedDict[Key, list[Result]],
        digest: str | None,
        ask: Callable[[str | None], Awaitable[list[Result]]],
    ) -> list[Result]:
        """A copy of what is kept of this policy, now the last to be dropped; asked for where nothing is."""
        key = await self._key(digest)
        if key is None:
            return await ask(digest)
        if key not in kept:
            kept[key] = await ask(digest)
        kept.move_to_end(key)
        while len(kept) > POLICIES:
            kept.popitem(last=False)
        return list(kept[key])

    async def _key(self, digest: str | None) -> Key | None:
        """None, and nothing is remembered, where the engine does not say what its base model is."""
        try:
            return await self.base_digest(), digest
        except EngineError:
            return None

    async def finish(self) -> None:
        await self._inner.finish()
