"""A suite of the user's own: ``package.module:name``.

The name is a ``Suite``, a class or function without parameters that makes one, or a function ``async def
judge(policy, seed)`` that returns a result per item: ``ItemResult``, or a mapping with its fields. A plain
function runs in a thread, so it may use any client of OpenAI's API.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from onward import own_code
from onward.errors import ConfigError, NotFoundError, OnwardError
from onward.suites.finding import Sources
from onward.suites.suite import Endpoint, ItemResult, OnItem, Suite

FAULTS = ("policy", "judge")


class FunctionSuite:
    """The results of a user's function. Its size is known only after a run: 0 means unknown."""

    purpose: Literal["benchmark", "safety"] = "benchmark"
    size = 0

    def __init__(self, name: str, judge: Callable[[Endpoint, int], Any]) -> None:
        self.name = name
        self._judge: Any = judge

    def digest(self) -> str:
        """Returns the hash of the source file in which the function is defined."""
        file = inspect.getsourcefile(inspect.unwrap(self._judge))
        source = Path(file).read_bytes() if file else repr(self._judge).encode()
        return hashlib.sha256(self.name.encode() + b"\0" + source).hexdigest()

    async def run(self, policy: Endpoint, *, seed: int, on_item: OnItem | None = None) -> list[ItemResult]:
        """Returns what the function returns. Raises ConfigError if that is no list of results, or if
        the function raises."""
        try:
            if inspect.iscoroutinefunction(self._judge):
                found = await self._judge(policy, seed)
            else:
                found = await asyncio.to_thread(self._judge, policy, seed)
        except OnwardError:
            raise
        except Exception as error:  # a defect in the user's code: one sentence with its place
            raise ConfigError(
                f"{self.name} raised {own_code.sentence(error)}: correct the function."
            ) from error
        if not isinstance(found, list):
            raise ConfigError(
                f"{self.name} returned {type(found).__name__}: return a list with one result per item."
            )
        results = [self._result(one, number) for number, one in enumerate(found, 1)]
        if on_item is not None:
            for result in results:
                on_item(result)
        return results

    def _result(self, found: Any, number: int) -> ItemResult:
        if isinstance(found, Mapping):
            try:
                found = ItemResult(**{"kind": "item", **found})
            except TypeError:
                found = None
        if not isinstance(found, ItemResult) or not _in_range(found.score) or found.fault not in FAULTS:
            raise ConfigError(
                f"Result {number} of {self.name} cannot be used: give item_id, score (0 to 1, "
                f"or None if it could not be judged) and success; fault is 'policy' or 'judge'."
            )
        return found


def _in_range(score: Any) -> bool:
    if score is None:
        return True
    return isinstance(score, int | float) and math.isfinite(score) and 0.0 <= score <= 1.0


async def make(name: str, sources: Sources) -> Suite:
    """Makes the suite ``module:name``. Raises NotFoundError if it cannot be loaded, ConfigError if it is
    no suite and no function."""
    try:
        found = own_code.load(name)
    except ConfigError as error:
        raise NotFoundError(f"There is no suite {name!r} among the shipped ones. {error}") from error
    if not isinstance(found, type) and hasattr(found, "run"):
        return cast(Suite, found)
    if not callable(found):
        raise ConfigError(f"{name!r} is a {type(found).__name__}: expected a suite or a function.")
    if isinstance(found, type) or not inspect.signature(found).parameters:
        made: Any = found()
        if not hasattr(made, "run"):
            raise ConfigError(f"{name!r} made a {type(made).__name__}: expected something with 'run'.")
        return cast(Suite, made)
    return FunctionSuite(name, found)
