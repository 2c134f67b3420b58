"""Scripted steps and networks with known weights, for tests of the algorithms with a replay memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from onward.control.algorithms.off_policy import OffPolicy
from onward.control.core.contract import Environments, EnvSpec, Step
from onward.control.core.replay import Batch
from onward.control.core.spaces import ActionSpec, Layout
from onward.control.networks.flat import FlatParameters


class Endless(Environments):
    """One state, reward 1 whatever is done. Life never ends: the time limit cuts it after 5 steps.

    So its value is 1 / (1 − γ), and whoever takes a cut for an end finds less.
    """

    def __init__(self, actions: ActionSpec, num: int = 4) -> None:
        self.spec, self.num = EnvSpec("Endless", Layout(1), actions, max_steps=5), num

    def reset(self, seed: int) -> tuple[Any, None]:
        self.time = np.zeros(self.num, np.int64)
        return np.ones((self.num, 1), np.float32), None

    def step(self, actions: Any) -> Step:
        self.time += 1
        cut = self.time == 5
        self.time[cut] = 0
        final = np.ones((int(cut.sum()), 1), np.float32) if cut.any() else None
        ones = np.ones(self.num, np.float32)
        return Step(np.ones((self.num, 1), np.float32), ones, np.zeros(self.num, bool), cut, final)

    def state_dict(self) -> dict[str, Any]:
        return {"time": self.time}

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        raise NotImplementedError


def batch(obs: Any, actions: Any, returns: Any, next_obs: Any, discount: Any, **more: Any) -> Batch:
    """A batch of tensors from plain numbers."""

    def floats(values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32)

    rows = np.arange(len(returns))
    return Batch(
        floats(obs), torch.tensor(actions), floats(returns), floats(next_obs), floats(discount),
        more.get("weights"), rows, more.get("next_mask"),
    )  # fmt: skip


@torch.no_grad()
def fill(flat: FlatParameters, *values: Any) -> None:
    """Set the parameters, in order, to ``values`` of their shapes."""
    for parameter, value in zip(flat.parameters, values, strict=True):
        parameter.copy_(torch.as_tensor(value, dtype=torch.float32).reshape(parameter.shape))


def optimised(algorithm: OffPolicy) -> set[int]:
    """Addresses of all memory that an optimiser of the algorithm writes to."""
    found = set()
    for optimiser in algorithm.optimisers.values():
        found.add(optimiser.tensor.untyped_storage().data_ptr())
    return found


def assert_resumes(make: Any, envs: Any, before: int, after: int) -> None:
    """An algorithm restored at ``before`` steps goes on like the one that was never stopped, bit for bit."""

    def play(algorithms: list[OffPolicy], obs: Any, until: int) -> Any:
        while algorithms[0].steps < until:
            actions = algorithms[0].act(obs, None)
            step = envs.step(actions)
            told: list[list[Any]] = []
            for algorithm in algorithms:
                if algorithm is not algorithms[0]:
                    assert np.array_equal(algorithm.act(obs, None), actions)
                algorithm.observe(obs, actions, step)
                told.append([])
                while algorithm.due():
                    told[-1].append(algorithm.update())
            assert all(metrics == told[0] for metrics in told)
            obs = step.obs
        return obs

    first, second = make(), make()
    first.total_steps = second.total_steps = after
    obs, _ = envs.reset(3)
    obs = play([first], obs, before)
    assert first.updates > 0
    second.load_state_dict(first.state_dict())
    play([first, second], obs, after)
    assert first.updates == second.updates
    for name, flat in first.flats.items():
        assert torch.equal(flat.tensor, second.flats[name].tensor), name
    for name, optimiser in first.optimisers.items():
        one, other = optimiser.state_dict(), second.optimisers[name].state_dict()
        assert all(torch.equal(one[key], other[key]) for key in one), name
