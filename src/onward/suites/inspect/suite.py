"""An Inspect task as a suite: run in a child process, which alone imports Inspect.

Inspect brings packages that a service need not have, and some of them clash with the service's own. So the
child may run in another environment: ``ONWARD_EVAL_PYTHON`` names its interpreter.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from onward import children
from onward.errors import ConfigError, EngineError, MissingExtraError
from onward.processes import COMPUTING, child_environment
from onward.spelling import closest_name
from onward.suites.finding import Sources
from onward.suites.inspect.outcome import UNREACHED
from onward.suites.suite import Endpoint, ItemResult, OnItem

PYTHON_VARIABLE = "ONWARD_EVAL_PYTHON"
"""Variable with the interpreter of an environment that has the extra ``eval``. Unset: the service's own."""
_MODULE = "onward.suites.inspect.child"
_DESCRIBE_SECONDS = 120.0
_END_SECONDS = 5.0
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "INSPECT_TELEMETRY": "", "NO_PROXY": "*"}
_AWAY = (*UNREACHED, "APITimeoutError", "Request timed out", "Error code: 5")
"""Beginnings of the errors of a sample whose cause is the endpoint, not the item."""


class InspectSuite:
    """Any Inspect task by name, as a suite of Onward."""

    def __init__(
        self,
        name: str,
        task: str,
        purpose: Literal["benchmark", "safety"] = "benchmark",
        folder: Path = Path("data"),
        *,
        limit: int | None = None,
        at_once: int = 32,
        max_tokens: int = 512,
        solved_at: float = 1.0,
        python: str | None = None,
    ) -> None:
        """``task`` is ``package/task`` of an installed package, ``onward/NAME``, or ``module:function``.
        ``folder`` receives Inspect's log files and the child's error output.

        ``limit``: the first so many items alone. ``solved_at``: the least score of a solved item.
        """
        self.name, self.purpose = name, purpose
        self._task, self._folder = task, folder
        self._limit, self._at_once, self._max_tokens = limit, at_once, max_tokens
        self._solved_at = solved_at
        self._python = python or os.environ.get(PYTHON_VARIABLE) or sys.executable

    @property
    def size(self) -> int:
        """Number of items. Starts the child once. Raises ConfigError."""
        return int(self._description["size"])

    def digest(self) -> str:
        """Returns the digest of the task's items and judgement. Starts the child once. Raises ConfigError."""
        return str(self._description["digest"])

    @cached_property
    def _description(self) -> dict[str, Any]:
        try:
            done = subprocess.run(
                [self._python, "-m", _MODULE, "describe", self._request()],
                env=child_environment(*COMPUTING, **_OFFLINE),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_DESCRIBE_SECONDS,
                check=False,
            )
        except FileNotFoundError as error:
            raise self._no_python() from error
        except subprocess.TimeoutExpired as error:
            raise ConfigError(
                f"The Inspect task {self._task!r} was not loaded within {_DESCRIBE_SECONDS:.0f} s: choose a "
                f"task whose data is on this machine."
            ) from error
        event = _last_event(done.stdout.splitlines())
        if event is None or event["event"] != "described":
            raise self._refusal(event, done.stderr.decode(errors="replace"))
        return event

    async def run(self, policy: Endpoint, *, seed: int, on_item: OnItem | None = None) -> list[ItemResult]:
        """Returns one result per item, in the task's order."""
        await _probe(policy)
        try:
            child = await children.start(
                _MODULE,
                *("run", self._request(policy, seed)),
                log=self._log,
                environment=_OFFLINE
                | {"ONWARD_EVAL_API_KEY": policy.key, "ONWARD_EVAL_BASE_URL": policy.base_url},
                passed=COMPUTING,
                group=True,
                python=self._python,
            )
        except FileNotFoundError as error:
            raise self._no_python() from error
        order: Sequence[str] = ()
        found: dict[str, ItemResult] = {}
        last: dict[str, Any] | None = None
        try:
            async for event in children.events(child):
                match event.get("event"):
                    case "started":
                        order = event["items"]
                    case "item":
                        result = self._result(event)
                        found[result.item_id] = result
                        if on_item is not None:
                            on_item(result)
                    case "done" | "refused":
                        last = event
            await child.wait()
        finally:
            await children.end(child, _END_SECONDS)
        if last is None or last["event"] != "done":
            raise self._refusal(last, "")
        results = [found.get(one) or _missing(one, self.name) for one in order]
        _refuse_if_away(results, policy)
        return results

    @property
    def _log(self) -> Path:
        return self._folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '-', self.name)}.log"

    def _request(self, policy: Endpoint | None = None, seed: int = 0) -> str:
        return json.dumps(
            {
                "task": self._task,
                "limit": self._limit,
                "model": "" if policy is None else policy.model,
                "seed": seed,
                "at_once": self._at_once,
                "max_tokens": self._max_tokens,
                "folder": str(self._folder.absolute()),
            }
        )

    def _result(self, event: Mapping[str, Any]) -> ItemResult:
        score = event["score"]
        return ItemResult(
            item_id=event["item_id"],
            kind=event["kind"] or self.name,
            score=score,
            success=score is not None and score >= self._solved_at,
            transcript=tuple(event["transcript"]),
            note=event["note"],
            fault=event.get("fault", "policy"),
        )

    def _refusal(self, event: Mapping[str, Any] | None, trace: str) -> ConfigError:
        if event is None or event["event"] != "refused":
            reason = trace.strip().splitlines()[-1:] or [f"see {self._log}"]
            return ConfigError(f"The Inspect task {self._task!r} ended without a result: {reason[0][:300]}.")
        if event["code"] == "extra":
            return ConfigError(
                f"{MissingExtraError('eval', f'Suite {self.name!r}')} In an environment of its own, name its "
                f"interpreter in {PYTHON_VARIABLE}."
            )
        if event["code"] == "unknown":
            near = closest_name(self._task, event["known"])
            known = ", ".join(event["known"])
            hint = f"did you mean {near!r}?" if near else f"give one of {known or 'a module that exists'}."
            return ConfigError(f"No installed package has an Inspect task {self._task!r}: {hint}")
        return ConfigError(f"The Inspect task {self._task!r} cannot run here: {event['why']}.")

    def _no_python(self) -> ConfigError:
        return ConfigError(
            f"The interpreter {self._python!r} for Inspect does not exist: correct {PYTHON_VARIABLE}."
        )


