"""One style for every picture: the title states the finding, no frame, a faint grid, rates from 0 to 1 with
95 % intervals, each picture on a light and on a dark background.

Invariants: nothing of onward is imported here, and matplotlib only while something is drawn. So the control
core, which draws with it, can still be lifted out, and commands that draw nothing start as fast as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Z95 = 1.959963984540054
"""The normal quantile of a two-sided 95 % interval."""


@dataclass(frozen=True)
class Style:
    """Colours of one background; ``colours`` are those of the curves, in order."""

    background: str
    text: str
    faint: str
    """Colour of everything that is not data: axes, notes, lines that mark a limit."""
    colours: tuple[str, ...]

    @property
    def settings(self) -> dict[Any, Any]:
        """This style as matplotlib's ``rcParams``."""
        return {
            "figure.facecolor": self.background,
            "savefig.facecolor": self.background,
            "axes.facecolor": self.background,
            "axes.edgecolor": self.faint,
            "axes.labelcolor": self.text,
            "axes.titlelocation": "left",
            "axes.titlesize": 10,
            "axes.labelsize": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.alpha": 0.25,
            "grid.color": self.faint,
            "text.color": self.text,
            "xtick.color": self.faint,
            "ytick.color": self.faint,
            "xtick.labelcolor": self.text,
            "ytick.labelcolor": self.text,
            "xtick.labelsize": 9,
            "ytick.labelsize": 9,
            "legend.frameon": False,
            "legend.fontsize": 9,
            "lines.linewidth": 2.0,
            "figure.titlesize": 12,
        }


LIGHT = Style(
    "#ffffff", "#1f2328", "#5a6470", ("#1f5fa8", "#c8553d", "#3c8d53", "#8a5fb0", "#b8860b", "#5a6a72")
)
DARK = Style(
    "#0d1117", "#e6edf3", "#9198a1", ("#6cb0f5", "#f0866c", "#6cc283", "#b995e0", "#dcb04a", "#9aa8b0")
)


def dark_version(path: Path) -> Path:
    """Returns ``curves-dark.png`` for ``curves.png``."""
    return path.with_name(f"{path.stem}-dark{path.suffix}")


def save(paint: Callable[[Style], Any], path: Path, *, dark: bool = True) -> list[Path]:
    """Writes the figure of ``paint`` to ``path``, and with ``dark`` its dark version beside it.

    Raises ImportError without matplotlib.
    """
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    made = []
    for style, to in ((LIGHT, path), (DARK, dark_version(path)))[: 1 + dark]:
        with matplotlib.rc_context(style.settings):
            paint(style).savefig(to, dpi=130)
        made.append(to)
    return made


def title(figure: Any, finding: str) -> None:
    """Writes ``finding`` above the figure, at its left."""
    figure.suptitle(finding, x=0.01, ha="left", fontweight="bold")


def rates(axis: Any) -> None:
    """Scales ``axis`` (``axes.xaxis`` or ``axes.yaxis``) from 0 to 1; marks at 0 and at 1 are drawn whole."""
    axes = axis.axes
    bounds = axes.set_xlim if axis is axes.xaxis else axes.set_ylim
    bounds(-0.02, 1.02)
    axis.set_ticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])


def wilson(successes: float, tries: float) -> tuple[float, float]:
    """95 % interval of a rate (Wilson 1927): it stays within 0 and 1 and has a width even at 0 and at 1."""
    if tries <= 0:
        return 0.0, 1.0
    rate, square = successes / tries, Z95**2
    middle = (rate + square / (2 * tries)) / (1 + square / tries)
    half = Z95 / (1 + square / tries) * math.sqrt(rate * (1 - rate) / tries + square / (4 * tries**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def difference(first: float, second: float, tries: float) -> tuple[float, float]:
    """95 % interval of ``second`` - ``first``, rates over ``tries`` each (Newcombe 1998, method 10).

    The two rates are treated as independent; on the same tasks the true interval is narrower.
    """
    (low_1, high_1), (low_2, high_2) = wilson(first * tries, tries), wilson(second * tries, tries)
    gap = second - first
    return gap - math.hypot(second - low_2, high_1 - first), gap + math.hypot(high_2 - second, first - low_1)
