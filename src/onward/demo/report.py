"""Terminal report at the end of a demonstration: one table, a few lines, the finding.

Made from a Result alone.
"""

from __future__ import annotations

from datetime import datetime

from rich.console import Console
from rich.text import Text

from onward import plotting
from onward.demo.result import Cycle, Rates, Result
from onward.progress import PART, clock, shortened
from onward.release.wording import CHECKED
from onward.tables import Table, ident, number, plain

ROLL_BACK_AT = 22.2
"""E of all gates at which a release is rolled back: 1/0.045, since its error budget is 4.5 %."""
WORDS = {
    "promoted": "promoted",
    "rejected": "rejected",
    "rolled_back": "rolled back",
    "inconclusive": "not promoted",
}
COLOURS = {"promoted": "green", "rejected": "yellow", "rolled_back": "red", "inconclusive": "yellow"}


def show(result: Result, console: Console, files: tuple[str, ...] = ()) -> None:
    """Prints the table of candidates, the measurements, the ``files`` written, and the finding."""
    console.print(candidates(result))
    console.print()
    for cycle in result.cycles:
        if cycle.decision != "promoted":
            _say(console, ended(cycle), COLOURS[cycle.decision])
            for failing in cycle.failing[:2]:
                line = f"  {failing.check_id}: {plain(' '.join(failing.answer.split()))}"
                _say(console, shortened(line, console.width))
    _say(console, _kinds(result))
    for line in (*_not_shown(result), _time(result), _stored(result), *files):
        _say(console, line)
    console.print()
    _say(console, finding(result), "bold")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), highlight=False)


def candidates(result: Result) -> Table:
    """Builds a table with one line per candidate, at most 80 columns wide."""
    table = Table(
        ident("candidate"),
        "validation",
        "errors",
        "outcome",
        number("E"),
        "decision",
        title=f"Each pair: current → candidate; taken back when E reaches {ROLL_BACK_AT}",
    )
    for cycle in result.cycles:
        current, candidate = (cycle.rates.get(arm, Rates()) for arm in ("current", "candidate"))
        table.add_row(
            cycle.candidate,
            _pair(cycle.validation_current, cycle.validation_success),
            _pair(current.error_rate, candidate.error_rate, percent=True),
            _pair(current.mean_outcome, candidate.mean_outcome),
            evidence(cycle.e_values["all"]) if "all" in cycle.e_values else "-",
            Text(WORDS[cycle.decision], style=COLOURS[cycle.decision]),
        )
    return table


def ended(cycle: Cycle) -> str:
    """Describes the end of a candidate and the reason, in one line."""
    word = WORDS[cycle.decision]
    if cycle.decision == "rolled_back" and cycle.share is not None:
        word += f" at {cycle.share:.0%} of traffic"
    text = f"{cycle.candidate} {word}"
    if cycle.decision == "promoted":
        if cycle.validation_success is not None:
            text += f": validation {_pair(cycle.validation_current, cycle.validation_success)}"
        return text + "."
    if cycle.reason:
        text += f": {cycle.reason if ' ' in cycle.reason else cycle.reason.replace('_', ' ')}".rstrip(".")
    seconds = latency(cycle)
    return text + ("." if seconds is None else f"; without traffic {seconds:.1f} s after the evidence.")


def watched(rates: dict[str, Rates], e_values: dict[str, float], sessions: dict[str, int]) -> str:
    """Formats a note on a running release: error rates of both arms, evidence against it, its sessions."""
    parts = [f"E {evidence(e_values.get('all', 1.0))}", f"{sessions.get('candidate', 0)} sessions"]
    if "candidate" in rates and "current" in rates:
        new, old = (rate(rates[arm].error_rate, percent=True) for arm in ("candidate", "current"))
        parts.insert(0, f"errors {new} vs {old}")
    return PART.join(parts)


def evidence(e_value: float) -> str:
    """Formats E in four characters (``0.23``, ``31``, ``999+``): only its distance from 22.2 matters."""
    return f"{e_value:.2f}" if e_value < 10 else f"{e_value:.0f}" if e_value < 999 else "999+"


