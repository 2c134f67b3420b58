"""``curves.png`` of a demonstration: success and decision of every candidate, and success per kind of task.

Made from a Result alone. Whiskers are 95 % intervals (Wilson).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onward import plotting
from onward.demo.report import WORDS
from onward.demo.result import Cycle, Result

_MARKS = {"rejected": "X", "rolled_back": "v", "inconclusive": "s"}


def draw(result: Result, path: Path) -> list[Path]:
    """Writes the picture and its dark version."""
    return plotting.save(lambda style: _figure(result, style), path)


def headline(result: Result) -> str:
    """Returns the finding in a few words."""
    before, after = result.base_success, result.final_success
    low, high = plotting.difference(before, after, result.tries)
    if not any(cycle.decision == "promoted" and not cycle.sabotaged for cycle in result.cycles):
        still = f"stayed at {before:.2f}" if result.v0_serves else f"went from {before:.2f} to {after:.2f}"
        return f"Nothing was learned: success on held-out tasks {still}"
    verb = "rose" if low > 0 else "fell" if high < 0 else "hardly moved,"
    return f"Success on held-out tasks {verb} from {before:.2f} to {after:.2f}"


def short(model_id: str) -> str:
    """Shortens ``agent-zero-rl-v3`` to ``v3``; leaves other names unchanged."""
    last = model_id.rsplit("-", 1)[-1]
    return last if last[:1] == "v" and last[1:].replace(".", "").isdigit() else model_id


def _figure(result: Result, style: plotting.Style) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.4), layout="constrained")
    plotting.title(figure, f"{headline(result)} ({result.model}, seed {result.seed})")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _versions(left, result, style)
    _kinds(right, result, style)
    return figure


def _versions(axes: Any, result: Result, style: plotting.Style) -> None:
    """Draws validation success of every version, with released ones joined, and the two held-out tests."""
    cycles = result.cycles
    blue, red, green = style.colours[:3]
    released = [(0, first, tasks) for first, tasks in _first(cycles)]
    for place, cycle in enumerate(cycles, 1):
        if cycle.decision == "promoted" and cycle.validation_success is not None:
            released.append((place, cycle.validation_success, cycle.validation_tasks or 0))
    places, successes = [x for x, _, _ in released], [y for _, y, _ in released]
    axes.plot(places, successes, "o-", color=blue, label="released")
    for x, y, tasks in released:
        _whisker(axes, x, y, tasks, blue)
    seen: set[str] = set()
    for place, cycle in enumerate(cycles, 1):
        if cycle.decision == "promoted":
            continue
        success, source = _measured(cycle)
        label = WORDS[cycle.decision] + (f" ({source})" if source else "")
        axes.plot(
            [place], [success], _MARKS[cycle.decision], color=red, markerfacecolor="none", markersize=10,
            markeredgewidth=1.6, clip_on=False, label=None if label in seen else label,
        )  # fmt: skip
        seen.add(label)
        _whisker(axes, place, success, cycle.validation_tasks or 0, red)
    serving = [place for place, cycle in enumerate(cycles, 1) if cycle.candidate == result.current_model]
    last = max(serving, default=0)
    for x, y, label in ((0, result.base_success, "held-out test"), (last, result.final_success, None)):
        axes.plot([x + 0.12], [y], "D", color=green, markersize=6, label=label)
        _whisker(axes, x + 0.12, y, result.tries, green)
    names = ["v0", *(short(cycle.candidate) for cycle in cycles)]
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.3, len(cycles) + 0.4)
    axes.grid(visible=False, axis="x")
    plotting.rates(axes.yaxis)
    axes.set_ylabel("success on validation tasks")
    axes.set_title(_fates(cycles))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=4, fontsize=8, columnspacing=1.2)


def _first(cycles: Sequence[Cycle]) -> list[tuple[float, int]]:
    """Returns validation success and tasks of v0, from the first candidate that was compared with it."""
    found = [(cycle.validation_current, cycle.validation_tasks or 0) for cycle in cycles]
    return [(rate, tasks) for rate, tasks in found if rate is not None][:1]


def _measured(cycle: Cycle) -> tuple[float, str]:
    """Returns the value drawn for an unreleased candidate: its validation, else its outcome in traffic."""
    if cycle.validation_success is not None:
        return cycle.validation_success, ""
    rates = cycle.rates.get("candidate")
    if rates is not None and rates.mean_outcome is not None:
        return rates.mean_outcome, "outcome in traffic"
    return 0.0, "not measured"


def _fates(cycles: Sequence[Cycle]) -> str:
    """Formats the decisions, such as ``2 of 3 candidates promoted, 1 rejected``; the planted one is apart."""
    learned = [cycle for cycle in cycles if not cycle.sabotaged]
    counts = {word: sum(WORDS[cycle.decision] == word for cycle in learned) for word in WORDS.values()}
    text = f"{counts.pop('promoted')} of {len(learned)} candidates promoted"
    text += "".join(f", {count} {word}" for word, count in counts.items() if count)
    return text + "".join(f"; the planted one {WORDS[cycle.decision]}" for cycle in cycles if cycle.sabotaged)


def _whisker(axes: Any, x: float, rate: float, tries: int, colour: str) -> None:
    if tries:
        low, high = plotting.wilson(rate * tries, tries)
        axes.vlines(x, low, high, color=colour, linewidth=1.4, alpha=0.7)


def _kinds(axes: Any, result: Result, style: plotting.Style) -> None:
    """Draws held-out success of each kind of task before and after, the largest gain on top."""
    grey, green = style.faint, style.colours[2]
    kinds = sorted(result.by_kind.items(), key=lambda item: item[1].final - item[1].base)
    for place, (_, found) in enumerate(kinds):
        for rate, shift, colour in ((found.base, 0.13, grey), (found.final, -0.13, green)):
            low, high = plotting.wilson(rate * found.tries, found.tries)
            axes.hlines(place + shift, low, high, color=colour, linewidth=1.4, alpha=0.7)
            label = ("v0" if colour == grey else short(result.current_model)) if place == 0 else None
            axes.plot([rate], [place + shift], "o", color=colour, label=label)
    axes.set_yticks(range(len(kinds)), [kind for kind, _ in kinds])
    axes.set_ylim(-0.5, len(kinds) - 0.5)
    axes.grid(visible=False, axis="y")
    plotting.rates(axes.xaxis)
    axes.set_xlabel("success on held-out tasks")
    if kinds:
        name, best = kinds[-1]
        axes.set_title(f"most gained by {name}: {best.base:.2f} → {best.final:.2f}")
        axes.legend(loc="best")
