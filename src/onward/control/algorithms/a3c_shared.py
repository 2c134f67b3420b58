"""State shared by the worker processes of A3C, and the only way to change it.

Invariants: a worker submits its gradient explicitly. Under a short lock the gradient is copied, Adam updates
the shared flat parameters, and the worker copies them back. No gradient is ever shared memory, so none can be
lost or accumulate, however gradients are cleared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.multiprocessing as torch_processes

from onward.control.core.normalise import RunningNorm
from onward.control.networks.adam import FlatAdam


class Shared:
    """State of all workers: flat parameters, Adam's moments, statistics of observations, the step count."""

    def __init__(self, parameters: torch.Tensor, adam: dict[str, Any], width: int, steps: int) -> None:
        self.parameters = parameters.detach().clone().share_memory_()
        saved = adam
        blank = {"step": torch.zeros(()), "exp_avg": self.parameters * 0, "exp_avg_sq": self.parameters * 0}
        self.adam = {
            name: torch.as_tensor(saved.get(name, t)).clone().share_memory_() for name, t in blank.items()
        }
        self.statistics = torch.zeros(1 + 2 * width, dtype=torch.float64).share_memory_()
        self.steps = torch.tensor([steps], dtype=torch.int64).share_memory_()
        self.lock = torch_processes.get_context("spawn").Lock()
        self._stop = torch.zeros(1, dtype=torch.uint8).share_memory_()

    def stop(self) -> None:
        """Signals the workers to end. Takes no lock: a worker that died holding it must not block this."""
        self._stop.fill_(1)

    @property
    def stopped(self) -> bool:
        return bool(self._stop)


class HandIn:
    """Submits a worker's gradients to ``Shared``."""

    def __init__(self, shared: Shared, learning_rate: float) -> None:
        self.shared = shared
        self._grad = torch.zeros_like(shared.parameters)
        self._adam = FlatAdam(shared.parameters, self._grad, learning_rate, 1e-5, shared.adam)

    def __call__(self, gradient: torch.Tensor, into: torch.Tensor, learning_rate: float, steps: int) -> None:
        """Makes one step of Adam with ``gradient`` and copies the new parameters to ``into``."""
        self._adam.lr = learning_rate
        with self.shared.lock, torch.no_grad():
            self._grad.copy_(gradient)
            self._adam.step()
            into.copy_(self.shared.parameters)
            self.shared.steps += steps


def read_statistics(shared: Shared, norm: RunningNorm) -> None:
    count, rest = int(shared.statistics[0]), shared.statistics[1:].numpy()
    mean, squares = rest[: len(rest) // 2], rest[len(rest) // 2 :]
    norm.load_state_dict({"count": count, "mean": mean, "squares": squares, "frozen": False})


def write_statistics(shared: Shared, norm: RunningNorm) -> None:
    state = norm.state_dict()
    flat = np.concatenate(([state["count"]], state["mean"], state["squares"]))
    shared.statistics.copy_(torch.from_numpy(flat))
