"""The story of a release in plain words: each decision, the gate that led, and the numbers at that time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from onward.release import wording
from onward.release.evidence.gates import WEIGHTS
from onward.release.explaining.replay import Decision, Replay
from onward.release.record import ReleaseRecord

E_MEANS = (
    "An E-value is the gain of a bet that the candidate is worse: it begins at 1 and stays small while the "
    "candidate is fine. Of fine candidates, {alpha:.1%} at most ever reach {limit:.1f} with all gates "
    "together, however often anybody looks."
)


def alpha_of(record: ReleaseRecord) -> float:
    """Returns the false-alarm budget of a release; that of an earlier version if it is not stored."""
    return float(((record.evidence or {}).get("rules") or {}).get("alpha") or 0.045)


def paragraphs(record: ReleaseRecord, replay: Replay | None) -> Iterator[str]:
    """Yields the story, one paragraph each. Without ``replay`` the decisions have no numbers of their own."""
    yield wording.what_happened(record)
    yield from _before_traffic(record)
    if record.evidence is not None:
        alpha = alpha_of(record)
        yield E_MEANS.format(alpha=alpha, limit=1 / alpha)
    decisions = replay.decisions if replay else [bare(line) for line in record.history]
    for number, decision in enumerate(decisions, 1):
        yield f"{number}. {_moment(decision.at)}  {decision.state}: {decision.why}."
        if decision.e_values:
            yield f"   {_numbers(decision, alpha_of(record))}"


def _before_traffic(record: ReleaseRecord) -> Iterator[str]:
    found = record.validation or {}
    summary = found.get("summary") or {}
    if "by_kind" in summary:
        yield f"Validation on {summary['tasks']} tasks: {wording.suite_counts(summary)}."
    elif found.get("verdict"):
        yield f"Validation: {wording.verdict_words(found)}."
    if found.get("off_policy"):
        yield off_policy_words(found["off_policy"])


def off_policy_words(estimate: Mapping[str, Any]) -> str:
    """Formats an off-policy estimate, or the reason why there is none."""
    if estimate.get("value") is None:
        return f"Before any traffic nothing is estimated from logged work: {estimate.get('reason')}."
    robust, second = estimate.get("doubly_robust"), ""
    if robust:
        second = f"doubly robust {robust['value']:.3f} [{robust['low']:.3f}, {robust['high']:.3f}]; "
    return (
        f"Estimated from logged work before any traffic: mean return {estimate['value']:.3f} "
        f"[{estimate['low']:.3f}, {estimate['high']:.3f}]; {second}the held-out tasks weigh as "
        f"much as {estimate['effective']:.1f}."
    )


def bare(line: Mapping[str, Any]) -> Decision:
    """Returns a line of a history as a decision without evidence."""
    return Decision(line["at"], line["state"], line["step"], line["why"])


def _numbers(decision: Decision, alpha: float) -> str:
    e_values = decision.e_values
    gate = max(WEIGHTS, key=lambda name: math.log(WEIGHTS[name]) + math.log(e_values[name]))
    return (
        f"E of all gates {wording.e_number(e_values['all'])} of {1 / alpha:.1f}; the {gate} gate weighs most "
        f"with E {wording.e_number(e_values[gate])}: {wording.RATES[gate](decision.rates)}."
    )


def _moment(text: str) -> str:
    return text[:19].replace("T", " ")
