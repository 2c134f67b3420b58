"""Runs the validation of one release as a task beside the ticks, so that commands are read meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

from onward.config import Settings
from onward.errors import EngineError, OnwardError
from onward.release.record import ReleaseRecord
from onward.release.validation import verdict
from onward.release.validation.comparison import Suite
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
