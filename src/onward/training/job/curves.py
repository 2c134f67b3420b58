"""The curves of a run: each step as a JSON line and a TensorBoard event, all steps as CSV and as a picture.

Needs no torch. A run that continues from step n drops its rows after n, since it repeats those steps.
"""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path
from typing import Any

from onward import plotting
from onward.control.running.log import Events
from onward.files import replacing

LINES, TABLE, PICTURE = "metrics.jsonl", "metrics.csv", "curves.png"
_DRAWN = (
    "reward_mean", "success_rate", "loss", "kl_divergence", "clip_fraction", "ess", "policy_entropy",
    "accuracy", "margin", "eval_loss", "eval_accuracy", "tokens_per_second",
)  # fmt: skip
_RATES = frozenset({"success_rate", "clip_fraction", "ess", "accuracy", "eval_accuracy"})
"""Metrics drawn from 0 to 1."""
_WORDS = {"kl_divergence": "KL divergence", "ess": "effective sample size (share)"}
"""Titles other than the metric's name with spaces."""
_TOLD = ("success_rate", "accuracy", "reward_mean", "loss")
"""Metrics for the title, which shows the change of the first one present."""
_ENDS = 0.1
"""Share of the steps, at the start and at the end, whose mean the title shows."""


class Curves:
    """Rows by step; ``add_step`` appends at once, ``write`` makes the table and the picture."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = read_rows(folder)
        self._events: Events | None = None
        self.start_at(self.rows[-1]["step"] if self.rows else 0)

    def start_at(self, step: int) -> None:
        """Keeps only the steps up to ``step``."""
        self.close()
        self.rows = [row for row in self.rows if row["step"] <= step]
        text = "".join(json.dumps(row) + "\n" for row in self.rows)
        (self.folder / LINES).write_text(text, encoding="utf-8")

    def add_step(self, step: int, metrics: dict[str, Any]) -> None:
        row = {"step": step, **metrics}
        if self._events is None:
            self._events = _events(self.folder, self.rows[-1]["step"] if self.rows else 0)
        if self._events is not None:
            self._events.write({name: value for name, value in row.items() if _is_number(value)})
        self.rows.append(row)
        with open(self.folder / LINES, "a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")

    def close(self) -> None:
        """Closes the event file; ``add`` starts another."""
        if self._events is not None:
            self._events.close()
            self._events = None

    def write(self, *, dark: bool = False) -> list[Path]:
        """Writes the table, and the picture if matplotlib is installed; with ``dark`` also a dark version."""
        return write(self.folder, self.rows, dark=dark)


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Returns the rows of a run, also while it goes on: a line that is not whole yet is left out."""
    rows: list[dict[str, Any]] = []
    path = folder / LINES
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break  # cut off in the middle of a line
    return rows


def write(folder: Path, rows: list[dict[str, Any]], *, dark: bool = False) -> list[Path]:
    """Writes the table of ``rows``, and the picture if matplotlib is installed. Returns their paths."""
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows for name in row))
    with replacing(folder / TABLE) as new, open(new, "w", encoding="utf-8", newline="") as out:
        table = csv.DictWriter(out, names)
        table.writeheader()
        table.writerows(rows)
    made = [folder / TABLE]
    drawn = [name for name in _DRAWN if sum(name in row for row in rows) > 1]
    if drawn and importlib.util.find_spec("matplotlib") is not None:
        made += plotting.save(lambda style: _figure(rows, drawn, style), folder / PICTURE, dark=dark)
    return made


def _events(folder: Path, step: int) -> Events | None:
    """Opens the event file; None if tensorboard is not installed."""
    try:
        return Events(folder, step)
    except ImportError:
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def finding(rows: list[dict[str, Any]]) -> str:
    """Returns the title: a metric's mean over the first tenth of the steps → its mean over the last tenth."""
    for name in _TOLD:
        values = [row[name] for row in rows if name in row]
        if len(values) > 1:
            few = max(1, round(_ENDS * len(values)))
            first, last = sum(values[:few]) / few, sum(values[-few:]) / few
            word = name.replace("_", " ").capitalize()
            return f"{word} {first:.2f} → {last:.2f} in {rows[-1]['step']:,} steps"
    return f"{rows[-1]['step']:,} steps"


def _figure(rows: list[dict[str, Any]], names: list[str], style: plotting.Style) -> Any:
    from matplotlib.figure import Figure

    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(3.6 * columns, 0.4 + 2.4 * lines), layout="constrained")
    plotting.title(figure, finding(rows))
    for number, name in enumerate(names):
        axes = figure.add_subplot(lines, columns, number + 1)
        shown = [row for row in rows if name in row]
        steps, values = [row["step"] for row in shown], [row[name] for row in shown]
        axes.plot(steps, values, color=style.colours[0], linewidth=1.4)
        if name == "success_rate" and all("scored" in row for row in shown):
            bounds = [plotting.wilson(row[name] * row["scored"], row["scored"]) for row in shown]
            low, high = zip(*bounds, strict=True)
            axes.fill_between(steps, low, high, color=style.colours[0], alpha=0.16, linewidth=0)
        axes.set_title(_WORDS.get(name, name.replace("_", " ")))
        axes.set_xlabel("step")
        if name in _RATES:
            plotting.rates(axes.yaxis)
    return figure