def latency(cycle: Cycle) -> float | None:
    """Returns the seconds from the crossing of a gate until no gateway served the candidate."""
    if not (cycle.crossed_at and cycle.verified_zero_at):
        return None
    start, end = (
        datetime.fromisoformat(text.replace("Z", "+00:00"))
        for text in (cycle.crossed_at, cycle.verified_zero_at)
    )
    return (end - start).total_seconds()


def finding(result: Result) -> str:
    """Returns one sentence: the change of success, whether chance explains it, the candidates' decisions."""
    learned = [cycle for cycle in result.cycles if not cycle.sabotaged]
    promoted = [cycle for cycle in learned if cycle.decision == "promoted"]
    before, after = result.base_success, result.final_success
    low, high = plotting.difference(before, after, result.tries)
    change = f"from {before:.2f} to {after:.2f} ({round(after, 2) - round(before, 2):+.2f})"
    verb = "was" if len(promoted) == 1 else "were"
    told = f"{len(promoted)} of {_count(len(learned))} {verb} promoted"
    if not promoted:
        why = f" ({ended(learned[-1])[:-1]})" if learned else ""
        still = (
            f"so success on held-out tasks stayed at {before:.2f}"
            if result.v0_serves
            else f"and success on held-out tasks went {change} with the planted model"
        )
        text = f"Nothing was learned: none of {_count(len(learned))} was promoted{why}, {still}"
    elif low > 0:
        text = f"Success on held-out tasks rose {change} by reinforcement learning alone; {told}"
    elif high < 0:
        text = f"Success on held-out tasks fell {change}, although {told}"
    else:
        text = (
            f"No gain was shown: success on held-out tasks went {change}, which chance explains "
            f"(95 % interval {low:+.2f} to {high:+.2f}); {told}"
        )
    for cycle in result.cycles:
        if cycle.sabotaged:
            back = cycle.decision == "rolled_back"
            text += f"; the planted model was {'' if back else 'not '}rolled back"
    if result.lost or result.duplicates:
        text += f"; {result.lost} trajectories were lost and {result.duplicates} stored twice"
    return text + "."


def _count(number: int) -> str:
    return f"{number} candidate{'' if number == 1 else 's'}"


def _pair(current: float | None, candidate: float | None, *, percent: bool = False) -> str:
    if current is None and candidate is None:
        return "-"
    return f"{rate(current, percent=percent)} → {rate(candidate, percent=percent)}"


def rate(value: float | None, *, percent: bool = False) -> str:
    """Formats a rate as ``0.57``, with ``percent`` as ``1.2%`` or ``57%``, and None as ``?``."""
    if value is None:
        return "?"
    if percent:
        return f"{value:.1%}" if 0.0 < value < 0.0995 else f"{value:.0%}"
    return f"{value:.2f}"


def _kinds(result: Result) -> str:
    kinds = ", ".join(
        f"{kind} {found.base:.2f}→{found.final:.2f}" for kind, found in sorted(result.by_kind.items())
    )
    return (
        f"By kind of task ({result.decoding}): {kinds}. Untrained {result.raw_success:.2f}, best constant "
        f"policy {result.best_constant_success:.2f}."
    )


def _not_shown(result: Result) -> list[str]:
    """Returns a line for each check of the last candidate that showed nothing."""
    for cycle in reversed(result.cycles):
        if cycle.checks:
            return [
                f"Of {check.of} {CHECKED[kind][0]} the candidate {CHECKED[kind][1]} {check.passed} and the "
                f"current model {check.current}: that shows nothing about either."
                for kind, check in cycle.checks.items()
                if check.verdict == "not shown"
            ]
    return []


def _time(result: Result) -> str:
    stages = sorted(result.stages.items(), key=lambda item: -item[1])[:4]
    shares = ", ".join(f"{name} {seconds / max(result.wall_seconds, 1e-9):.0%}" for name, seconds in stages)
    return f"Time: {clock(result.wall_seconds)} ({shares})."


def _stored(result: Result) -> str:
    return (
        f"{result.accepted:,} trajectories stored, {result.lost} lost, {result.duplicates} twice. "
        f"{result.current_model} serves."
    )
