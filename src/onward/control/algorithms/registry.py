"""Names of the algorithms, and what each can learn.

An algorithm's module is imported on request, so listing the names does not import torch.
"""

from __future__ import annotations

import importlib

from onward.control.algorithms.base import Algorithm
from onward.control.core.contract import EnvSpec
from onward.errors import ControlError

ALGORITHMS: dict[str, tuple[str, str, str]] = {
    "q_learning": ("q_learning", "QLearning", "tabular Q-learning, the smallest value method"),
    "reinforce": ("reinforce", "Reinforce", "the smallest policy gradient, with a learned baseline"),
    "dqn": ("dqn", "DQN", "deep Q-learning: Double, n-step, dueling, prioritised; discrete actions"),
    "ppo": ("ppo", "PPO", "clipped policy gradient; every kind of action, the first to try"),
    "a3c": ("a3c", "A3C", "asynchronous workers in processes of their own"),
    "sac": ("sac", "SAC", "soft actor-critic with automatic temperature; continuous actions"),
    "ddpg": ("ddpg", "DDPG", "deterministic policy gradient, Gaussian or OU noise; continuous actions"),
    "td3": ("ddpg", "DDPG", "DDPG with twin critics, delayed policy and target noise; continuous actions"),
}
"""Name → (module, class, description)."""


def algorithm_class(name: str) -> type[Algorithm]:
    """Returns the class of an algorithm. Raises ControlError for an unknown name."""
    check_name(name)
    module, cls, _ = ALGORITHMS[name]
    return getattr(importlib.import_module(f"onward.control.algorithms.{module}"), cls)


def check_name(name: str) -> None:
    """Raises ControlError for an unknown name."""
    if name not in ALGORITHMS:
        raise ControlError(f"There is no algorithm {name!r}: choose one of {', '.join(ALGORITHMS)}.")


def check_fits(name: str, spec: EnvSpec) -> None:
    """Raises ControlError, naming the algorithms that do fit, where ``name`` cannot learn ``spec``."""
    if algorithm_class(name).learns(spec):
        return
    others = [other for other in ALGORITHMS if algorithm_class(other).learns(spec)]
    takes = f"takes {spec.actions.kind} actions"
    gives = "images" if not spec.layout.flat else "numbers that are measured, not counted"
    if spec.actions.kind in algorithm_class(name).action_kinds:
        takes = f"gives {gives}"
    raise ControlError(
        f"{name} cannot learn {spec.id}, which {takes}: "
        f"use {' or '.join(others) if others else 'another environment, no algorithm takes these'}."
    )
