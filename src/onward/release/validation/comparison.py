"""Compares candidate and current on the items of one suite; the host of both policies.

The difference is the paired mean difference of success. Its interval and the exact test of McNemar are shown
beside it. An item that one policy brought to no judgement, by an error or an answer that cannot be parsed, is
an item that it failed; one that the judge could not judge leaves the comparison on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from onward.errors import TrainingError
from onward.release.record import Model
from onward.release.validation.probe_prompts import CheckResult
from onward.suites import paired
from onward.suites.statistics import sign_test
from onward.suites.suite import ItemResult, OnItem

Pairs = Sequence[tuple[ItemResult, ItemResult]]
"""Results of the candidate and of the current model for the same item; both count."""


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


@dataclass(frozen=True)
class Unjudged:
    """Items without a judgement, by id."""

    left_out: tuple[str, ...] = ()
    """Items that leave the comparison: neither model's was judged, or the judge is at fault."""
    candidate: int = 0
    """Items of ``left_out`` that were not judged for the candidate; ``current``: for current."""
    current: int = 0
    failed: tuple[str, ...] = ()
    """Items that count as failed for the candidate: current's was judged, and the candidate is at fault."""
    failed_current: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """Returns the counts, and the ids of the items."""
        return {
            "candidate": self.candidate,
            "current": self.current,
            "items": len(self.left_out),
            "left_out": list(self.left_out),
            "failed": list(self.failed),
            "failed_current": list(self.failed_current),
        }


def pair(
    candidate: Sequence[ItemResult], current: Sequence[ItemResult], *, faults: bool = True
) -> tuple[Pairs, Unjudged]:
    """Returns the pairs that count, and the items that could not be judged. Without ``faults`` every item
    that was not judged on both sides is left out. Raises TrainingError("DATA") if the two did not play the
    same items."""
    before = {result.item_id: result for result in current}
    if not candidate or {result.item_id for result in candidate} != set(before):
        raise TrainingError(
            "DATA", "Candidate and current were validated on different tasks: run both on the same suite."
        )
    every = [(result, before[result.item_id]) for result in candidate]
    kept: list[tuple[ItemResult, ItemResult]] = []
    left: list[tuple[ItemResult, ItemResult]] = []
    failed: tuple[list[str], list[str]] = [], []
    for new, old in every:
        if new.score is not None and old.score is not None:
            kept.append((new, old))
        elif faults and new.score is None and old.score is not None and new.fault == "policy":
            failed[0].append(new.item_id)
            kept.append((_as_failed(new), old))
        elif faults and old.score is None and new.score is not None and old.fault == "policy":
            failed[1].append(old.item_id)
            kept.append((new, _as_failed(old)))
        else:
            left.append((new, old))
    return kept, Unjudged(
        tuple(new.item_id for new, _ in left),
        sum(new.score is None for new, _ in left),
        sum(old.score is None for _, old in left),
        tuple(failed[0]),
        tuple(failed[1]),
    )


def _as_failed(result: ItemResult) -> ItemResult:
    return replace(result, score=0.0, success=False, note=f"not judged, so failed: {result.note}")


def counts_of(pairs: Pairs) -> tuple[int, int, int]:
    """Returns the items that only the candidate solves, those that only current solves, and all."""
    better = sum(new.success and not old.success for new, old in pairs)
    worse = sum(old.success and not new.success for new, old in pairs)
    return better, worse, len(pairs)


def compare(pairs: Pairs) -> Comparison:
    """Compares the two on items of one suite; there must be one at least."""
    better, worse, items = counts_of(pairs)
    low, high = paired.interval((better, worse, items))
    by_kind: dict[str, dict[str, float]] = {}
    for kind in sorted({new.kind for new, _ in pairs}):
        members = [(new, old) for new, old in pairs if new.kind == kind]
        by_kind[kind] = {
            "candidate": sum(new.success for new, _ in members) / len(members),
            "current": sum(old.success for _, old in members) / len(members),
        }
    return Comparison(
        tasks=items,
        candidate=sum(new.success for new, _ in pairs) / items,
        current=sum(old.success for _, old in pairs) / items,
        difference=(better - worse) / items,
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

    async def other_tasks(self, names: Sequence[str]) -> list[str]:
        """Names of suites, with ``auto`` replaced by the environments in which no model was trained."""
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

    async def run_suite(
        self,
        name: str,
        digest: str | None,
        done: Mapping[str, ItemResult] | None = None,
        on_result: OnItem | None = None,
    ) -> list[ItemResult]:
        """Results of one policy in the suite of that name: the same items for every policy until ``finish``.

        Items that are ``done`` are not played again if the suite can leave items out; it then calls
        ``on_result`` with each new result as it will be returned.
        """
        ...

    async def run_checks(self, digest: str | None) -> list[CheckResult]: ...

    async def finish(self) -> None:
        """Releases what was made available."""
        ...
