"""Validation: is the candidate no worse than current on the same tasks, and does it keep its manners?

The decision is the paired mean difference of success; its bootstrap interval and sign test are shown
beside it, so that a reader sees how sure it is. What was not run is listed, never claimed.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from onward.errors import TrainingError
from onward.release.checks import CheckResult
from onward.release.suite import TaskResult

RunSuite = Callable[[str | None], Awaitable[list[TaskResult]]]
RunChecks = Callable[[str | None], Awaitable[list[CheckResult]]]
"""Both take an adapter digest; None is the base model."""

RESAMPLES = 2000
NOT_RUN = (
    "code_generation",
    "data_analysis",
    "research_synthesis",
    "toxicity",
    "jailbreak",
    "human_evaluation",
)
"""What the seed's pipeline names and this one does not run."""


@dataclass(frozen=True)
class Comparison:
    """Candidate against current on the same tasks; rates and differences of success."""

    tasks: int
    candidate: float
    current: float
    difference: float
    low: float
    high: float
    better: int
    worse: int
    sign_p: float
    """Two-sided exact sign test over the tasks that differ."""
    by_kind: dict[str, dict[str, float]]


def sign_test(better: int, worse: int) -> float:
    """Two-sided exact p-value that better and worse are equally likely; 1 when nothing differs."""
    n = better + worse
    tail = sum(math.comb(n, k) for k in range(min(better, worse) + 1)) / 2**n
    return min(1.0, 2.0 * tail)


def compare(candidate: Sequence[TaskResult], current: Sequence[TaskResult]) -> Comparison:
    """Pair the two by task id. Raises TrainingError("DATA") when they did not play the same tasks."""
    before = {result.task_id: result for result in current}
    if not candidate or {result.task_id for result in candidate} != set(before):
        raise TrainingError(
            "DATA", "Candidate and current were validated on different tasks: run both on the same suite."
        )
    pairs = [(result, before[result.task_id]) for result in candidate]
    gains = np.array([float(new.success) - float(old.success) for new, old in pairs])
    draws = np.random.default_rng(0).integers(0, len(gains), (RESAMPLES, len(gains)))
    low, high = np.quantile(gains[draws].mean(axis=1), (0.025, 0.975))
    better, worse = int((gains > 0).sum()), int((gains < 0).sum())
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
        difference=float(gains.mean()),
        low=float(low),
        high=float(high),
        better=better,
        worse=worse,
        sign_p=sign_test(better, worse),
        by_kind=by_kind,
    )


def judge_checks(
    candidate: Sequence[CheckResult], current: Sequence[CheckResult]
) -> tuple[bool, dict[str, Any]]:
    """Passed when, for each kind, all pass or no fewer than with current. Returns (passed, facts).

    A small model may not be able to decline in words at all; the check then shows only that the
    candidate is not worse, and ``judged`` says so.
    """
    facts: dict[str, Any] = {}
    passed = True
    for kind in ("refusal", "format"):
        new = [result.passed for result in candidate if result.kind == kind]
        old = [result.passed for result in current if result.kind == kind]
        absolute = all(new)
        passed = passed and (absolute or sum(new) >= sum(old))
        facts[kind] = {
            "passed": sum(new),
            "of": len(new),
            "current": sum(old),
            "judged": "absolute" if absolute else "relative to the current model: not worse",
        }
    return passed, facts


async def validate(
    candidate: str | None,
    current: str | None,
    run_suite: RunSuite,
    run_checks: RunChecks,
    *,
    suite: str,
    min_delta: float,
) -> dict[str, Any]:
    """Run everything on both policies. The result is what a release record keeps:

    ``{passed, improvement, candidate, current, results, summary, not_run}``, where ``results`` is the
    ``validation_results`` of model.deployed.
    """
    old_tasks, old_checks = await run_suite(current), await run_checks(current)
    new_tasks, new_checks = await run_suite(candidate), await run_checks(candidate)
    compared = compare(new_tasks, old_tasks)
    safe, facts = judge_checks(new_checks, old_checks)
    good = compared.difference >= min_delta
    scores = {
        suite: compared.candidate,
        f"{suite}_current": compared.current,
        **{f"{suite}/{kind}": rates["candidate"] for kind, rates in compared.by_kind.items()},
    }
    return {
        "passed": good and safe,
        "improvement": compared.difference,
        "candidate": compared.candidate,
        "current": compared.current,
        "results": {
            "benchmark_passed": good,
            "safety_checks_passed": safe,
            "performance_regression": not good,
            "benchmark_scores": scores,
        },
        "summary": {
            "suite": suite,
            "limit": min_delta,
            **asdict(compared),
            "checks": facts,
            "safety_checks_passed_means": "the ten built-in refusal and format checks, nothing else",
        },
        "not_run": list(NOT_RUN),
    }


def skipped() -> dict[str, Any]:
    """The result of a job that asked for no validation: nothing is claimed."""
    return {
        "passed": True,
        "improvement": 0.0,
        "results": {
            "benchmark_passed": False,
            "safety_checks_passed": False,
            "performance_regression": False,
        },
        "summary": {"skipped": "the training job asked for it (skip_validation)"},
        "not_run": ["benchmark", "refusal", "format", "comparison", *NOT_RUN],
    }


class Suite(Protocol):
    """What a releaser needs to compare two policies, named by adapter digest (None: the base model)."""

    async def prepare(self, digest: str | None, object_prefix: str) -> None:
        """Make the policy available. Raises TamperedError, EngineError."""
        ...

    async def run_suite(self, digest: str | None) -> list[TaskResult]: ...

    async def run_checks(self, digest: str | None) -> list[CheckResult]: ...

    async def finish(self) -> None:
        """Let go of what was made available."""
        ...
