"""The best policy of a run, by a figure on data that it was not trained on.

Invariants: a policy is on disk before the saved state names it, and is removed only after a later state names
another one. So a run that goes on from any saved state knows the same best as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onward.lm.saved import load_state, save_state


class KeptPolicy:
    """Keeps the trained tensors of the best step in ``folder``; of equals the later one."""

    def __init__(self, folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any] | None) -> None:
        """``facts`` are those of the saved state from which the run goes on."""
        self.folder, self._tensors = folder, tensors
        told = facts or {}
        self.step: int | None = told.get("step")
        """Step after which it was the best; 0 is the start, None: nothing was judged yet."""
        self.figures: list[float] = list(told.get("figures", ()))
        """Figures that it was judged by, the first number first."""
        self.evaluations: int = told.get("evaluations", 0)
        """Policies of the run that were judged. The figure of the best is the highest of so many, so it is on
        average above what that policy would have on other data."""
        self.metrics: dict[str, Any] = dict(told.get("metrics", {}))
        """Metrics of this policy: those of the step that made it, and of its evaluation."""
        if self.step is not None and not self._path(self.step).is_file():
            self.step, self.figures, self.metrics = None, [], {}

    @property
    def facts(self) -> dict[str, Any]:
        """Facts for the saved state."""
        return {"step": self.step, "figures": self.figures, "metrics": self.metrics,
                "evaluations": self.evaluations}  # fmt: skip

    def offer(self, step: int, *figures: float, metrics: Mapping[str, Any]) -> bool:
        """Keeps the present policy if no earlier one had higher ``figures``; returns True if it is kept."""
        self.evaluations += 1
        if self.step is not None and list(figures) < self.figures:
            return False
        values = [tensor.detach().cpu() for tensor in self._tensors.values()]
        save_state(self._path(step), self._tensors, {"values": values})
        self.step, self.figures, self.metrics = step, list(figures), dict(metrics)
        return True

    def remove_others(self) -> None:
        """Removes all but the best; call it after a state was saved."""
        for path in self.folder.glob("*.pt"):
            if self.step is None or path != self._path(self.step):
                path.unlink(missing_ok=True)

    @torch.no_grad()
    def put_back(self) -> None:
        """Gives the trained tensors the values of the best policy."""
        assert self.step is not None
        state = load_state(self._path(self.step), self._tensors)
        for tensor, value in zip(self._tensors.values(), state["values"], strict=True):
            tensor.copy_(value)

    def _path(self, step: int) -> Path:
        return self.folder / f"{step}.pt"
