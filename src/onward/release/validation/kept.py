"""Results of a validation on disk: an item is stored as it finishes, and no policy plays it twice.

A result is a function of policy, item and seed, so one that is stored is as good as a new one: after a
restart a validation goes on, and the candidate of one release is not played again as current of the next.
``validations/items/`` of the data folder has a file per finished run, and a folder with a file per item of a
run that is under way. Invariant: only whole results are found there; an item without a score has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar

from onward import __version__
from onward.errors import EngineError
from onward.files import read_json, write_whole
from onward.release.record import Model
from onward.release.validation.comparison import Suite
from onward.release.validation.probe_prompts import CheckResult
from onward.suites.suite import ItemResult, OnItem
from onward.telemetry import logs

log = logs.get("releaser")
Result = TypeVar("Result", ItemResult, CheckResult)
FOLDER = Path("validations") / "items"
RUNS = 64
"""Number of runs that are stored; the one that was used least recently goes first."""


class KeptResults:
    """The results of runs, by key. What cannot be read counts as not stored."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def whole(self, key: str) -> list[dict[str, Any]] | None:
        """Returns the results of a finished run. It now counts as used last."""
        path = self._folder / f"{key}.json"
        found = read_json(path)
        if not isinstance(found, list):
            return None
        with contextlib.suppress(OSError):  # another process removed it since
            os.utime(path)
        return found

    def finish(self, key: str, results: Iterable[Mapping[str, Any]]) -> None:
        """Stores the results of a finished run in one file, in place of those of its items."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(self._folder / f"{key}.json", json.dumps(list(results)).encode(), 0o600)
        shutil.rmtree(self._folder / key, ignore_errors=True)
        self._prune()

    def items(self, key: str) -> list[dict[str, Any]]:
        """Returns the results of a run that did not finish."""
        paths = sorted((self._folder / key).glob("*.json"))
        return [found for found in map(read_json, paths) if isinstance(found, dict)]

    def put(self, key: str, item_id: str, result: Mapping[str, Any]) -> None:
        """Stores the result of one item, durably."""
        for folder in (self._folder, self._folder / key):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = hashlib.sha256(item_id.encode()).hexdigest()[:32]
        write_whole(self._folder / key / f"{name}.json", json.dumps(result).encode(), 0o600)

    def drop(self, key: str) -> None:
        """Removes a run."""
        (self._folder / f"{key}.json").unlink(missing_ok=True)
        shutil.rmtree(self._folder / key, ignore_errors=True)

    def _prune(self) -> None:
        runs = sorted(self._folder.iterdir(), key=_used_at, reverse=True)
        for path in runs[RUNS:]:
            self.drop(path.name.removesuffix(".json"))


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # another process removed it


def _made(kind: type[Result], stored: Iterable[Any] | None) -> list[Result] | None:
    """Returns the stored results; None if there are none, or if one is not of the form of this version."""
    try:
        return None if stored is None else [kind(**one) for one in stored]
    except TypeError:
        return None


class KeptSuite:
    """A suite that plays each item once, and goes on where an earlier process stopped.

    Results are stored under the digests of base model, adapter and items, so that other items are never
    compared. Nothing is stored of an engine that does not name its base model.
    """

    def __init__(
        self, inner: Suite, folder: Path, *, fresh: bool = False, on_item: OnItem | None = None
    ) -> None:
        """``fresh``: earlier results are dropped. ``on_item``: called for items that are not played again."""
        self._inner, self._kept = inner, KeptResults(folder)
        self._fresh, self._on_item = fresh, on_item
        self._dropped: set[str] = set()
        self.known = 0
        """Number of items that were not played again."""

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

    async def other_tasks(self, names: Sequence[str]) -> list[str]:
        return await self._inner.other_tasks(names)

    async def purpose(self, name: str) -> Literal["benchmark", "safety"]:
        return await self._inner.purpose(name)

    async def suite_digest(self, name: str) -> str:
        return await self._inner.suite_digest(name)

    async def suite_facts(self, name: str) -> dict[str, Any]:
        return await self._inner.suite_facts(name)

    async def keep_report(self, name: str, digest: str | None, report: dict[str, Any]) -> str:
        return await self._inner.keep_report(name, digest, report)

    async def run_suite(
        self,
        name: str,
        digest: str | None,
        done: Mapping[str, ItemResult] | None = None,
        on_result: OnItem | None = None,
    ) -> list[ItemResult]:
        """Results of one policy: stored ones, and those of the items that have none yet."""
        key = await self._key(f"{name}@{await self._inner.suite_digest(name)}", digest)
        if key is None:
            return await self._inner.run_suite(name, digest, done, on_result)
        whole = _made(ItemResult, await asyncio.to_thread(self._kept.whole, key))
        if whole is not None:
            return self._again(whole)
        items = await asyncio.to_thread(self._kept.items, key)
        stored = [made for one in items for made in _made(ItemResult, [one]) or ()]
        writing: set[asyncio.Task[None]] = set()

        def finished(result: ItemResult) -> None:
            if _is_final(result):
                writing.add(asyncio.create_task(self._put(key, result)))

        self._again(stored)
        try:
            done = {one.item_id: one for one in stored}
            found = await self._inner.run_suite(name, digest, done, finished)
        finally:
            await asyncio.gather(*writing, return_exceptions=True)
        if all(map(_is_final, found)):
            await self._finish(key, [asdict(one) for one in found])
        return found

    async def run_checks(self, digest: str | None) -> list[CheckResult]:
        key = await self._key("checks", digest)
        whole = None
        if key is not None:
            whole = _made(CheckResult, await asyncio.to_thread(self._kept.whole, key))
        if whole is not None:
            return whole
        found = await self._inner.run_checks(digest)
        if key is not None:
            await self._finish(key, [asdict(one) for one in found])
        return found

    def _again(self, results: list[ItemResult]) -> list[ItemResult]:
        self.known += len(results)
        for result in results if self._on_item is not None else ():
            assert self._on_item is not None
            self._on_item(result)
        return results

    async def _put(self, key: str, result: ItemResult) -> None:
        try:
            await asyncio.to_thread(self._kept.put, key, result.item_id, asdict(result))
        except (OSError, TypeError, ValueError) as error:  # the item is played again then
            log.warning("the result of an item was not stored", item_id=result.item_id, error=str(error))

    async def _finish(self, key: str, results: list[dict[str, Any]]) -> None:
        try:
            await asyncio.to_thread(self._kept.finish, key, results)
        except (OSError, TypeError, ValueError) as error:
            log.warning("the results of a suite were not stored", error=str(error))

    async def _key(self, what: str, digest: str | None) -> str | None:
        """Returns the key of a run; None, so that nothing is stored, if the engine reports no base model."""
        try:
            base = await self.base_digest()
        except EngineError:
            return None
        text = json.dumps([__version__, base, digest, what])
        key = hashlib.sha256(text.encode()).hexdigest()[:40]
        if self._fresh and key not in self._dropped:
            self._dropped.add(key)
            await asyncio.to_thread(self._kept.drop, key)
        return key

    async def finish(self) -> None:
        await self._inner.finish()


def _is_final(result: ItemResult) -> bool:
    """Returns whether the result is stored. One without a score is not, whoever is at fault: a timeout on a
    busy machine would count against this model in every comparison that follows."""
    return result.score is not None
