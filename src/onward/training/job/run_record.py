"""The record of a run while it trains: its curves, TensorBoard events and trackers, from the job child."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onward.ids import local_id
from onward.training.job.curves import PICTURE, Curves
from onward.training.job.trackers import Trackers
from onward.training.spec.request import JobSpec

LOCAL = "local"
"""Job id of a run of ``onward train``, which has a name of its folder's own in trackers."""
_NOT_TOLD = {"model_folder", "not_as_asked", "ignored", "environment"}


class RunRecord:
    """Records each step. ``seconds`` counts earlier attempts too: each row has the time until its step."""

    def __init__(self, folder: Path, spec: JobSpec, warn: Callable[[str], None]) -> None:
        """Opens the files and trackers of a run. Raises MissingExtraError for a tracker without a package."""
        self._started = time.monotonic()
        self._curves = Curves(folder)
        rows = self._curves.rows
        self._before = float(rows[-1].get("seconds", 0.0)) if rows else 0.0
        run_id = spec.job_id
        if run_id == LOCAL and spec.trackers:
            run_id = local_id(folder / "run.id")
        parameters = spec.model_dump(mode="json", exclude_none=True, exclude=_NOT_TOLD)
        self._trackers = Trackers(spec.trackers or (), folder, run_id, parameters, warn)

    @property
    def seconds(self) -> float:
        """Seconds of training so far, in all attempts; what a killed attempt did after its last step is not
        known."""
        return self._before + time.monotonic() - self._started

    def start_at(self, step: int) -> None:
        """Drops the steps after ``step``, which the run repeats."""
        self._curves.start_at(step)

    def add_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        rows = self._curves.rows
        if rows and rows[-1]["step"] >= step:
            self._curves.start_at(step - 1)
        self._curves.add_step(step, {**metrics, "seconds": round(self.seconds, 3)})
        self._trackers.add_step(step, metrics)

    def finish(self, results: Mapping[str, Any], card: Path | None) -> None:
        """Draws the curves and completes the run in its trackers."""
        made = self._curves.write(dark=True)
        self._curves.close()
        shown = [path for path in made if path.name == PICTURE]
        self._trackers.finish(results, shown if card is None else [*shown, card])

    def close(self) -> None:
        """Ends the record of a run that stops before its end."""
        self._curves.write()
        self._curves.close()
        self._trackers.close()
