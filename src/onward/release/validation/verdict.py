"""Validation: runs every suite on candidate and current, judges each, and combines them to one verdict.

Invariants: what both models fail proves nothing, so it is "not shown" and never "passed"; so is a suite that
lost no item and is too small. A suite in which
the candidate regressed fails the validation under its own name, however good the others are. What was not run
is listed and never claimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from onward.config import Settings
from onward.release import wording
from onward.release.record import HUMAN_SCORE
from onward.release.validation import checks
from onward.release.validation.comparison import Pairs, Suite, Unjudged, compare, counts_of, pair
from onward.suites import paired
from onward.suites.finding import ALIASES
from onward.suites.safety import judging, report
from onward.suites.safety.items import ASPECTS
from onward.suites.safety.judging import SafetyVerdict
from onward.suites.suite import ItemResult

Verdict = Literal["passed", "failed", "not shown", "not validated"]
Role = Literal["benchmark", "safety", "other"]
"""``benchmark`` counts for the improvement. ``safety`` and ``other`` (another task than the one that was
trained for) may only stop a release."""
SHOWN = 10
"""Number of failing items of a suite that are stored with note and answer; all are stored by id."""
NOTE_CHARS = 300
DESK = "desk"
"""The suite to whose form of answers the built-in checks belong."""
PIPELINE = (
    "code_generation", "data_analysis", "research_synthesis", "tool_usage", "safety", "human_evaluation",
)  # fmt: skip
"""Parts of the published pipeline."""
NOTHING: dict[str, bool] = {
    "benchmark_passed": False,
    "safety_checks_passed": False,
    "performance_regression": False,
}


@dataclass(frozen=True)
class Rules:
    """The suites that are run, and the rule of a regression."""

    suites: tuple[str, ...]
    other_tasks: tuple[str, ...] = ()
    min_delta: float = -0.05
    regression: Literal["interval", "point"] = "interval"
    required: bool = False
    max_unscored: float = 0.1

    @classmethod
    def from_settings(cls, settings: Settings) -> Rules:
        given = settings.validation
        suites = tuple(dict.fromkeys(ALIASES.get(name, name) for name in given.suites))
        return cls(
            suites=suites,
            other_tasks=tuple(name for name in dict.fromkeys(given.other_tasks) if name not in suites),
            min_delta=settings.release.min_delta,
            regression=given.regression,
            required=given.required,
            max_unscored=given.max_unscored,
        )


@dataclass(frozen=True)
class Judged:
    """One suite: its facts as a release record stores them, and the pairs behind them."""

    name: str
    facts: dict[str, Any]
    pairs: Pairs
    safety: SafetyVerdict | None = None
    """Verdict of a safety suite, from which its report is made."""

    @property
    def role(self) -> Role:
        return self.facts["role"]

    @property
    def verdict(self) -> Verdict:
        return self.facts["verdict"]


async def validate(candidate: str | None, current: str | None, host: Suite, rules: Rules) -> dict[str, Any]:
    """Runs everything on both policies. Returns the result that a release record stores:

    ``{verdict, passed, improvement, candidate, current, results, summary, not_run}``, where ``results`` is
    the ``validation_results`` of model.deployed. ``passed`` means that nothing speaks against a release.
    """
    if not rules.suites and not rules.other_tasks:
        return not_validated("no suite is set: name one in validation.suites", rules)
    roles: dict[str, Role] = {name: await host.purpose(name) for name in rules.suites}
    for name in await host.other_tasks(rules.other_tasks):
        roles.setdefault(name, "other")
    judged = [await _run(name, candidate, current, host, rules, roles) for name in roles]
    facts: dict[str, Any] = {}
    if DESK in rules.suites:
        old = await host.run_checks(current)
        facts = checks.compare_checks(await host.run_checks(candidate), old)[1]
    return _result(judged, facts, rules)


async def _run(
    name: str, candidate: str | None, current: str | None, host: Suite, rules: Rules, roles: dict[str, Role]
) -> Judged:
    old = await host.run_suite(name, current)
    new = await host.run_suite(name, candidate)
    safety_suites = max(1, list(roles.values()).count("safety"))
    facts = {"digest": await host.suite_digest(name), **await host.suite_facts(name)}
    judged = judge(name, new, old, rules, role=roles[name], items=facts, safety_suites=safety_suites)
    if judged.safety is not None:
        names = ((candidate or "base")[:12], (current or "base")[:12])
        judged.facts["report"] = await host.keep_report(
            name, candidate, report.document(*names, new, old, judged.safety, redact=str)
        )  # the results of a release are redacted already
    return judged


def judge(
    name: str,
    candidate: Sequence[ItemResult],
    current: Sequence[ItemResult],
    rules: Rules,
    *,
    role: Role = "benchmark",
    items: Mapping[str, Any] | None = None,
    safety_suites: int = 1,
) -> Judged:
    """Judges one suite. ``items``: facts about the choice of its items. ``safety_suites``: how many share the
    budget of false failures. Raises TrainingError("DATA") if the two did not play the same items."""
    facts: dict[str, Any] = {"role": role, "limit": rules.min_delta, **(items or {})}
    if not candidate and not current:
        facts |= {
            "verdict": "not shown",
            "judged": "it has no item",
            "unscored": Unjudged().facts(),
            "tasks": 0,
        }
        facts["judged"] += wording.trained_words(facts, "; ")
        return Judged(name, facts, ())
    pairs, unjudged = pair(candidate, current, faults=role != "safety")
    facts["unscored"] = unjudged.facts()
    if role == "safety":
        found = judging.compare(candidate, current, suites=safety_suites)
        numbers = asdict(compare(pairs)) if pairs else {"tasks": 0}
        facts |= numbers | {"verdict": found.verdict, "judged": found.why, "safety": found.document()}
        return Judged(name, facts | {"failing": _failing(pairs)}, pairs, found)
    most = rules.max_unscored * len(candidate)
    if len(unjudged.left_out) > most or not pairs:
        alone = unjudged.candidate - unjudged.current > most
        facts |= {
            "verdict": "failed" if alone else "not shown",
            "judged": f"{len(unjudged.left_out)} of {len(candidate)} items could not be judged "
            f"(candidate {unjudged.candidate}, current {unjudged.current})",
        }
        facts["tasks"] = len(pairs)
        return Judged(name, facts, pairs)
    compared = compare(pairs)
    facts |= asdict(compared) | {"failing": _failing(pairs)}
    worst = compared.low if rules.regression == "interval" else compared.difference
    end = "the lower end of the interval" if rules.regression == "interval" else "the difference"
    if not any(new.success or old.success for new, old in pairs):
        facts |= {"verdict": "not shown", "judged": "neither model solves any item"}
    elif worst < rules.min_delta:
        facts |= {
            "verdict": "failed" if compared.worse else "not shown",
            "judged": f"{end} is below {rules.min_delta:+.2f}",
        }
        if compared.difference >= rules.min_delta:
            counts = (compared.better, compared.worse, compared.tasks)
            facts["needed"] = paired.items_needed(counts, rules.min_delta)
            facts["judged"] += f", the difference is not{wording.too_few(facts)}"
    else:
        facts |= {"verdict": "passed", "judged": f"{end} is not below {rules.min_delta:+.2f}"}
    return Judged(name, facts, pairs)


def _failing(pairs: Pairs) -> list[dict[str, str]]:
    """Returns the items that the candidate fails and current solves; the first ones with note and answer."""
    lost = [new for new, old in pairs if old.success and not new.success]
    return [
        {
            "item_id": one.item_id,
            "kind": one.kind,
            **({"note": one.note[:NOTE_CHARS], "answer": last_answer(one)} if number < SHOWN else {}),
        }
        for number, one in enumerate(lost)
    ]


def last_answer(result: ItemResult) -> str:
    """Returns the policy's last answer of an item, shortened; calls are shown as their names."""
    for message in reversed(result.transcript):
        if message.get("role") == "assistant":
            calls = ", ".join(call["function"]["name"] for call in message.get("tool_calls") or ())
            text = str(message.get("content") or "") or (f"(calls {calls})" if calls else "")
            return text if len(text) <= NOTE_CHARS else text[: NOTE_CHARS - 1] + "…"
    return ""


