"""Progress of a run, as the fields of a status: percent, epoch, step, and the seconds that are left."""

from __future__ import annotations

import time
from typing import Any


class Pace:
    """The pace of one attempt. Steps of an earlier attempt count as done, and took none of its time."""

    def __init__(self, total_epochs: int, done: int | None = None) -> None:
        """``done``: steps of earlier attempts. Default: the step before the first one that is reported."""
        self._epochs = total_epochs
        self._started = time.monotonic()
        self._first = done

    def progress(self, step: int, total: int) -> dict[str, Any]:
        """Returns the progress after ``step`` of ``total``; call it once after each step."""
        if self._first is None:
            self._first = step - 1
        taken = (time.monotonic() - self._started) / (step - self._first)
        return {
            "current_epoch": min(self._epochs, -(-step * self._epochs // max(1, total))),
            "total_epochs": self._epochs,
            "current_step": step,
            "total_steps": total,
            "percent_complete": 100.0 * step / total,
            "eta_seconds": taken * (total - step),
        }
