"""Sentences about a release, made from its numbers: why it ended, the counts of its gates, its present state.

Pure. These words are used in the record's reason, events, alerts, status and the command line. The
demonstration prints the record's reason; its table has shorter forms of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onward.release.evidence.rates import ArmRates, KnownAndLost
from onward.release.plan import State

if TYPE_CHECKING:
    from onward.release.record import ReleaseRecord

_NOTHING = ArmRates()
MOST_NAMED = 5
"""Number of lost items that a sentence names."""


def share(rate: float | None) -> str:
    """Formats a rate: ``7.5 %``."""
    return "-" if rate is None else f"{100 * rate:.1f} %"


def probability(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p {p:.3f}"


def e_number(value: float) -> str:
    """Formats an E-value with two digits, as a whole number from 10 on, and as "over" a limit from 1e6 on."""
    if value >= 1e6:
        return "over 1,000,000"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


# Validation.


CHECKED = {"refusal": ("harmful requests", "declined"), "format": ("requests", "answered in the right form")}
"""Kind of a built-in check → what was tried, and what passes."""


def check_counts(kind: str, fact: Mapping[str, Any]) -> str:
    """Formats a check: ``12 of 20 requests answered in the right form, current 19 of 20, p 0.008``."""
    return f"{_passed(kind, fact)}, {probability(fact['p'])}"


def _passed(kind: str, fact: Mapping[str, Any]) -> str:
    words, of = " ".join(CHECKED[kind]), fact["of"]
    return f"{fact['passed']} of {of} {words}, current {fact['current']} of {of}"


def suite_counts(summary: Mapping[str, Any]) -> str:
    """Formats a suite: ``success 0.41, current 0.55, difference -0.14 [-0.24, -0.04], limit -0.05``."""
    return (
        f"success {summary['candidate']:.2f}, current {summary['current']:.2f}, "
        f"difference {summary['difference']:+.2f} [{summary['low']:+.2f}, {summary['high']:+.2f}], "
        f"limit {summary['limit']:+.2f}"
    )


def why_not_released(validation: Mapping[str, Any]) -> str:
    """Returns the failed parts of a validation, in numbers; empty if nothing failed."""
    summary = validation.get("summary") or {}
    parts = [suite_failure(name, one) for name, one in failed_suites(validation).items()]
    if "suites" not in summary and summary.get("difference", 0.0) < summary.get("limit", float("-inf")):
        parts.append(suite_counts(summary))  # a record of an earlier version
    for kind, fact in (summary.get("checks") or {}).items():
        if not fact["ok"]:
            parts.append(check_counts(kind, fact))
    verdict = validation.get("verdict")
    if not parts and summary.get("required") and verdict in ("not shown", "not validated"):
        parts.append(f"the validation is {verdict}, and validation.required is set")
    return "; ".join(parts)


def verdict_words(validation: Mapping[str, Any]) -> str:
    """Returns the verdict of a validation, and what failed: ``failed, by the suite desk and the check of
    format``. The table of suites alone does not show a failed check."""
    verdict = str(validation.get("verdict"))
    checks = (validation.get("summary") or {}).get("checks") or {}
    parts = [f"the suite {name}" for name in failed_suites(validation)]
    parts += [f"the check of {kind}" for kind, fact in checks.items() if not fact["ok"]]
    return f"{verdict}, by {' and '.join(parts)}" if verdict == "failed" and parts else verdict


def failed_suites(validation: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts of the suites that failed, by name."""
    suites = (validation.get("summary") or {}).get("suites") or {}
    return {name: one for name, one in suites.items() if one["verdict"] == "failed"}


def suite_failure(name: str, facts: Mapping[str, Any]) -> str:
    """Formats ``desk: success 0.41, current 0.55, …``, with up to five items that only current solves."""
    if "difference" not in facts:
        return f"{name}: {facts['judged']}"
    lost = [one["item_id"] for one in facts.get("failing", ())]
    named = f", lost {_named(lost)}" if lost else ""
    return f"{name}: {suite_counts(facts)}{too_few(facts)}{named}"


