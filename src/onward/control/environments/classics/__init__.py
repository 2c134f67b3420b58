"""Gymnasium's classic tasks in numpy, all slots in one call.

Invariants: each task is step-equal to Gymnasium's, which tests check over thousands of random steps.
``TASKS`` lists the ids that ``environments.make`` runs here.
"""

from __future__ import annotations

from onward.control.core.contract import EnvSpec
from onward.control.environments.classics.acrobot import Acrobot
from onward.control.environments.classics.base import NumpyTask, box, discrete, vector_layout
from onward.control.environments.classics.cartpole import CartPole
from onward.control.environments.classics.mountain_car import MountainCar, MountainCarContinuous
from onward.control.environments.classics.pendulum import Pendulum

TASKS: dict[str, tuple[type[NumpyTask], EnvSpec]] = {
    "CartPole-v0": (CartPole, EnvSpec("CartPole-v0", vector_layout(4), discrete(2), 195.0, 200)),
    "CartPole-v1": (CartPole, EnvSpec("CartPole-v1", vector_layout(4), discrete(2), 475.0, 500)),
    "MountainCar-v0": (MountainCar, EnvSpec("MountainCar-v0", vector_layout(2), discrete(3), -110.0, 200)),
    "MountainCarContinuous-v0": (
        MountainCarContinuous,
        EnvSpec("MountainCarContinuous-v0", vector_layout(2), box(-1.0, 1.0), 90.0, 999),
    ),
    "Acrobot-v1": (Acrobot, EnvSpec("Acrobot-v1", vector_layout(6), discrete(3), -100.0, 500)),
    "Pendulum-v1": (Pendulum, EnvSpec("Pendulum-v1", vector_layout(3), box(-2.0, 2.0), None, 200)),
}
