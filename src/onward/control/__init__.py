"""Control policies for Gymnasium environments: environments, algorithms, evaluation, export.

All parts exchange ``core.contract.Step``: arrays with a leading axis of slots. ``environments`` sets its
flags (termination or truncation); ``core.returns`` and ``core.replay`` read them, so that a truncation is
bootstrapped. Reading order: ``core.contract``, ``environments``, ``algorithms``, ``running.trainer``,
``evaluation``, ``policies``. From Python: ``api``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.lazy import attributes

if TYPE_CHECKING:
    from onward.control.api import TrainedRun, evaluate, resume, train
    from onward.control.policies.policy import Policy

__all__ = ["Policy", "TrainedRun", "evaluate", "resume", "train"]
__getattr__ = attributes(
    __name__,
    {
        "onward.control.api": "TrainedRun evaluate resume train",
        "onward.control.policies.policy": "Policy",
    },
)