async def make(rest: str, sources: Sources) -> InspectSuite:
    """Makes the suite ``inspect:TASK``, and loads the task once. Raises ConfigError."""
    data_dir = sources.data_dir or Path("data")
    suite = InspectSuite(f"inspect:{rest}", rest, folder=data_dir / "suites" / "inspect", limit=sources.items)
    await asyncio.to_thread(suite.digest)
    return suite


async def _probe(policy: Endpoint) -> None:
    """Raises EngineError if nothing listens at the endpoint, before a child is started for it."""
    parts = urlsplit(policy.base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(10.0):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError) as error:
        raise EngineError(f"The endpoint {policy.base_url} does not answer: {error}.") from error
    writer.close()


def _last_event(lines: Sequence[bytes]) -> dict[str, Any] | None:
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            return event
    return None


def _missing(item_id: str, name: str) -> ItemResult:
    note = "Inspect reported no result of this item."
    return ItemResult(item_id, name, None, False, note=note, fault="judge")


def _refuse_if_away(results: Sequence[ItemResult], policy: Endpoint) -> None:
    """Raises EngineError if no item has a score and the endpoint is the reason."""
    if results and all(one.score is None and one.note.startswith(_AWAY) for one in results):
        raise EngineError(f"The endpoint {policy.base_url} answered no item: {results[0].note}")
