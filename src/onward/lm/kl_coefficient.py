"""A KL coefficient that steers towards a target (Ziegler et al., 1909.08593, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass

GAIN, BOUND = 0.1, 0.2  # K_β and the clipping bound of the error in the paper


@dataclass
class KlCoefficient:
    """β ← β (1 + 0.1·clip(KL/target − 1, ±0.2)) after each step; constant without a target."""

    value: float
    target: float | None = None

    def observe(self, kl: float) -> None:
        """``kl`` in nats per token; a number that is not finite is ignored."""
        if self.target is None or not abs(kl) < float("inf"):
            return
        error = max(-BOUND, min(BOUND, kl / self.target - 1.0))
        self.value *= 1.0 + GAIN * error