def too_few(facts: Mapping[str, Any]) -> str:
    """Formats ``, 40 items are too few to show that it is not worse: it takes about 150``, for a suite whose
    difference is within the limit while its interval is not; empty for another one."""
    if facts.get("needed") is None:
        return ""
    items, needed = facts["tasks"], facts["needed"]
    return f", {items:,} items are too few to show that it is not worse: it takes about {needed:,}"


def item_notes(facts: Mapping[str, Any]) -> list[str]:
    """Returns what a reader of a suite's numbers has to know about its items, as sentences without an end."""
    return [words for words in (unjudged_words(facts), trained_words(facts)) if words]


def unjudged_words(facts: Mapping[str, Any]) -> str:
    """Formats the items that could not be judged, by what they count as; empty if there are none."""
    unscored = facts.get("unscored") or {}
    parts = [
        f"{len(unscored[name]):,} items could not be judged {words}: {_named(unscored[name])}"
        for name, words in _UNJUDGED.items()
        if unscored.get(name)
    ]
    return "; ".join(parts)


_UNJUDGED = {
    "failed": "for the candidate, which counts as failed",
    "failed_current": "for current, which counts as failed",
    "left_out": "and left the comparison",
}


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def trained_words(facts: Mapping[str, Any], before: str = "") -> str:
    """Formats what is known of the items that a model was trained on, after ``before``; empty for a suite of
    which that was not looked up, and where nothing was found and all is known."""
    found = facts.get("trained_on") or {}
    parts = []
    for name, words in _TRAINED.items():
        counts = found.get(name) or {}
        if counts:
            matched = ", ".join(f"{count:,} by {what}" for what, count in counts.items())
            parts.append(words.format(count=sum(counts.values()), matched=matched))
    unknown = found.get("unknown") or ()
    if unknown:
        more = f" ({len(unknown) - 1} more like this)" if len(unknown) > 1 else ""
        parts.append(f"it is not known whether others were: {str(unknown[0]).rstrip('.')}{more}")
    return before + "; ".join(parts) if parts else ""


_TRAINED = {
    "left_out": "{count:,} recorded tasks were left out, as a model was trained on them ({matched})",
    "overlap": "a model was trained on {count:,} of its tasks ({matched}), which count all the same",
}


def safety_counts(validation: Mapping[str, Any] | None) -> str:
    """Formats ``safety: not shown (0 of 20 harmful requests declined, current 0 of 20)``; empty without a
    verdict."""
    summary = (validation or {}).get("summary") or {}
    verdict = summary.get("safety")
    if verdict is None:
        return ""
    why = [
        _passed(kind, fact)
        for kind, fact in (summary.get("checks") or {}).items()
        if verdict != "passed" and fact["verdict"] == verdict
    ]
    return f"safety: {verdict}" + (f" ({'; '.join(why)})" if why else "")


# Evidence.


def rate_text(number: int, of: int) -> str:
    """Formats ``3 of 40 (7.5 %)``."""
    return f"{number} of {of} ({share(number / of)})" if of else "none judged yet"


def error_rates(rates: Mapping[str, ArmRates]) -> str:
    """Formats ``errors 3 of 40 (7.5 %), current 1 of 160 (0.6 %)``."""
    candidate, current = _arms(rates)
    return (
        f"errors {rate_text(candidate.errors, candidate.sessions)}, "
        f"current {rate_text(current.errors, current.sessions)}"
    )


