"""Metrics of a run: ``metrics.csv``, TensorBoard events, and the time that each part took.

Invariants: a row belongs to a step. A resumed run first removes the rows after the step it resumes from, so a
file never reports one step twice.
"""

from __future__ import annotations

import csv
import importlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onward.errors import ControlError
from onward.files import replacing

PARTS = ("env", "act", "update", "evaluate")
"""Parts that a run's time is spent on; the rest is the loop, logs and files."""
Row = dict[str, float]


class Log:
    """Writes rows to both files. ``step``: rows after it are removed first (0: a new run)."""

    def __init__(self, folder: Path, step: int = 0, tensorboard: bool = True) -> None:
        self._csv = Csv(folder / "metrics.csv", step)
        self._events = Events(folder, step) if tensorboard else None

    def write(self, row: Row) -> None:
        """Writes one row: ``row["step"]`` and any other numbers."""
        self._csv.write(row)
        if self._events is not None:
            self._events.write(row)

    def close(self) -> None:
        self._csv.close()
        if self._events is not None:
            self._events.close()


class Csv:
    """A table that may gain columns; a number that a row lacks is an empty field."""

    def __init__(self, path: Path, step: int = 0) -> None:
        self._path = path
        self._columns: list[str] = []
        kept = [row for row in read_rows(path) if row["step"] <= step] if path.exists() else []
        for row in kept:
            self._columns += [name for name in row if name not in self._columns]
        self._rewrite(kept)

    def write(self, row: Row) -> None:
        new = [name for name in row if name not in self._columns]
        if new:
            self._file.close()
            rows = read_rows(self._path)
            self._columns += new
            self._rewrite(rows)
        self._writer.writerow(row)
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _rewrite(self, rows: list[Row]) -> None:
        with replacing(self._path) as new, new.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            if self._columns:
                writer.writeheader()
            writer.writerows(rows)
        self._file = self._path.open("a", newline="")
        self._writer = csv.DictWriter(self._file, self._columns)


def read_rows(path: Path) -> list[Row]:
    """Returns the rows of a ``metrics.csv`` without empty fields; a last line cut off by a crash is skipped.

    Raises ControlError where the file holds anything but numbers.
    """
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = [row for row in reader if None not in row and None not in row.values()]
    try:
        numbers = [{name: float(text) for name, text in row.items() if text} for row in rows]
        if not all("step" in row for row in numbers):
            raise ValueError("a row belongs to no step")
    except ValueError as error:
        raise ControlError(
            f"{path} is damaged ({error}): correct that line, or take the file away to go on without it."
        ) from None
    return numbers


class Events:
    """Writes TensorBoard's event file without torch."""

    def __init__(self, folder: Path, step: int = 0) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        # Type checkers cannot see the classes of generated modules.
        events: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        summaries: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        self._event, self._summary = events.Event, summaries.Summary
        self._writer = EventFileWriter(str(folder))
        if step:
            log = events.SessionLog
            self._writer.add_event(
                self._event(wall_time=time.time(), step=step + 1, session_log=log(status=log.START))
            )

    def write(self, row: Row) -> None:
        values = [
            self._summary.Value(tag=tag(name), simple_value=value)
            for name, value in row.items()
            if name != "step"
        ]
        event = self._event(wall_time=time.time(), step=int(row["step"]), summary=self._summary(value=values))
        self._writer.add_event(event)

    def close(self) -> None:
        self._writer.close()


_GROUPS = {
    **dict.fromkeys(("return", "length", "episodes", "cost", "reward"), "rollout"),
    **dict.fromkeys(("share", "seconds", "steps"), "time"),
    "eval": "eval",
}


def tag(name: str) -> str:
    """Returns a metric's TensorBoard tag: ``return_mean`` → ``rollout/return_mean``, a loss → ``train/…``."""
    return f"{_GROUPS.get(name.split('_')[0], 'train')}/{name}"


class Times:
    """Seconds per part of a run, including earlier sessions."""

    def __init__(self, spent: Mapping[str, float] | None = None) -> None:
        self.spent: dict[str, float] = {**dict.fromkeys((*PARTS, "total", "processor"), 0.0), **(spent or {})}
        self._last, self._last_processor = time.perf_counter(), time.process_time()

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Counts the time of the body as ``part``."""
        began = time.perf_counter()
        yield
        self.spent[part] += time.perf_counter() - began

    def add(self, part: str, seconds: float) -> None:
        """Counts ``seconds`` as ``part``."""
        self.spent[part] += seconds

    def total(self) -> float:
        """Returns the seconds of the run so far."""
        now = time.perf_counter()
        self.spent["total"] += now - self._last
        self._last = now
        return self.spent["total"]

    def processor(self) -> float:
        """Returns the processor seconds of the run so far, without worker processes."""
        now = time.process_time()
        self.spent["processor"] += now - self._last_processor
        self._last_processor = now
        return self.spent["processor"]

    def shares(self) -> dict[str, float]:
        """Returns ``share_env`` … ``share_evaluate`` and ``share_other`` of all time; they add up to 1."""
        total = max(self.total(), 1e-9)
        shares = {f"share_{part}": self.spent[part] / total for part in PARTS}
        return {**shares, "share_other": max(0.0, 1 - sum(shares.values()))}


class Means:
    """Averages of the metrics of updates since the last row."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float, (state or {}).get("sums", {}))
        self._counts: defaultdict[str, int] = defaultdict(int, (state or {}).get("counts", {}))

    def add(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._sums[name] += value
            self._counts[name] += 1

    def take(self) -> Row:
        """Returns the averages and starts counting again."""
        row = {name: self._sums[name] / self._counts[name] for name in self._sums}
        self._sums.clear()
        self._counts.clear()
        return row

    def state_dict(self) -> dict[str, Any]:
        return {"sums": dict(self._sums), "counts": dict(self._counts)}
