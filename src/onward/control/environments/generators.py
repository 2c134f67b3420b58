"""Random generators that an environment draws from besides its own ``np_random``.

Many environments draw from ``numpy.random``, from ``random`` or from ``action_space.sample()``. Invariants:
each slot has generators of its own, seeded with the slot, so that equal seeds give equal runs and an
evaluation does not move the generators of training. The program's own global generators stay as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import mtrand

PROBED = 100
"""First calls of a slot within which the use of a global generator is noticed. Setting the generators before
every call would cost more than a step of a fast environment."""


class SlotGenerators:
    """Generators of one slot."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.used_numpy = self.used_python = False
        self._left = PROBED
        self.idle = False
        """True where ``call`` is not needed: no use of a global generator was noticed."""
        self._numpy = np.random.MT19937(0)
        self._python = random.Random(0).getstate()

    def seed(self, seed: int) -> None:
        """Seeds the spaces and the slot's global generators."""
        for space in self._spaces():
            space.seed(seed)
        self._numpy = np.random.MT19937(seed)
        self._python = random.Random(seed).getstate()

    def _spaces(self) -> list[Any]:
        inner = self._env.unwrapped
        found = (getattr(env, name, None) for env in (self._env, inner) for name in _SPACES)
        return list({id(space): space for space in found if space is not None}.values())

    def call(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Calls ``function`` with the slot's global generators in place."""
        probing = self._left > 0
        self._left -= probing
        ours, theirs = self._numpy, mtrand.get_bit_generator()
        before = random.getstate() if probing or self.used_python else None
        mtrand.set_bit_generator(ours)
        if before is not None:
            random.setstate(self._python)
        known = ours.state if probing and not self.used_numpy else None
        try:
            return function(*given, **named)
        finally:
            mtrand.set_bit_generator(theirs)
            self.used_numpy = self.used_numpy or (known is not None and not _equal(known, ours.state))
            if before is not None:
                after = random.getstate()
                self.used_python = self.used_python or after != self._python
                self._python = after
                random.setstate(before)
            self.idle = not (self._left or self.used_numpy or self.used_python)

    def state(self) -> dict[str, Any]:
        """Returns the states in use, as plain data and arrays."""
        state: dict[str, Any] = {}
        own = getattr(self._env.unwrapped.np_random, "bit_generator", None)
        if own is not None:
            state["random"] = own.state
        space = getattr(self._env.unwrapped, "action_space", None)
        if space is not None:
            state["actions"] = space.np_random.bit_generator.state
        if self.used_numpy:
            state["numpy"] = self._numpy.state
        if self.used_python:
            version, words, gauss = self._python
            state["python"] = {"version": version, "words": list(words), "gauss": gauss}
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Restores the result of ``state``."""
        if "random" in state:
            self._env.unwrapped.np_random.bit_generator.state = state["random"]
        if "actions" in state:
            self._env.unwrapped.action_space.np_random.bit_generator.state = state["actions"]
        if "numpy" in state:
            self._numpy.state = state["numpy"]
            self.used_numpy, self.idle = True, False
        if "python" in state:
            saved = state["python"]
            self._python = saved["version"], tuple(saved["words"]), saved["gauss"]
            self.used_python, self.idle = True, False


_SPACES = ("action_space", "observation_space")


def _equal(one: Any, other: Any) -> bool:
    state, after = one["state"], other["state"]
    return state["pos"] == after["pos"] and np.array_equal(state["key"], after["key"])
