"""Learning curves in one picture: the interquartile mean over seeds, with a band from the worst to the best.

Seeds are compared at equal steps, by linear interpolation between a seed's own evaluations. A run that
stopped early because it was solved keeps its last value to the end. The title reports how many seeds were
solved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward import plotting
from onward.control.evaluation.statistics import iqm
from onward.control.running.log import Row, read_rows
from onward.control.running.runs import Folder, read_json
from onward.errors import ControlError

POINTS = 200
"""Points in the grid of steps."""


@dataclass(frozen=True)
class Band:
    """Seeds of one kind of run on a common grid of steps."""

    steps: NDArray[np.float64]
    seeds: NDArray[np.float64]
    """(seeds, steps) values."""

    @property
    def middle(self) -> NDArray[np.float64]:
        """Interquartile mean over seeds."""
        return np.array([iqm(column) for column in self.seeds.T])


def band(runs: Sequence[list[Row]], metric: str) -> Band | None:
    """Interpolates ``metric`` of all runs on a common grid of steps; None where no run has it."""
    series = [[(row["step"], row[metric]) for row in rows if metric in row] for rows in runs]
    series = [points for points in series if points]
    if not series:
        return None
    first = max(points[0][0] for points in series)
    last = max(points[-1][0] for points in series)
    grid = np.linspace(min(first, last), last, POINTS)
    lines = [np.interp(grid, *np.array(points).T) for points in series]
    return Band(grid, np.array(lines))


@dataclass
class _Seeds:
    """The runs of one algorithm and preset."""

    rows: list[list[Row]] = field(default_factory=list)
    solved: int = 0
    """Number of runs that reached the threshold."""


def draw(folders: Sequence[Path], picture: Path) -> Path:
    """Draws the runs in ``folders`` into ``picture`` (PNG) and its dark version: evaluation above training.

    Runs of one environment, algorithm and preset are the seeds of one curve. Raises ControlError where a
    folder holds no run, or runs of different environments are given.
    """
    groups, env, threshold = _groups(folders)
    plotting.save(lambda style: _figure(groups, env, threshold, style), picture)
    return picture


def _finding(groups: dict[str, _Seeds], env: str, threshold: float | None) -> str:
    """Returns a title: ``CartPole-v1: ppo (tuned) solved by 5 of 5 seeds``, or the last return."""
    told = []
    for name, group in groups.items():
        found = band(group.rows, "eval_return")
        count = len(group.rows)
        if threshold is not None:
            told.append(f"{name} solved by {group.solved} of {count} seed{'s' * (count != 1)}")
        elif found is not None:
            told.append(f"{name} ends at {found.middle[-1]:.4g}")
    return f"{env}: {', '.join(told)}" if told else env


def _figure(groups: dict[str, _Seeds], env: str, threshold: float | None, style: plotting.Style) -> Any:
    from matplotlib.figure import Figure

    metrics = {
        "eval_return": "greedy evaluation: mean return",
        "return_mean": "training: mean return of the last 100 episodes",
        **{f"{name}_mean": f"training: {name} per episode" for name in _streams(groups)},
    }
    figure = Figure(figsize=(8, 3.2 * len(metrics)), layout="constrained")
    plotting.title(figure, _finding(groups, env, threshold))
    panels: Any = figure.subplots(len(metrics), 1, sharex=True)
    for panel, (metric, title) in zip(panels, metrics.items(), strict=True):
        for colour, (name, group) in zip([*style.colours] * 4, groups.items(), strict=False):
            _curve(panel, band(group.rows, metric), colour, name)
        if threshold is not None and metric in ("eval_return", "return_mean"):
            panel.axhline(threshold, color=style.faint, linewidth=1, linestyle="--")
            panel.annotate(
                f"solved: {threshold:g}", (0, threshold), xycoords=("axes fraction", "data"),
                xytext=(4, 3), textcoords="offset points", fontsize=8, color=style.faint,
            )  # fmt: skip
        panel.set_title(title)
        panel.margins(y=0.1)
    panels[-1].set_xlabel("environment steps")
    panels[-1].xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    named = next((panel for panel in panels if panel.get_legend_handles_labels()[0]), None)
    if named is not None:
        named.legend(loc="best")
    return figure


def _streams(groups: dict[str, _Seeds]) -> list[str]:
    """Returns the streams (``core.streams``) that any run logged."""
    columns = {name for group in groups.values() for rows in group.rows for row in rows for name in row}
    found = (name.removesuffix("_mean") for name in columns if name.endswith("_mean"))
    return sorted(name for name in found if name == "cost" or name.startswith("reward_"))


def _groups(folders: Sequence[Path]) -> tuple[dict[str, _Seeds], str, float | None]:
    """Returns (name → its seeds, environment, threshold)."""
    groups: dict[str, _Seeds] = {}
    envs, threshold = set(), None
    for path in folders:
        folder = Folder(path)
        run = folder.read()
        if not folder.metrics.exists():
            raise ControlError(f"{path} has no metrics.csv yet: train it first.")
        envs.add(run.env)
        group = groups.setdefault(f"{run.algorithm} ({run.preset})", _Seeds())
        group.rows.append(read_rows(folder.metrics))
        if folder.summary.exists():
            summary = read_json(folder.summary, f"{path} is damaged")
            threshold = summary.get("threshold")
            group.solved += summary.get("solved") is not None
    if len(envs) != 1:
        raise ControlError(f"One picture shows one environment, not {', '.join(sorted(envs)) or 'none'}.")
    return groups, envs.pop(), threshold


def _curve(panel: Any, found: Band | None, colour: str, name: str) -> None:
    if found is None:
        return
    seeds = len(found.seeds)
    label = name if seeds == 1 else f"{name}: IQM of {seeds} seeds, worst to best"
    if seeds > 1:
        low, high = found.seeds.min(axis=0), found.seeds.max(axis=0)
        panel.fill_between(found.steps, low, high, color=colour, alpha=0.16, linewidth=0)
        panel.plot(found.steps, found.seeds.T, color=colour, alpha=0.35, linewidth=0.7)
    panel.plot(found.steps, found.middle, color=colour, linewidth=2, label=label)
