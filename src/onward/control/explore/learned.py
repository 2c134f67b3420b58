"""Shared by RND and ICM: whitened inputs, a scaled stream, one optimiser, and a state that is saved whole.

A subclass defines the error of each transition (the raw bonus) and the loss to train on. Both use
observations whitened by running statistics and clipped to ±5, as in Burda et al. 2018: the error on an input
outside a random network's usual range has no meaning.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onward.control.core.config import BonusConfig
from onward.control.core.contract import EnvSpec, Flags
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import Obs
from onward.control.explore.bonus import (
    Bonus,
    Floats,
    ReturnFilter,
    check_kind,
    flat_rows,
    living_rows,
)
from onward.control.networks.flat import FlatParameters

CLIP = 5.0


class LearnedBonus(Bonus):
    """A bonus that is a network's error on each transition."""

    kind: ClassVar[str]

    def __init__(self, spec: EnvSpec, num: int, config: BonusConfig, seeds: Seeds) -> None:
        super().__init__(spec, config, config.bonus_random_steps)
        self.filter = ReturnFilter(num, config.bonus_gamma, self.episodic)
        self.fixed, self.learned = self._networks(spec, config, seeds.torch_generator("bonus"))
        self.flat = FlatParameters(self.learned)
        self.adam = self.flat.adam(config.bonus_learning_rate)
        for module in self.fixed:
            module.requires_grad_(False)

    @abstractmethod
    def _networks(
        self, spec: EnvSpec, config: BonusConfig, draws: torch.Generator
    ) -> tuple[list[nn.Module], list[nn.Module]]:
        """Returns (networks that never change, networks that learn)."""

    @abstractmethod
    def _errors(self, before: Tensor, actions: NDArray[Any], after: Tensor) -> Tensor:
        """Returns (M,) the raw bonus of M transitions of whitened observations."""

    @abstractmethod
    def _loss(self, before: Tensor, actions: NDArray[Any], after: Tensor) -> Tensor:
        """Returns the loss to minimise on such transitions."""

    def observe(
        self, obs: Obs, actions: NDArray[Any], next_obs: Obs, ended: Flags, alive: Flags | None = None
    ) -> None:
        self.norm.update(living_rows(flat_rows(next_obs, self.layout), alive))
        raw = self._raw(obs, actions, next_obs)
        self.filter.observe(raw if alive is None else np.where(alive, raw, 0), ended)

    def reward(self, obs: Obs, actions: NDArray[Any], next_obs: Obs) -> Floats:
        return self._raw(obs, actions, next_obs) / np.float32(self.filter.std)

    @torch.inference_mode()
    def _raw(self, obs: Obs, actions: NDArray[Any], next_obs: Obs) -> Floats:
        before, after = self._white(obs), self._white(next_obs)
        lead = before.shape[:-1]
        flat = actions.reshape(-1, *actions.shape[len(lead) :])
        return self._errors(before.flatten(0, -2), flat, after.flatten(0, -2)).numpy().reshape(lead)

    def update(self, obs: Obs, actions: NDArray[Any], next_obs: Obs) -> dict[str, float]:
        loss = self._loss(self._white(obs), actions, self._white(next_obs))
        self.flat.backward(loss)
        self.adam.step()
        return {"bonus_loss": float(loss.detach()), "bonus_std": self.filter.std}

    def _white(self, obs: Obs) -> Tensor:
        return torch.from_numpy(self.norm.normalise(flat_rows(obs, self.layout), CLIP))

    def state_dict(self) -> dict[str, Any]:
        return {
            "bonus": self.kind,
            "norm": self.norm.state_dict(),
            "filter": self.filter.state_dict(),
            "primed_by": self.primed_by,
            "fixed": [{k: v.clone() for k, v in module.state_dict().items()} for module in self.fixed],
            "learned": self.flat.tensor.detach().clone(),
            "moments": self.adam.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_kind(state, self.kind)
        self.norm.load_state_dict(state["norm"])
        self.filter.load_state_dict(state["filter"])
        self.primed_by = int(state["primed_by"])
        for module, saved in zip(self.fixed, state["fixed"], strict=True):
            module.load_state_dict(saved)
        with torch.no_grad():
            self.flat.tensor.copy_(state["learned"])
        self.adam.load_state_dict(state["moments"])
