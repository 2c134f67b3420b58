"""Gymnasium's classic tasks in numpy, all slots in one call.

The one thing to know: every one is step-equal to Gymnasium's, which the tests hold it to over thousands of
random steps. ``TASKS`` says which ids ``environments.make`` runs here instead of there.
"""

from __future__ import annotations

from onward.control.classics.base import NumpyTask, discrete, vector_layout
from onward.control.classics.cartpole import CartPole
from onward.control.contract import EnvSpec

TASKS: dict[str, tuple[type[NumpyTask], EnvSpec]] = {
    spec.id: (task, spec)
    for task, spec in (
        (CartPole, EnvSpec("CartPole-v0", vector_layout(4), discrete(2), 195.0, 200)),
        (CartPole, EnvSpec("CartPole-v1", vector_layout(4), discrete(2), 475.0, 500)),
    )
}