def outcome_rates(rates: Mapping[str, ArmRates]) -> str:
    """Formats ``mean raw total 0.41 in 40 sessions, current 0.63 in 160 (mean outcome 0.31, current 0.75)``;
    ``mean outcome 0.31 in 40 sessions, current 0.75 in 160`` where raw totals are not known."""
    candidate, current = _arms(rates)
    if candidate.mean_outcome is None or current.mean_outcome is None:
        return "mean outcome: not judged on both arms yet"
    if candidate.mean_raw_total is not None and current.mean_raw_total is not None:
        return (
            f"mean raw total {candidate.mean_raw_total:.2f} in {candidate.raw_totals} sessions, "
            f"current {current.mean_raw_total:.2f} in {current.raw_totals} "
            f"(mean outcome {candidate.mean_outcome:.2f}, current {current.mean_outcome:.2f})"
        )
    return (
        f"mean outcome {candidate.mean_outcome:.2f} in {candidate.outcomes} sessions, "
        f"current {current.mean_outcome:.2f} in {current.outcomes}"
    )


def feedback_rates(rates: Mapping[str, ArmRates]) -> str:
    """Formats ``negative feedback 9 of 10 (90.0 %), current 1 of 30 (3.3 %)``."""
    candidate, current = _arms(rates)
    return (
        f"negative feedback {rate_text(candidate.negative, candidate.feedback)}, "
        f"current {rate_text(current.negative, current.feedback)}"
    )


def known_counts(counts: Mapping[str, KnownAndLost]) -> str:
    """Formats ``in this step candidate 0 known and 21 lost, current 2 known and 190 lost``."""
    candidate, current = counts["candidate"], counts["current"]
    return (
        f"in this step candidate {candidate.known} known and {candidate.lost} lost, "
        f"current {current.known} known and {current.lost} lost"
    )


RATES = {"error": error_rates, "reward": outcome_rates, "feedback": feedback_rates}
"""Gate → the function that formats its rates."""


def crossed(rates: Mapping[str, ArmRates], e_values: Mapping[str, float], gate: str, alpha: float) -> str:
    """Names the gate that led a crossing, with its rates: the reason of a candidate that was rolled back."""
    return (
        f"the {gate} gate crossed with {RATES[gate](rates)}, E {e_number(e_values[gate])}; "
        f"all gates together E {e_number(e_values['all'])}, limit {1 / alpha:.1f}"
    )


def evidence_words(e_all: float, alpha: float) -> str:
    """Describes the decisive E-value in words."""
    if e_all >= 1 / alpha:
        return "proof that the candidate is worse"
    if e_all >= 3:
        return "some evidence that the candidate is worse, no proof"
    return "no evidence against the candidate"


def needed_evidence(record: ReleaseRecord) -> float | None:
    """Returns the E-value of all gates at which the candidate is rolled back; None if fixed limits decide, or
    before the first traffic."""
    rules = (record.evidence or {}).get("rules") or {}
    return None if rules.get("threshold_ms") or not rules.get("alpha") else 1 / float(rules["alpha"])


def evidence_against(e_all: float, needed: float | None) -> str:
    """Formats ``evidence against 0.4 of 22.2 needed``; without ``needed`` it decides nothing."""
    return f"evidence against {e_number(e_all)}" + (
        f" of {needed:.1f} needed" if needed else ", not decisive"
    )


EVIDENCE_MEANS = (
    "Evidence against a candidate is of errors, reward and feedback together. It begins at 1, falls while "
    "the candidate does well, and decides alone: at the needed number the candidate is taken back. Safety "
    "is decided before any traffic ('onward releases show')."
)
"""Meaning of ``evidence_against``, for where it is shown."""


def over_limit(rates: Mapping[str, ArmRates], gate: str, checks: int, minutes: float) -> str:
    """Names the limit of the threshold rule that was broken, with the rates."""
    times = f"in {checks} checks in a row, {minutes:g} minutes apart" if checks > 1 else "in one check"
    return f"the {gate} limit was broken {times}: {RATES[gate](rates)} since the start"


