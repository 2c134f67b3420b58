"""A worker of A3C: its own environments, its own networks, one thread (Mnih et al. 2016, algorithm S3).

Everything here runs in a spawned process; the arguments of ``work`` are pickled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from onward.control.algorithms.a3c_shared import HandIn, Shared, read_statistics, write_statistics
from onward.control.algorithms.actor_critic import ActorCritic, annealed
from onward.control.core.config import A3CConfig
from onward.control.core.contract import Environments, EnvSpec, Flags, Step
from onward.control.core.normalise import RunningNorm, normalised, observation_norm
from onward.control.core.returns import gae
from onward.control.core.rollout import Rollout, in_rows, merged
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import Obs, take
from onward.control.core.threads import denormals_flushed, use_threads
from onward.control.networks.nets import to_tensor
from onward.errors import EnvironmentFault
from onward.processes import stay_deaf

REPORT_SECONDS = 0.5


def gradient(
    net: ActorCritic, rollout: Rollout, config: A3CConfig, seen: Callable[[Obs], Obs]
) -> dict[str, float]:
    """Sets the gradient of −log π(a|s)·A + c_v·(V − R)² − c_e·H over alive steps, clipped.

    A and R are constants: no gradient flows through the targets.
    """
    of_obs, led_to = rollout.values(lambda obs: net.values(seen(obs)))
    values, flags = of_obs[:-1, :, 0], (rollout.terminated, rollout.truncated)
    advantages = gae(
        rollout.rewards, values, led_to[..., 0], *flags, config.gamma, config.gae_lambda, rollout.alive
    )
    targets = advantages + values
    living = rollout.alive.reshape(-1)
    share = torch.from_numpy((living / max(1, living.sum())).astype(np.float32))
    mask = None if rollout.masks is None else in_rows(rollout.masks)

    outputs, estimates = net(to_tensor(seen(merged(take(rollout.obs, np.s_[:-1])))))
    scores = net.dist.score(outputs, in_rows(rollout.actions), mask)
    policy_loss = -(scores.log_probs * torch.from_numpy(advantages.reshape(-1)) * share).sum()
    value_loss = ((estimates[:, 0] - torch.from_numpy(targets.reshape(-1))).square() * share).sum()
    entropy = (scores.entropies() * share).sum()
    net.flat.backward(policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy)
    return {
        "policy_loss": policy_loss.item(),
        "value_loss": value_loss.item(),
        "entropy": entropy.item(),
        "grad_norm": net.flat.clip_(config.max_grad_norm).item(),
    }


class Worker:
    """Collects ``n_steps`` of its own environments, submits a gradient, and reports at intervals."""

    def __init__(self, index: int, shared: Shared, spec: EnvSpec, config: A3CConfig, seeds: Seeds) -> None:
        seeds = seeds.child("worker", index)
        self.shared, self.config, self.seeds = shared, config, seeds
        self.net = ActorCritic(spec, config, seeds.torch_generator("weights"))
        self.net.load_parameters(shared.parameters)
        self.hand_in = HandIn(shared, config.learning_rate)
        self.rollout = Rollout(spec.layout, spec.actions, config.n_steps, config.num_envs)
        self.norm = observation_norm(spec.layout, config)
        self.draws = seeds.generator("actions")
        self.returns, self.lengths = np.zeros(config.num_envs), np.zeros(config.num_envs, np.int64)
        self.episodes: list[tuple[float, int]] = []

    def run(self, envs: Environments, total_steps: int, tell: Callable[[Any], None]) -> None:
        obs, mask = envs.reset(self.seeds.integer("envs"))
        alive: Flags | None = None
        told = time.monotonic()
        while not self.shared.stopped and int(self.shared.steps) < total_steps:
            self.rollout.clear()
            while not self.rollout.full:
                actions = self.net.act(self._seen(obs), self.draws, mask)
                step = envs.step(actions)
                self.rollout.add(obs, actions, step, mask, alive)
                self._count(step)
                obs, mask, alive = step.obs, step.action_mask, step.alive
            metrics = self.learn(total_steps)
            if time.monotonic() - told > REPORT_SECONDS:
                tell((self.episodes, metrics))
                told, self.episodes = time.monotonic(), []
        tell((self.episodes, {}))

    def learn(self, total_steps: int) -> dict[str, float]:
        """Computes and submits one gradient."""
        config = self.config
        metrics = gradient(self.net, self.rollout, config, self._seen)
        progress = min(1.0, int(self.shared.steps) / total_steps)
        rate = annealed(config.learning_rate, config.lr_schedule, progress)
        self.hand_in(self.net.flat.grad, self.net.flat.tensor, rate, config.n_steps * config.num_envs)
        self._share_statistics()
        return metrics

    def _seen(self, obs: Obs) -> Obs:
        return normalised(self.norm, obs, self.config.obs_clip)

    def _count(self, step: Step) -> None:
        self.returns += step.reward
        self.lengths += 1
        for slot in np.flatnonzero(step.ended):
            self.episodes.append((float(self.returns[slot]), int(self.lengths[slot])))
            self.returns[slot], self.lengths[slot] = 0.0, 0

    def _share_statistics(self) -> None:
        """Adds this rollout's observations to the shared statistics and continues with those."""
        if self.norm is None:
            return
        met = RunningNorm(len(self.norm.mean))
        met.update_obs(merged(take(self.rollout.obs, np.s_[:-1])), self.rollout.alive.reshape(-1))
        with self.shared.lock:
            read_statistics(self.shared, self.norm)
            self.norm.merge(met)
            write_statistics(self.shared, self.norm)


def work(
    index: int,
    shared: Shared,
    parts: tuple[EnvSpec, A3CConfig, Seeds, Callable[[int], Environments]],
    total_steps: int,
    pipe: Connection,
) -> None:
    """Runs a worker process. It sends (episodes, metrics), then None, or why it failed: an EnvironmentFault
    or a sentence."""
    stay_deaf()  # signals are ignored: the trainer stops the workers
    use_threads(1)
    spec, config, seeds, make_envs = parts
    try:
        worker, envs = Worker(index, shared, spec, config, seeds), make_envs(index)
        try:
            with denormals_flushed():
                worker.run(envs, total_steps, pipe.send)
        finally:
            envs.close()
        pipe.send(None)
    except (KeyboardInterrupt, BrokenPipeError):
        return
    except EnvironmentFault as error:
        pipe.send(error)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
