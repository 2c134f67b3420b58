"""The curves of a run: every step as a line of JSON and in TensorBoard's events, all of them as CSV and PNG.

No torch. Know before changing: a run that goes on from step n drops what it had written after n, since it
does those steps again.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from onward.control.log import Events

LINES, TABLE, PICTURE = "metrics.jsonl", "metrics.csv", "curves.png"
_DRAWN = (
    "reward_mean",
    "success_rate",
    "loss",
    "kl_divergence",
    "clip_fraction",
    "ess",
    "policy_entropy",
    "accuracy",
    "margin",
    "tokens_per_second",
)


class Curves:
    """Rows by step; ``add`` appends at once, ``write`` makes the table and the picture."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = []
        self._events: Events | None = None
        path = folder / LINES
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    self.rows.append(json.loads(line))
                except ValueError:
                    break  # cut off in the middle of a line
        self.start_at(self.rows[-1]["step"] if self.rows else 0)

    def start_at(self, step: int) -> None:
        """Keep the steps up to ``step`` only."""
        self.close()
        self.rows = [row for row in self.rows if row["step"] <= step]
        text = "".join(json.dumps(row) + "\n" for row in self.rows)
        (self.folder / LINES).write_text(text, encoding="utf-8")

    def add(self, step: int, metrics: dict[str, Any]) -> None:
        row = {"step": step, **metrics}
        if self._events is None:
            self._events = _events(self.folder, self.rows[-1]["step"] if self.rows else 0)
        if self._events is not None:
            self._events.write({name: value for name, value in row.items() if _is_number(value)})
        self.rows.append(row)
        with open(self.folder / LINES, "a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")

    def close(self) -> None:
        """Finish the file of events; ``add`` begins another."""
        if self._events is not None:
            self._events.close()
            self._events = None

    def write(self) -> list[Path]:
        """The table, and the picture where matplotlib is installed."""
        if not self.rows:
            return []
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        with open(self.folder / TABLE, "w", encoding="utf-8", newline="") as out:
            table = csv.DictWriter(out, names)
            table.writeheader()
            table.writerows(self.rows)
        made = [self.folder / TABLE]
        drawn = [name for name in _DRAWN if sum(name in row for row in self.rows) > 1]
        if drawn and _draw(self.rows, drawn, self.folder / PICTURE):
            made.append(self.folder / PICTURE)
        return made


def _events(folder: Path, step: int) -> Events | None:
    """None where tensorboard is not installed."""
    try:
        return Events(folder, step)
    except ImportError:
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _draw(rows: list[dict[str, Any]], names: list[str], path: Path) -> bool:
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.8 * lines), layout="constrained")
    for number, name in enumerate(names):
        axes = figure.add_subplot(lines, columns, number + 1)
        points = [(row["step"], row[name]) for row in rows if name in row]
        axes.plot([x for x, _ in points], [y for _, y in points], linewidth=1.4)
        axes.set_title(name.replace("_", " "), fontsize=9)
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    return True
