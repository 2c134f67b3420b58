"""Shared by DQN, SAC and DDPG: steps go into a replay memory, and updates come in bursts sampled from it.

Invariants: the ratio of updates to environment steps does not depend on the number of slots. Every step after
``learning_starts`` adds its part of an update (``train_every``, ``gradient_steps``), and ``due`` stays true
until all are made. Targets mask terminations, never truncations: ``Batch.discount``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from onward.control.algorithms.base import Algorithm, take_norm
from onward.control.core.config import OffPolicyConfig
from onward.control.core.contract import EnvSpec, Step
from onward.control.core.normalise import normalised, observation_norm
from onward.control.core.replay import Batch, Replay
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import Obs
from onward.control.explore.bonus import Bonus, bonus_weight
from onward.control.explore.make import make_bonus
from onward.control.networks.adam import FlatAdam
from onward.control.networks.flat import FlatParameters
from onward.control.networks.nets import Encoder, to_tensor
from onward.errors import ControlError

BURST_ROWS = 16_384  # transitions sampled at once for a burst: one array index instead of many
IMAGE_FEATURES = 128  # features that the encoder makes of each image


class OffPolicy(Algorithm):
    """Base of off-policy algorithms. A subclass defines how to act and how to learn (``_learn``)."""

    single_batches: bool = False
    """True where each batch must be sampled after learning from the one before."""

    def __init__(self, spec: EnvSpec, num: int, config: OffPolicyConfig, seeds: Seeds) -> None:
        if spec.actions.kind not in self.action_kinds:
            raise ControlError(_refusal(config.algorithm, spec, self.action_kinds))
        self.spec, self.num, self.config = spec, num, config
        self.replay = Replay(
            spec,
            num,
            config.buffer_size,
            seeds.generator("replay"),
            gamma=config.gamma,
            n_step=config.n_step,
            prioritised=getattr(config, "prioritised", False),
            alpha=getattr(config, "priority_alpha", 0.6),
        )
        self._explore = seeds.generator("explore")
        self._init_generator = seeds.torch_generator("weights")
        self._torch_generator = seeds.torch_generator("update")
        self.norm = observation_norm(spec.layout, config)
        self.bonus: Bonus | None = make_bonus(spec, num, config, seeds)
        self.flats: dict[str, FlatParameters] = {}
        self.optimisers: dict[str, FlatAdam] = {}
        self.updates = 0  # gradient steps so far
        self._owed = 0  # steps that have not been learned from yet

    # -- for subclasses

    def _encoder(self) -> Encoder:
        return Encoder(self.spec.layout, IMAGE_FEATURES, self._init_generator)

    def _trained(self, name: str, modules: list[nn.Module]) -> FlatParameters:
        """Returns the parameters of ``modules`` as one tensor with Adam over it."""
        flat = FlatParameters([m for m in modules if next(m.parameters(), None) is not None])
        self.flats[name], self.optimisers[name] = flat, flat.adam(self.config.learning_rate)
        return flat

    def _target(self, name: str, modules: list[nn.Module], source: FlatParameters) -> FlatParameters:
        """Returns the parameters of ``modules`` as a copy of ``source``, without gradient or optimiser."""
        flat = FlatParameters([m for m in modules if next(m.parameters(), None) is not None])
        flat.lerp_from(source, 1.0)
        flat.freeze()
        self.flats[name] = flat
        return flat

    # -- for the trainer

    @property
    def warming_up(self) -> bool:
        """True while actions are random: until ``learning_starts`` steps (and until a bonus is primed)."""
        return self.steps < self.config.learning_starts or not (self.bonus is None or self.bonus.primed)

    def observe(self, obs: Obs, actions: NDArray[Any], step: Step) -> None:
        warm = self.warming_up
        if self.norm is not None:
            self.norm.update_obs(obs, self.replay.alive)
        if self.bonus is not None:
            self._tell_bonus(self.bonus, obs, actions, step)
        self.replay.add(obs, actions, step)
        self.steps += self.num
        if not warm:
            self._owed += self.num

    def environments_reset(self) -> None:
        """Every slot is alive again; the memory cuts the last steps at the next ``add``."""
        self.replay.alive = None

    def due(self) -> bool:
        return self._owed >= self.config.train_every

    def update(self) -> dict[str, float]:
        """Makes one burst: ``gradient_steps`` batches (−1: one per step collected)."""
        config = self.config
        self._owed -= config.train_every
        count = config.train_every if config.gradient_steps == -1 else config.gradient_steps
        if config.lr_schedule == "linear":
            for optimiser in self.optimisers.values():
                optimiser.lr = config.learning_rate * (1 - self.progress)
        metrics: dict[str, torch.Tensor] = {}
        bonus_metrics: dict[str, float] = {}
        for batch in self._batches(count):
            if self.bonus is not None:
                bonus_metrics = self.bonus.update(batch.obs, batch.actions, batch.next_obs)
                weight = bonus_weight(config, self.progress)
                batch.returns = batch.returns + weight * self.bonus.reward(
                    batch.obs, batch.actions, batch.next_obs
                )
            batch.obs, batch.next_obs = self._seen(batch.obs), self._seen(batch.next_obs)
            metrics = self._learn_burst(batch.tensors())
        return {name: float(value.mean()) for name, value in metrics.items()} | bonus_metrics

    def _learn_burst(self, burst: Batch) -> dict[str, torch.Tensor]:
        metrics: dict[str, torch.Tensor] = {}
        for batch in burst.pieces(self.config.batch_size):
            metrics = self._learn(batch)
            self.updates += 1
        return metrics

    def _learn(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Makes one gradient step on a batch of tensors; returns detached metrics."""
        raise NotImplementedError

    def _batches(self, count: int) -> Iterator[Batch]:
        """Yields ``count`` batches in as few samples as memory and priorities allow."""
        size = self.config.batch_size
        single = self.single_batches or self.spec.layout.images
        at_once = 1 if single else max(1, BURST_ROWS // size)
        for start in range(0, count, at_once):
            yield self._sample(size * min(at_once, count - start))

    def _sample(self, rows: int) -> Batch:
        return self.replay.sample(rows)

    def _tell_bonus(self, bonus: Bonus, obs: Obs, actions: NDArray[Any], step: Step) -> None:
        following = step.next_obs()
        if not bonus.primed:
            bonus.prime(following)
            return
        alive = None if self.replay.alive is None else self.replay.alive[None]
        bonus.observe(_one(obs), actions[None], _one(following), step.ended[None], alive)

    def _seen(self, obs: Obs) -> Obs:
        return normalised(self.norm, obs, self.config.obs_clip)

    def _features(self, encoder: Encoder, obs: Obs) -> NDArray[Any]:
        """Returns (N, features), the input of a numpy network: normalised, images encoded."""
        obs = self._seen(obs)
        if not isinstance(obs, dict):
            return obs
        with torch.no_grad():
            return encoder(to_tensor(obs)).numpy()

    def _image_parts(self, encoder: Encoder) -> dict[str, Any] | None:
        """Returns the encoder's weights in the form of a policy file; None where there are no images."""
        if self.spec.layout.flat:
            return None
        return {key: value.numpy().copy() for key, value in encoder.state_dict().items()}

    def _norm_parts(self) -> tuple[NDArray[Any], NDArray[Any], float] | None:
        if self.norm is None:
            return None
        return self.norm.mean.copy(), self.norm.var.copy(), self.config.obs_clip

    # -- resume

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "owed": self._owed,
            "updates": self.updates,
            "replay": self.replay.state_dict(),
            "explore": self._explore.bit_generator.state,
            "torch_generator": self._torch_generator.get_state(),
            "norm": None if self.norm is None else self.norm.state_dict(),
            "bonus": None if self.bonus is None else self.bonus.state_dict(),
            "weights": {name: flat.tensor.detach() for name, flat in self.flats.items()},
            "optimisers": {name: optimiser.state_dict() for name, optimiser in self.optimisers.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self._owed = int(state["steps"]), int(state["owed"])
        self.updates = int(state["updates"])
        self.replay.load_state_dict(state["replay"])
        self._explore.bit_generator.state = state["explore"]
        self._torch_generator.set_state(state["torch_generator"])
        if self.bonus is not None:
            self.bonus.load_state_dict(state["bonus"])
        self.start_from(state)

    def start_from(self, state: dict[str, Any]) -> None:
        take_norm(self.norm, state["norm"])
        for name, weights in state["weights"].items():
            with torch.no_grad():
                self.flats[name].tensor.copy_(weights)
        for name, moments in state["optimisers"].items():
            self.optimisers[name].load_state_dict(moments)


def _one(obs: Obs) -> Obs:
    return {key: array[None] for key, array in obs.items()} if isinstance(obs, dict) else obs[None]


def _refusal(algorithm: str, spec: EnvSpec, kinds: tuple[str, ...]) -> str:
    other = "sac, ddpg, td3 or ppo" if spec.actions.kind == "box" else "dqn or ppo"
    return (
        f"{algorithm} learns actions of kind {', '.join(kinds)}, but those of {spec.id} are "
        f"{spec.actions.kind}: use {other}."
    )
