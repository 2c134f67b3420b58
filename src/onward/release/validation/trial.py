"""Runs the validation of one release as a task beside the ticks, so that commands are read meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, TypeVar

from onward.config import Settings
from onward.errors import EngineError, OnwardError
from onward.lru import Lru
from onward.release.record import Model, ReleaseRecord
from onward.release.validation import verdict
from onward.release.validation.comparison import Suite
from onward.release.validation.probe_prompts import CheckResult
from onward.suites.suite import ItemResult
from onward.telemetry import logs

log = logs.get("releaser")
TRIES = 3
"""Number of attempts if the engine is away. Any other failure ends the validation at once."""

SENTENCE = 200


class Trial:
    """Starts on the first ``poll``; ``stop`` discards it. An error in the validation is the candidate's
    result and never ends the releaser."""

    def __init__(self, suite: Suite, settings: Settings) -> None:
        self._suite = suite
        self._rules = verdict.Rules.from_settings(settings)
        self._task: asyncio.Task[dict[str, Any]] | None = None
        self._tries = 0

    async def poll(self, record: ReleaseRecord) -> dict[str, Any] | tuple[str, str] | None:
        """Returns the result, or (reason, words) if there is none, or None while it runs."""
        if record.skip_validation:
            return verdict.skipped(self._rules)
        if self._task is None:
            self._task = asyncio.create_task(self._run(record), name="validation")
        if not self._task.done():
            return None
        task, self._task = self._task, None
        try:
            return task.result()
        except EngineError as error:
            self._tries += 1
            log.warning("validation failed to run", error=str(error), tries=self._tries)
            words = f"the engine failed {self._tries} times while it was validated: {error}"
            return ("engine_failed", words) if self._tries >= TRIES else None
        except OnwardError as error:
            return "not_validated", _stopped(error, str(error))
        except Exception as error:  # a defect, in the suite or in its handling of the candidate's output
            log.error("validation stopped on a defect", release_id=record.release_id, exc_info=error)
            return "not_validated", _stopped(error, _sentence(error))

    async def stop(self) -> None:
        task, self._task = self._task, None
        self._tries = 0
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, record: ReleaseRecord) -> dict[str, Any]:
        if not self._rules.suites and not self._rules.other_tasks:
            return await verdict.validate(None, None, self._suite, self._rules)
        try:
            await self._suite.begin(record.candidate, record.current)
            for model in (record.current, record.candidate):
                await self._suite.prepare(model.adapter_digest, model.object_prefix, model.manifest_sha256)
            candidate, current = record.candidate.adapter_digest, record.current.adapter_digest
            return await verdict.validate(candidate, current, self._suite, self._rules)
        finally:
            await self._suite.finish()


def _stopped(error: Exception, words: str) -> str:
    return f"its validation stopped ({type(error).__name__}: {words.rstrip('.')})"


def _sentence(error: Exception) -> str:
    """Returns the first line of the error's text, short enough for an alert."""
    lines = str(error).strip().splitlines()
    return lines[0][:SENTENCE] if lines else "no words"


POLICIES = 4
"""Number of policies whose results are cached, for each suite: current, candidate, and those before them."""

Result = TypeVar("Result")
Key = tuple[str, str | None]
"""Digest of the base model, digest of the adapter (None: the base alone)."""
SUITES = 16
"""Number of suites whose results are cached."""


class CachedSuite:
    """A suite that runs each policy once: the current model was the candidate of an earlier release.

    A result is a function of policy, task and seed, so a second run would give the same results. The last
    ``POLICIES`` policies are cached in memory; after a restart the suite runs again.
    """

    def __init__(self, inner: Suite) -> None:
        self._inner = inner
        self._items: Lru[str, Lru[Key, list[ItemResult]]] = Lru(SUITES)
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

    async def begin(self, *models: Model) -> None:
        await self._inner.begin(*models)

    async def purpose(self, name: str) -> Literal["benchmark", "safety"]:
        return await self._inner.purpose(name)

    async def suite_digest(self, name: str) -> str:
        return await self._inner.suite_digest(name)

    async def suite_facts(self, name: str) -> dict[str, Any]:
        return await self._inner.suite_facts(name)

    async def keep_report(self, name: str, digest: str | None, report: dict[str, Any]) -> str:
        return await self._inner.keep_report(name, digest, report)

    async def run_suite(self, name: str, digest: str | None) -> list[ItemResult]:
        """Results are cached under the suite's digest, so that other items are never compared."""
        suite = f"{name}@{await self._inner.suite_digest(name)}"
        if suite not in self._items:
            self._items[suite] = Lru(POLICIES)
        return await self._once(self._items[suite], digest, partial(self._inner.run_suite, name))

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
