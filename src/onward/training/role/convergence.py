"""Signs in a job's events that its training diverges: it is ended, and tried again with half the rate. Pure.

Counted within one attempt: an attempt that continues an earlier one begins to count anew.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from onward.config import TrainingSettings
from onward.training.role.endings import ChildError

NON_FINITE = 5
"""Progress reports in a row with more steps that were not finite."""
CERTAINTY = 3.0
"""Standard errors that a fall of the reward must exceed, so that chance alone ends no job."""


class Divergence:
    """The watch over one attempt; ``note`` raises ChildError("CONVERGENCE")."""

    def __init__(self, settings: TrainingSettings) -> None:
        self._settings = settings
        self._skipped = 0
        self._non_finite = 0
        self._rewards: deque[tuple[float, float]] = deque(maxlen=settings.falling_evaluations + 1)

    def note(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "progress":
            self._note_step(int(event.get("skipped_steps") or 0), event["metrics"])
        elif event["event"] == "held_out" and event.get("reward") is not None:
            count = event.get("episodes") or event.get("effective") or 1  # an estimate has effective tasks
            self._note_reward(float(event["reward"]), float(count))

    def _note_step(self, skipped: int, metrics: Mapping[str, Any]) -> None:
        self._non_finite = self._non_finite + 1 if skipped > self._skipped else 0
        self._skipped = skipped
        if self._non_finite >= NON_FINITE:
            raise _diverged(f"{NON_FINITE} reports in a row had steps that were not finite")
        kl, entropy = metrics.get("kl_divergence"), metrics.get("policy_entropy")
        if kl is not None and kl > self._settings.max_kl:
            raise _diverged(f"the KL divergence is {kl:.3g}, above training.max_kl {self._settings.max_kl:g}")
        if entropy is not None and entropy < self._settings.min_entropy:
            least = self._settings.min_entropy
            raise _diverged(f"the entropy is {entropy:.3g}, below training.min_entropy {least:g}")

    def _note_reward(self, mean: float, count: float) -> None:
        self._rewards.append((mean, count))
        if len(self._rewards) < self._settings.falling_evaluations + 1:
            return
        means = [one for one, _ in self._rewards]
        falls = all(later < sooner for sooner, later in itertools.pairwise(means))
        noise = math.hypot(*(_standard_error(*self._rewards[at]) for at in (0, -1)))
        if falls and means[0] - means[-1] > CERTAINTY * noise:
            raise _diverged(
                f"the reward fell in {self._settings.falling_evaluations} evaluations in a row, from "
                f"{means[0]:.3g} to {means[-1]:.3g}"
            )


def _standard_error(mean: float, count: float) -> float:
    """Returns the largest standard error that a mean of values between 0 and 1 can have. One more success and
    failure are added: few equal values prove nothing."""
    inside = (min(max(mean, 0.0), 1.0) * count + 1.0) / (count + 2.0)
    return math.sqrt(inside * (1.0 - inside) / (count + 2.0))


def _diverged(what: str) -> ChildError:
    return ChildError("CONVERGENCE", f"The training diverges: {what}.")
