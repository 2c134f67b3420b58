"""Tiny environments behind the contract, and the loop that drives an algorithm through them, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.control.core.contract import Environments, EnvSpec, Step
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionSpec, Layout
from onward.control.policies.policy import Policy

ACTIONS = {
    "discrete": ActionSpec("discrete", sizes=(4,)),
    "multi_discrete": ActionSpec("multi_discrete", sizes=(3, 2)),
    "multi_binary": ActionSpec("multi_binary", sizes=(2, 2, 2)),
    "box": ActionSpec("box", low=(-1.0,), high=(1.0,), shape=(1,)),
}


class Identity(Environments):
    """The right action is what is observed: 1 for a right one (for a box: 1 − its distance), 0 for others.

    Episodes are cut after 20 steps, so every one of them ends by truncation.
    """

    LENGTH = 20

    def __init__(self, kind: str, num: int = 8) -> None:
        self.kind, self.num = kind, num
        actions = ACTIONS[kind]
        width = sum(actions.sizes) if kind in ("discrete", "multi_discrete") else actions.dim
        self.spec = EnvSpec(f"identity-{kind}", Layout(width), actions, max_steps=self.LENGTH)

    def _draw(self) -> np.ndarray:
        if self.kind == "box":
            self.right: Any = self.rng.uniform(-0.9, 0.9, (self.num, 1)).astype(np.float32)
            return self.right
        sizes = self.spec.actions.sizes
        right = np.stack([self.rng.integers(size, size=self.num) for size in sizes], axis=1)
        self.right = right[:, 0] if self.kind == "discrete" else right
        if self.kind == "multi_binary":
            return right.astype(np.float32)
        return np.concatenate([np.eye(s, dtype=np.float32)[right[:, i]] for i, s in enumerate(sizes)], axis=1)

    def reset(self, seed: int):
        self.rng, self.time = np.random.default_rng(seed), 0
        return self._draw(), None

    def correct(self, actions: np.ndarray) -> np.ndarray:
        if self.kind == "box":
            return np.abs(actions - self.right)[:, 0] < 0.1
        wrong = actions != self.right
        return ~(wrong if self.kind == "discrete" else wrong.any(axis=1))

    def step(self, actions) -> Step:
        if self.kind == "box":
            reward = 1 - np.abs(np.clip(actions, -1, 1) - self.right)[:, 0]
        else:
            reward = self.correct(actions).astype(np.float32)
        self.time += 1
        cut = np.full(self.num, self.time % self.LENGTH == 0)
        obs = self._draw()
        return Step(
            obs, reward.astype(np.float32), np.zeros(self.num, bool), cut, obs.copy() if cut.any() else None
        )

    def state_dict(self):
        return {"right": self.right, "time": self.time, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state):
        raise NotImplementedError


def train(algorithm: Any, envs: Environments, total_steps: int, seed: int = 0) -> list[dict[str, float]]:
    """What the trainer does, without anything around it; gives the metrics of each update."""
    algorithm.total_steps = total_steps
    obs, mask = envs.reset(Seeds(seed).integer("envs"))
    told = []
    while algorithm.steps < total_steps:
        actions = algorithm.act(obs, mask)
        step = envs.step(actions)
        algorithm.observe(obs, actions, step)
        obs, mask = step.obs, step.action_mask
        while algorithm.due():
            told.append(algorithm.update())
    return told


def identity_score(algorithm: Any, kind: str) -> int:
    """Right greedy actions of 100, on observations that were not trained on."""
    envs = Identity(kind, 100)
    obs, _ = envs.reset(12345)
    actions = Policy(algorithm.networks()).act_flat(obs, deterministic=True)
    return int(envs.correct(actions).sum())


def greedy_returns(algorithm: Any, envs: Environments, seed: int = 999) -> np.ndarray:
    """Return of the first whole greedy episode of each slot."""
    policy = Policy(algorithm.networks())
    obs, _ = envs.reset(seed)
    total, running = np.zeros(envs.num), np.ones(envs.num, bool)
    while running.any():
        step = envs.step(policy.act_flat(obs, deterministic=True))
        total += step.reward * running
        running &= ~step.ended
        obs = step.obs
    return total
