"""Pictures of a release's evidence over time: as PNG or SVG, and as lines of a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from onward import plotting
from onward.release.explaining.trace import ARM_NAMES, Point
from onward.release.wording import e_number

GATES = ("all", "error", "reward", "feedback")
WIDTH = 48
_MARKS = "▁▂▃▄▅▆▇█"


def draw(points: Sequence[Point], limit: float, finding: str, path: Path) -> list[Path]:
    """Writes the picture and its dark version; the name's end says which form. Raises ImportError without
    matplotlib."""
    return plotting.save(lambda style: _figure(points, limit, finding, style), path)


def _figure(points: Sequence[Point], limit: float, finding: str, style: plotting.Style) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 8.4), layout="constrained")
    plotting.title(figure, finding)
    minutes = [(point.at - points[0].at) / 60_000 for point in points]
    evidence, errors, outcomes, share = figure.subplots(4, 1, sharex=True, height_ratios=(3, 2, 2, 1))
    for number, gate in enumerate(GATES):
        values = [max(1e-3, point.e_values[gate]) for point in points]
        evidence.plot(
            minutes, values, color=style.colours[number], label=gate, linewidth=2 if not number else 1.2
        )
    evidence.axhline(limit, color=style.faint, linestyle="--")
    evidence.set_yscale("log")
    evidence.set_title(f"E-values: taken back at {limit:.1f} of all gates together")
    for axes, name, what in ((errors, "errors", "Error rate"), (outcomes, "outcomes", "Mean outcome")):
        for number, arm in enumerate(ARM_NAMES):
            values = [getattr(point, name)[arm] for point in points]
            axes.plot(
                minutes,
                [math.nan if v is None else v for v in values],
                color=style.colours[1 - number],
                label=arm,
            )
        axes.set_title(what)
        plotting.rates(axes.yaxis)
        axes.legend(loc="upper left")
    evidence.legend(loc="upper left")
    share.step(minutes, [point.share for point in points], where="post", color=style.colours[1])
    share.set_title("The candidate's share of new sessions")
    plotting.rates(share.yaxis)
    share.set_xlabel("minutes since the first outcome")
    return figure


def lines(points: Sequence[Point], limit: float) -> Iterator[tuple[str, str, str]]:
    """Yields (name, marks, numbers) for a terminal: E-values on a log scale from 1 to the limit, rates and
    the share from 0 to 1."""
    for gate in GATES:
        yield f"E {gate}", *e_line([point.e_values[gate] for point in points], limit)
    for name, what in (("errors", "errors"), ("outcomes", "outcome")):
        for arm in ARM_NAMES:
            known = [value for point in points if (value := getattr(point, name)[arm]) is not None]
            if known:
                yield f"{what}, {arm}", _marks(known), f"now {known[-1]:.3f}"
    shares = [point.share for point in points]
    yield "share", _marks(shares), f"now {shares[-1]:.0%}"


def e_line(values: Sequence[float], limit: float) -> tuple[str, str]:
    """Returns (marks, numbers) of E-values, on a log scale from 1 to ``limit``."""
    scaled = [math.log(max(1.0, value)) / math.log(limit) for value in values]
    return _marks(scaled), f"now {e_number(values[-1])}, highest {e_number(max(values))}"


def _marks(values: Sequence[float]) -> str:
    """Returns values from 0 to 1 as a row of marks; each is the highest value of its part."""
    count = min(WIDTH, len(values))
    parts = [values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)]
    top = len(_MARKS) - 1
    return "".join(_MARKS[min(top, max(0, int(max(part) * top + 1e-9)))] for part in parts)