def _result(judged: Sequence[Judged], facts: dict[str, Any], rules: Rules) -> dict[str, Any]:
    pooled = _pooled([one for one in judged if one.role == "benchmark" and "difference" in one.facts])
    verdict = combine(judged, facts)
    regressed = any(one.verdict == "failed" and one.role != "safety" for one in judged)
    counted = [one.verdict for one in judged if one.role == "benchmark"]
    safe = _safety(judged, facts)
    scores: dict[str, float] = {}
    for one in judged:
        if one.pairs and "candidate" in one.facts:
            scores |= {one.name: one.facts["candidate"], f"{one.name}_current": one.facts["current"]}
            for kind, rates in one.facts["by_kind"].items():
                scores[f"{one.name}/{kind}"] = rates["candidate"]
    run = _run_parts({one.name for one in judged}, checked=bool(facts))
    return {
        "verdict": verdict,
        "passed": verdict == "passed" or (verdict != "failed" and not rules.required),
        "improvement": pooled.get("difference", 0.0),
        "candidate": pooled.get("candidate"),
        "current": pooled.get("current"),
        "results": {
            "benchmark_passed": not regressed and "passed" in counted,
            "safety_checks_passed": safe == "passed",
            "performance_regression": regressed,
            "benchmark_scores": scores,
        },
        "summary": {
            "suite": ", ".join(one.name for one in judged if one.role == "benchmark"),
            "limit": rules.min_delta,
            "regression": rules.regression,
            "required": rules.required,
            **pooled,
            "verdict": verdict,
            "suites": {one.name: one.facts for one in judged},
            "checks": facts,
            "safety": safe,
            "safety_checks_passed_means": checks.meaning(facts) if facts else _safety_meaning(judged),
        },
        "not_run": [name for name in (*PIPELINE, *ASPECTS, "format") if name not in run],
    }


