"""The answer of a component that could not score a trajectory: never zero, and never a guess."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unscored:
    """No score. The trajectory is counted by its reason."""

    reason: str
    """Short fixed reason code."""
    detail: str = ""
