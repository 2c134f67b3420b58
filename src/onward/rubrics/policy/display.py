"""The run of a rubric writer for people: bars while it trains, and its curves afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onward import plotting
from onward.progress import PART, Bar, Bars
from onward.rubrics.policy.training import METRICS
from onward.rubrics.policy.warm_start import Emit

CURVES = "curves.png"
PANELS = {
    "skill": "Skill",
    "reward": "Reward",
    "questions": "Questions",
    "degenerate": "Degenerate share",
}


def shown(bars: Bars) -> Emit:
    """Returns a receiver of a run's events that draws them as ``bars``: the demonstrations, the warm start,
    then the learning. A run that goes on begins where it was, so that the time left is that of its pace."""
    active: dict[str, Bar] = {}

    def draw(name: str, step: int, total: int, note: str = "") -> None:
        if name not in active:
            active[name] = bars.add_bar(name, total, step)
        active[name].update(step, note=note)
        if step == total:
            active.pop(name).finish()

    def emit(event: str, **facts: Any) -> None:
        if event == "demonstrations":
            draw("Demonstrations", facts["step"], facts["total"])
        elif event == "warm_start":
            draw("Warm start", facts["step"], facts["total"], f"loss {facts['loss']:.3f}")
        elif event == "step":
            notes = [f"reward {facts['reward']:.2f}", f"skill {facts['skill']:.2f}"]
            notes += [f"{facts['questions']:.1f} questions", f"degenerate {facts['degenerate']:.0%}"]
            draw("Learning", facts["step"], facts["total"], PART.join(notes))

    return emit


def draw_curves(folder: Path) -> list[Path]:
    """Draws the learning curves of the run in ``folder`` to ``curves.png`` and its dark version.

    Raises ImportError without matplotlib.
    """
    rows = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    steps = [row["step"] for row in rows]
    checked = [row for row in rows if "validation" in row]

    def paint(style: plotting.Style) -> Any:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 6), layout="constrained")
        grid = figure.subplots(2, 2, sharex=True)
        for axis, (name, words) in zip(grid.flat, PANELS.items(), strict=True):
            axis.plot(
                steps, [row[name] for row in rows], color=style.colours[0], alpha=0.6, label="training tasks"
            )
            axis.plot(
                [row["step"] for row in checked],
                [row["validation"][name] for row in checked],
                color=style.colours[1],
                marker="o",
                label="validation families",
            )
            axis.set_title(words)
        for axis in grid[1]:
            axis.set_xlabel("step")
        grid[0][0].legend()
        plotting.title(figure, _finding(checked))
        return figure

    return plotting.save(paint, folder / CURVES)


def _finding(checked: list[dict[str, Any]]) -> str:
    if not checked:
        return "A rubric writer learns"
    last = checked[-1]
    return f"Skill on validation families is {last['validation']['skill']:.2f} after {last['step']} steps"
