"""Compares candidate and current on the items of one suite; the host of both policies.

The difference is the paired mean difference of success. Its bootstrap interval and the exact test of McNemar
are shown beside it. An item that could not be judged for one of the two leaves the comparison on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from onward.errors import TrainingError
from onward.release.record import Model
from onward.release.validation.probe_prompts import CheckResult
from onward.suites.statistics import interval, sign_test
from onward.suites.suite import ItemResult

Z95 = 1.96
"""Normal quantile of a two-sided interval of 95 %."""
NONE_LEFT = {"candidate": 0, "current": 0, "items": 0}
"""Items that were not judged, of a suite where all were."""
Pairs = Sequence[tuple[ItemResult, ItemResult]]
"""Results of the candidate and of the current model for the same item; both were judged."""


@dataclass(frozen=True)
class Comparison:
    """Candidate against current on the same items; rates and differences of success."""

    tasks: int
    candidate: float
    current: float
    difference: float
    low: float
    high: float
    better: int
    worse: int
    sign_p: float
    """Two-sided exact p-value of McNemar's test, which is a sign test over the items that differ."""
    by_kind: dict[str, dict[str, float]]


def pair(candidate: Sequence[ItemResult], current: Sequence[ItemResult]) -> tuple[Pairs, dict[str, int]]:
    """Returns the pairs that were judged on both sides, and how many items were not: for each model, and in
    all. Raises TrainingError("DATA") if the two did not play the same items."""
    before = {result.item_id: result for result in current}
    if not candidate or {result.item_id for result in candidate} != set(before):
        raise TrainingError(
            "DATA", "Candidate and current were validated on different tasks: run both on the same suite."
        )
    every = [(result, before[result.item_id]) for result in candidate]
    kept = [(new, old) for new, old in every if new.score is not None and old.score is not None]
    unscored = {
        "candidate": sum(new.score is None for new, _ in every),
        "current": sum(old.score is None for _, old in every),
        "items": len(every) - len(kept),
    }
    return kept, unscored


def gains(pairs: Pairs) -> np.ndarray:
    """Returns 1 for each item that only the candidate solves, -1 where only current does, else 0."""
    return np.array([float(new.success) - float(old.success) for new, old in pairs])


def items_needed(compared: Comparison, limit: float) -> int | None:
    """Returns about how many items it takes until the interval's lower end is not below ``limit``, if rates
    and differing items stay as they are; None where no number helps, since the difference is not above it."""
    room = compared.difference - limit
    if room <= 0:
        return None
    spread = (compared.better + compared.worse) / compared.tasks - compared.difference**2
    return math.ceil(Z95**2 * spread / room**2)


def differing_share(items: int, limit: float) -> float:
    """Returns the largest share of items on which two equal models may differ, so that the interval's lower
    end of ``items`` items is not below ``limit``."""
    return min(1.0, items * (limit / Z95) ** 2)


def compare(pairs: Pairs) -> Comparison:
    """Compares the two on items of one suite; there must be one at least."""
    found = gains(pairs)
    low, high = interval([found])
    better, worse = int((found > 0).sum()), int((found < 0).sum())
    by_kind: dict[str, dict[str, float]] = {}
    for kind in sorted({new.kind for new, _ in pairs}):
        members = [(new, old) for new, old in pairs if new.kind == kind]
        by_kind[kind] = {
            "candidate": sum(new.success for new, _ in members) / len(members),
            "current": sum(old.success for _, old in members) / len(members),
        }
    return Comparison(
        tasks=len(pairs),
        candidate=sum(new.success for new, _ in pairs) / len(pairs),
        current=sum(old.success for _, old in pairs) / len(pairs),
        difference=float(found.mean()),
        low=low,
        high=high,
        better=better,
        worse=worse,
        sign_p=sign_test(better, worse),
        by_kind=by_kind,
    )


class Suite(Protocol):
    """Interface to compare two policies, named by adapter digest (None: the base model)."""

    async def base_digest(self) -> str:
        """Digest of the base model that the engine serves. Raises EngineError."""
        ...

    async def check_stored(
        self, digest: str | None, object_prefix: str, manifest_sha256: str | None = None
    ) -> None:
        """Checks that the policy can be loaded, as far as the store shows it.

        Raises NotFoundError or TamperedError if it cannot; EngineError or ObjectError if that is unknown.
        """
        ...

    async def prepare(
        self, digest: str | None, object_prefix: str, manifest_sha256: str | None = None
    ) -> None:
        """Makes the policy available. Raises TamperedError, EngineError."""
        ...

    async def begin(self, *models: Model) -> None:
        """Begins a comparison of these models: recorded tasks that one was trained on are left out."""
        ...

    async def purpose(self, name: str) -> Literal["benchmark", "safety"]:
        """Purpose of the suite of that name. Raises ConfigError, NotFoundError."""
        ...

    async def suite_digest(self, name: str) -> str:
        """Hash of the suite's items and judgement. Raises ConfigError, NotFoundError."""
        ...

    async def suite_facts(self, name: str) -> dict[str, Any]:
        """Facts about the choice of the suite's items, for the report."""
        ...

    async def keep_report(self, name: str, digest: str | None, report: dict[str, Any]) -> str:
        """Stores the red-team report of a candidate and returns its place."""
        ...

    async def run_suite(self, name: str, digest: str | None) -> list[ItemResult]:
        """Results of one policy in the suite of that name: the same items for every policy until
        ``finish``."""
        ...

    async def run_checks(self, digest: str | None) -> list[CheckResult]: ...

    async def finish(self) -> None:
        """Releases what was made available."""
        ...
