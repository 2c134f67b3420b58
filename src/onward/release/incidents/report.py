"""Report of an incident: failures of both arms in groups, and the rules that name cause and recommendation.

Pure. The failures are those that the gates judged, as the gateways signed them. A rule speaks only if most of
the candidate's failures have what it names; otherwise the cause is not known, and the report says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

LONG_CONTEXT = 4_096
"""Prompt tokens from which a context counts as long."""
MOST = 0.5
"""Share of the candidate's failures above which a group is its cause."""
LEAST = 3
"""Least failures for a cause: one failure is no pattern."""
GROUPS = ("error", "context", "domain", "tool")

Failure = Mapping[str, Any]
"""``{arm, error, context_tokens, domain, tool}``; what is not known is None."""


class Finding(NamedTuple):
    """Result of a rule."""

    cause: str
    recommendation: str


def context_of(failure: Failure) -> str | None:
    """Returns ``long`` or ``short``; None if the length is not known."""
    tokens = failure.get("context_tokens")
    if tokens is None:
        return None
    return "long" if tokens >= LONG_CONTEXT else "short"


def grouped(failures: Iterable[Failure]) -> dict[str, dict[str, dict[str, int]]]:
    """Returns group → value → arm → number of failures."""
    counts: dict[str, dict[str, Counter[str]]] = {group: {} for group in GROUPS}
    for failure in failures:
        values = {**failure, "context": context_of(failure)}
        for group in GROUPS:
            value = values.get(group)
            if value is not None:
                counts[group].setdefault(str(value), Counter())[failure["arm"]] += 1
    return {
        group: {
            value: {arm: number[arm] for arm in ("candidate", "current")}
            for value, number in sorted(found.items(), key=lambda item: (-item[1]["candidate"], item[0]))
        }
        for group, found in counts.items()
    }


def findings(code: str, failures: Sequence[Failure]) -> Finding:
    """Returns cause and recommendation. ``code`` is the release's reason in one word."""
    spike = {
        "high_error_rate": "Error rate spike",
        "performance_degradation": "Lower outcomes",
        "user_dissatisfaction": "Negative feedback",
    }.get(code, "Failures")
    own = [failure for failure in failures if failure["arm"] == "candidate"]
    if len(own) < LEAST:
        return Finding(
            f"{spike}: too few failing sessions with a known error ({len(own)}) to name a cause.",
            "Read failing trajectories of the candidate beside the current model's.",
        )
    error = _common(failure.get("error") for failure in own)
    if error == "out_of_memory":
        starved = [failure for failure in own if failure.get("error") == error]
        if _common(context_of(failure) for failure in starved) == "long":
            return Finding(
                f"{spike} caused by OOM on long context inputs.",
                "Retrain with gradient checkpointing enabled.",
            )
        return Finding(
            f"{spike} caused by OOM.",
            "Give the engine more memory, or a smaller batch, before the next release.",
        )
    if error == "timeout":
        return Finding(
            f"{spike} caused by timeouts.",
            "Limit the length of answers; compare the speed of both models.",
        )
    if error == "unparsable":
        return Finding(
            f"{spike} caused by answers that cannot be parsed.",
            "Retrain with more weight on the format of tool calls.",
        )
    for group, words in (("tool", "failures with the tool"), ("domain", "failures in the domain")):
        value = _common(failure.get(group) for failure in own)
        if value is not None:
            return Finding(
                f"{spike} caused by {words} {value}.", f"Retrain with more trajectories of that {group}."
            )
    if error == "lost":
        return Finding(
            f"{spike} caused by sessions without any outcome.",
            "Check that the agents still report results.",
        )
    return Finding(
        f"{spike}: the failures have no common error, context length, domain or tool.",
        "Read failing trajectories of the candidate beside the current model's.",
    )


def report(code: str, failures: Sequence[Failure], at: str) -> dict[str, Any]:
    """Returns the incident as the record of its release keeps it."""
    found = findings(code, failures)
    return {
        "at": at,
        "reason": code,
        "failures": {
            arm: sum(failure["arm"] == arm for failure in failures) for arm in ("candidate", "current")
        },
        "groups": grouped(failures),
        "cause": found.cause,
        "recommendation": found.recommendation,
    }


def sentence(incident: Mapping[str, Any]) -> str:
    """Formats cause and recommendation in one line."""
    return f"{incident['cause']} Recommendation: {incident['recommendation']}"


def _common(values: Iterable[Any]) -> Any:
    """Returns the value that more than ``MOST`` of all have; None if there is none, or if it is None."""
    every = list(values)
    value, number = Counter(every).most_common(1)[0]
    return value if number > MOST * len(every) else None