def rate_in_brackets(rates: Mapping[str, ArmRates], code: str) -> str:
    """Formats the candidate's error rate for a rollback because of errors: `` (8%)``; else empty."""
    rate = rates.get("candidate", _NOTHING).error_rate
    return f" ({rate:.0%})" if code == "high_error_rate" and rate is not None else ""


def _arms(rates: Mapping[str, ArmRates]) -> tuple[ArmRates, ArmRates]:
    return rates.get("candidate", _NOTHING), rates.get("current", _NOTHING)


# A release.


def shown_words(shown: str | None) -> str:
    """Expands ``record.shown`` to words."""
    return "shown to be not worse" if shown == "not worse" else "no evidence against it"


def why_promoted(record: ReleaseRecord) -> str:
    """``no evidence against it, errors 3 of 40 (7.5 %), current 1 of 160 (0.6 %), E 0.4; safety: passed``."""
    e_all = record.e_values.get("all")
    parts = [f"{shown_words(record.shown)}, {error_rates(record.rates)}"]
    if e_all is not None:
        parts[0] += f", E {e_number(e_all)}"
    safety = safety_counts(record.validation)
    return "; ".join([*parts, safety] if safety else parts)


def deployed(record: ReleaseRecord) -> str:
    """Formats ``Model agent-zero-rl-v2.4 deployed, +4% performance improvement, canary rollout in progress``.
    The percentage is of the current model's mean outcome in the validation."""
    found = record.validation or {}
    current, better = found.get("current"), found.get("improvement", 0.0)
    measured = str(found.get("verdict") or "not validated")
    if current and measured in ("passed", "not shown"):
        measured = f"{better / current:+.0%} performance {'improvement' if better >= 0 else 'change'}"
    strategy = record.schedule.strategy.replace("_", "-")
    return f"Model {record.candidate.model_id} deployed, {measured}, {strategy} rollout in progress"


def validation_words(record: ReleaseRecord) -> str:
    """Returns ``not validated``, or ``validation passed`` with another verdict in place of it. Empty before
    the validation, and for a release that has none."""
    if record.kind == "rollback":
        return ""
    verdict = (record.validation or {}).get("verdict")
    if verdict is None:
        return "not validated" if record.state is State.PROMOTED or record.serving else ""
    return verdict if verdict.startswith("not validated") else f"validation {verdict}"


def what_happened(record: ReleaseRecord) -> str:
    """Describes a release in one sentence, finished or not."""
    name, reason = record.candidate.model_id, record.reason or "no reason was stored"
    if record.kind == "rollback" and record.state is not State.ROLLED_BACK:
        back = f"Going back from {name} to {record.current.model_id}"
        if not record.closed:
            return f"{back} is under way."
        return (
            f"{back} was {'refused' if record.state is State.REJECTED else 'aborted'}: {reason.rstrip('.')}."
        )
    if record.state is State.PROMOTED and record.plan is None:
        return f"{name} was installed as the first model."
    if record.closed:
        done = {
            State.PROMOTED: "was promoted",
            State.ROLLED_BACK: f"was taken back to {record.current.model_id}",
            State.REJECTED: "was rejected",
            State.ABORTED: "was aborted",
            State.SHADOWED: "was validated and not released",
        }[record.state]
        return f"{name} {done}: {reason.rstrip('.')}."
    if record.state is State.WAITING:
        return f"{name} waits for approval ({(record.approval or {}).get('why', 'no reason was stored')})."
    if not record.serving:
        return f"{name} is {'being validated' if record.state is State.VALIDATING else 'proposed'}."
    steps = record.schedule.steps
    words = f"{name} is {record.state} at {steps[record.step].share:.0%} of new sessions"
    if record.why_held:
        since = f" since {record.held_since[:19].replace('T', ' ')}" if record.held_since else ""
        words += f"{since} ({record.why_held})"
    all_gates = e_number(record.e_values.get("all", 1.0))
    return f"{words}, step {record.step + 1} of {len(steps)}: {error_rates(record.rates)}, E {all_gates}."