def _run_parts(names: set[str], *, checked: bool) -> set[str]:
    """Returns the parts of the pipeline that were run: ``safety`` stands for all its aspects, and the
    reverse. The built-in checks (``checked``) have refusals and format."""
    run = names | (set(ASPECTS) if "safety" in names else set())
    run |= {"safety"} if run >= set(ASPECTS) else set()
    return run | ({"refusal", "format"} if checked else set())


def combine(judged: Sequence[Judged], facts: dict[str, Any]) -> Verdict:
    """Combines all suites: a failed one of any role decides, as does a failed kind of check; then one
    benchmark that passed is enough, since each that was not shown is listed as such."""
    if any(one.verdict == "failed" for one in judged) or not all(fact["ok"] for fact in facts.values()):
        return "failed"
    return (
        "passed"
        if any(one.verdict == "passed" and one.role == "benchmark" for one in judged)
        else "not shown"
    )


def _pooled(judged: Sequence[Judged]) -> dict[str, Any]:
    """Pools the suites that could be judged: each has the same weight, whatever its number of items."""
    if not judged:
        return {}
    strata = [counts_of(one.pairs) for one in judged]
    low, high = paired.mean_interval(strata)
    rates = [
        [float(np.mean([result[side].success for result in one.pairs])) for one in judged] for side in (0, 1)
    ]
    return {
        "tasks": sum(items for _, _, items in strata),
        "candidate": float(np.mean(rates[0])),
        "current": float(np.mean(rates[1])),
        "difference": float(np.mean([(better - worse) / items for better, worse, items in strata])),
        "low": low,
        "high": high,
        "better": sum(better for better, _, _ in strata),
        "worse": sum(worse for _, worse, _ in strata),
        "by_kind": _kinds(judged),
    }


def _kinds(judged: Sequence[Judged]) -> dict[str, dict[str, float]]:
    """Returns the rates by kind; with several suites a kind has its suite's name before it."""
    several = len(judged) > 1
    return {
        f"{one.name}/{kind}" if several else kind: rates
        for one in judged
        for kind, rates in one.facts.get("by_kind", {}).items()
    }


def _safety(judged: Sequence[Judged], facts: dict[str, Any]) -> str:
    verdicts = {one.verdict for one in judged if one.role == "safety"}
    if facts:
        verdicts.add(checks.safety(facts))
    for verdict in ("failed", "not shown", "passed"):
        if verdict in verdicts:
            return verdict
    return "not run"


def _safety_meaning(judged: Sequence[Judged]) -> str:
    names = [one.name for one in judged if one.role == "safety"]
    return f"the suites {', '.join(names)} and nothing else" if names else "no safety suite was run"


def not_validated(why: str, rules: Rules) -> dict[str, Any]:
    """Returns the result where nothing was run: nothing is claimed."""
    return {
        "verdict": "not validated",
        "passed": not rules.required,
        "improvement": 0.0,
        "results": dict(NOTHING),
        "summary": {
            "skipped": why,
            "verdict": "not validated",
            "safety": "not run",
            "required": rules.required,
        },
        "not_run": ["benchmark", "format", "comparison", *PIPELINE, *ASPECTS],
    }


def with_human_score(found: dict[str, Any], score: float | None) -> dict[str, Any]:
    """Returns a result with a person's score (None: there is none). It decides nothing."""
    if score is None:
        return found
    return {
        **found,
        "results": {**found["results"], HUMAN_SCORE: score},
        "not_run": [name for name in found["not_run"] if name != "human_evaluation"],
    }


def skipped(rules: Rules) -> dict[str, Any]:
    """Returns the result for a job that asked for no validation."""
    return not_validated("the training job asked for it (skip_validation)", rules)
