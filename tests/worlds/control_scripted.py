"""An environment and an algorithm whose every number is known, and the world they make a run of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from onward.control.algorithms.base import Algorithm, AsynchronousAlgorithm, AsyncProgress
from onward.control.core.config import PPOConfig
from onward.control.core.contract import Environments, EnvSpec, Step
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionSpec, Layout
from onward.control.evaluation.evaluate import play, success_rule
from onward.control.policies.policy import Layer, PolicyParts
from onward.control.running.runs import Folder, RunConfig
from onward.control.running.trainer import Event, Trainer
from onward.control.running.world import World

LENGTH = 5
"""Steps of every episode."""


class Counting(Environments):
    """Observes the step within the episode; action 1 earns 1, action 0 nothing. Every 5th step truncates.

    ``poison``: after so many steps slot 0's reward is NaN. ``apart``: slot i starts i steps into its episode.
    """

    def __init__(
        self, num: int, threshold: float | None = None, poison: int | None = None, apart: bool = True
    ) -> None:
        self.spec = EnvSpec(
            "Counting-v0",
            Layout(1),
            ActionSpec("discrete", sizes=(2,), start=(0,)),
            threshold=threshold,
            max_steps=LENGTH,
        )
        self.num, self._poison, self._apart = num, poison, apart
        self._at = np.zeros(num, np.int64)
        self._steps = 0

    def reset(self, seed: int) -> tuple[Any, None]:
        self._at = np.arange(self.num) % LENGTH * self._apart
        return self._obs(), None

    def step(self, actions: Any) -> Step:
        self._at += 1
        self._steps += 1
        ended = self._at == LENGTH
        final = self._obs()[ended] if ended.any() else None
        self._at[ended] = 0
        reward = np.asarray(actions, np.float32)
        if self._poison is not None and self._steps >= self._poison:
            reward[0] = np.nan
        return Step(self._obs(), reward, np.zeros(self.num, bool), ended, final)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self._at.copy(), "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Any, None]:
        self._at, self._steps = state["at"], state["steps"]
        return self._obs(), None

    def _obs(self) -> Any:
        return self._at.astype(np.float32)[:, None]


class Scripted(Algorithm):
    """Takes action 1 with a chance that grows with its updates; one update per 10 steps."""

    action_kinds = ("discrete",)
    images = False
    loss: Callable[[int], float] = staticmethod(lambda updates: 1.0 / updates)
    """Update → the loss that it tells."""
    gain = 0.05
    """How much the bias towards action 1 grows per update."""

    def __init__(self, spec: EnvSpec, num: int, config: Any, seeds: Seeds) -> None:
        self.config, self._spec, self._num = config, spec, num
        self._generator = seeds.generator("explore")
        self.weight = np.array([[0.0], [0.0]], np.float32)
        self.bias = np.array([0.5, 0.0], np.float32)
        self.updates, self._pending = 0, 0
        self.calls: list[tuple[str, int]] = []

    def act(self, obs: Any, mask: Any) -> Any:
        chance = min(1.0, self.updates / 50)
        return (self._generator.random(self._num) < chance).astype(np.int64)

    def observe(self, obs: Any, actions: Any, step: Step) -> None:
        self.steps += self._num
        self._pending += self._num

    def due(self) -> bool:
        return self._pending >= 10

    def update(self) -> dict[str, float]:
        self._pending -= 10
        self.updates += 1
        self.bias = self.bias + np.array([0, self.gain], np.float32)
        self.weight = self.weight + self._generator.normal(0, 1e-3, (2, 1)).astype(np.float32)
        return {"policy_loss": type(self).loss(self.updates)}

    def networks(self) -> PolicyParts:
        layer = Layer(self.weight.copy(), self.bias.copy())
        return PolicyParts(self._spec.layout, self._spec.actions, "logits", [layer])

    def state_dict(self) -> dict[str, Any]:
        return {
            "weight": self.weight,
            "bias": self.bias,
            "counts": [self.steps, self.updates, self._pending],
            "generator": self._generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start_from(state)
        self.steps, self.updates, self._pending = state["counts"]
        self._generator.bit_generator.state = state["generator"]

    def start_from(self, state: dict[str, Any]) -> None:
        self.weight, self.bias = state["weight"], state["bias"]


class ScriptedAsync(AsynchronousAlgorithm, Scripted):
    """Tells of 40 steps (8 episodes of return 5) at a time, without any environment."""

    def run(self, make_envs: Any, total_steps: int, on_progress: Any) -> None:
        while self.steps < total_steps:
            self.steps += 40
            self.updates += 1
            if not on_progress(AsyncProgress(self.steps, [(5.0, LENGTH)] * 8, {"policy_loss": 0.5})):
                return


def run_of(**changes: Any) -> RunConfig:
    """400 steps in 4 slots, evaluated at every 100 and saved at every 200."""
    run: dict[str, Any] = {
        "env": "Counting-v0", "algorithm": "ppo", "settings": PPOConfig(num_envs=4), "timesteps": 400,
        "eval_every": 100, "eval_episodes": 10, "checkpoint_every": 200, "eval_share": 1.0,
    }  # fmt: skip
    return RunConfig(**{**run, **changes})


def world_of(
    run: RunConfig, algorithm: type[Algorithm] = Scripted, poison: int | None = None, num: int | None = None
) -> World:
    """The scripted one for ``run``."""
    slots = num or run.settings.num_envs

    def evaluate(policy: Any, episodes: int, seed: int, stopped: Callable[[], bool]) -> Any:
        envs = Counting(5, run.threshold, apart=False)
        return play(policy, envs, episodes, seed, rule=success_rule(envs.spec), stopped=stopped)

    return World(lambda worker: Counting(slots, run.threshold, poison), algorithm, evaluate)


def trainer_of(
    run: RunConfig, path: Path, watch: Callable[[Event], None] = lambda _: None, **kwargs: Any
) -> Trainer:
    """A trainer of the scripted world, not started."""
    return Trainer(run, Folder(path), watch, world_of(run, **kwargs))


def assert_same_state(one: Any, other: Any) -> None:
    """Every leaf equal and of the same type, times apart."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            if key not in ("times", "seconds"):
                assert_same_state(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same_state(left, right)
    elif hasattr(one, "numpy"):
        assert_same_state(one.numpy(), other.numpy())
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other or (one != one and other != other)
