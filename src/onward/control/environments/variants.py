"""Similar tasks for zero-shot transfer: the same spaces, with a changed body or a changed world.

Invariants: the variants were fixed before anything was trained on them. A policy is evaluated unchanged and
learns nothing there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onward.control.core.contract import Environments
from onward.control.environments import make


@dataclass(frozen=True)
class Variant:
    """One changed task."""

    env_id: str
    name: str
    changes: dict[str, Any]
    """Arguments of the environment: physical constants of the numpy tasks, or arguments of Gymnasium's."""

    def make(self, num: int, env_kwargs: dict[str, Any] | None = None) -> Environments:
        """Makes ``num`` slots of the variant. ``env_kwargs``: arguments of the original task, if any."""
        made = make(self.env_id, num, env_kwargs={**(env_kwargs or {}), **self.changes})
        made.without_shaping()
        return made


_CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "CartPole-v1": {
        "pole twice as long": {"length": 1.0},
        "pole three times as heavy": {"masspole": 0.3},
        "push 7 N instead of 10": {"force_mag": 7.0},
        "push 15 N instead of 10": {"force_mag": 15.0},
    },
    "Pendulum-v1": {
        "gravity 8 instead of 10": {"g": 8.0},
        "gravity 12 instead of 10": {"g": 12.0},
        "20 % heavier": {"m": 1.2},
        "20 % longer": {"l": 1.2},
    },
    "LunarLander-v3": {
        "gravity 8 instead of 10": {"gravity": -8.0},
        "gravity 11.5 instead of 10": {"gravity": -11.5},
        "wind of power 10": {"enable_wind": True, "wind_power": 10.0, "turbulence_power": 1.0},
    },
}
_CHANGES["LunarLanderContinuous-v3"] = _CHANGES["LunarLander-v3"]

VARIANTS: dict[str, tuple[Variant, ...]] = {
    env_id: tuple(Variant(env_id, name, changes) for name, changes in variants.items())
    for env_id, variants in _CHANGES.items()
}
