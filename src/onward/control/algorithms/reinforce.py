"""REINFORCE with a learned baseline (Williams 1992; Sutton and Barto 2018, section 13.4).

It learns from whole episodes. An episode that is unfinished at an update is not discarded: that would favour
short episodes. Its first actions then come from the policy before the update.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from onward.control.algorithms.actor_critic import annealed
from onward.control.algorithms.policy_gradient import PolicyGradient
from onward.control.core.config import ReinforceConfig
from onward.control.core.contract import EnvSpec, Flags, Step
from onward.control.core.returns import normalise_advantages, reward_to_go
from onward.control.core.rollout import joined
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import Obs, copy, take
from onward.control.networks.nets import to_tensor


class Reinforce(PolicyGradient):
    """REINFORCE: θ ← θ + α Σ_t (G_t − V(s_t)) ∇ log π(a_t|s_t), G_t the discounted rewards from t to the end.

    A truncated episode's return is bootstrapped with V of its last observation (0 where there is no
    baseline).
    """

    def __init__(self, spec: EnvSpec, num: int, config: ReinforceConfig, seeds: Seeds) -> None:
        self.config = config
        super().__init__(spec, num, config, seeds, eps=1e-8)
        self._draws = seeds.generator("actions")
        self._mask: Flags | None = None
        self._alive = np.ones(num, np.bool_)
        self._open: list[list[dict[str, Any]]] = [[] for _ in range(num)]  # steps of each running episode
        self._done: list[dict[str, Any]] = []  # whole episodes to learn from

    def act(self, obs: Obs, mask: Flags | None) -> NDArray[Any]:
        self._mask = mask
        return self.net.act(self._seen(obs), self._draws, mask)

    def observe(self, obs: Obs, actions: NDArray[Any], step: Step) -> None:
        self.steps += self.num
        ended, final = step.ended, 0
        for slot in range(self.num):
            if self._alive[slot]:
                self._open[slot].append(_one_step(obs, actions, step.reward, self._mask, slot))
            if ended[slot]:
                last = None if step.final_obs is None else take(step.final_obs, np.s_[final : final + 1])
                self._close(slot, last if step.truncated[slot] else None)
                final += 1
        self._alive = np.ones(self.num, np.bool_) if step.alive is None else step.alive.copy()

    def environments_reset(self) -> None:
        """Discards unfinished episodes."""
        self._open = [[] for _ in range(self.num)]
        self._alive = np.ones(self.num, np.bool_)

    def due(self) -> bool:
        return len(self._done) >= self.config.episodes

    def update(self) -> dict[str, float]:
        config = self.config
        self.optimiser.lr = annealed(config.learning_rate, config.lr_schedule, self.progress)
        obs = joined([episode["obs"] for episode in self._done])
        returns = np.concatenate([self._returns(episode) for episode in self._done])
        actions = np.concatenate([episode["actions"] for episode in self._done])
        masks = [episode["mask"] for episode in self._done]
        mask = None if masks[0] is None else np.concatenate(masks)

        outputs, values = self.net(to_tensor(self._seen(obs)))
        scores = self.net.dist.score(outputs, actions, mask)
        baseline = values[:, 0] if config.value_coef else torch.zeros(len(returns))
        advantages = normalise_advantages(returns - baseline.detach().numpy())
        policy_loss = -(scores.log_probs * torch.from_numpy(advantages)).mean()
        value_loss = (baseline - torch.from_numpy(returns)).square().mean()
        entropy = scores.entropies().mean()
        loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy

        self.net.flat.backward(loss)
        norm = self.net.flat.clip_(config.max_grad_norm)
        self.optimiser.step()
        if self.norm is not None:
            self.norm.update_obs(obs)
        self._done.clear()
        return {
            "policy_loss": policy_loss.item(),
            "value_loss": value_loss.item(),
            "entropy": entropy.item(),
            "grad_norm": norm.item(),
        }

    # -- episodes

    def _close(self, slot: int, last: Obs | None) -> None:
        """Finalises the running episode of ``slot``; ``last``: its last observation if truncated."""
        steps, self._open[slot] = self._open[slot], []
        if not steps:
            return
        self._done.append({**_packed(steps), "last": last})

    def _returns(self, episode: dict[str, Any]) -> NDArray[np.float32]:
        last, value = episode["last"], 0.0
        if last is not None and self.config.value_coef:
            value = float(self.net.values(self._seen(last))[0, 0])
        return reward_to_go(episode["rewards"], value, self.config.gamma)

    # -- state

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "draws": self._draws.bit_generator.state,
            "alive": self._alive.copy(),
            "open": [_packed(steps) if steps else None for steps in self._open],
            "done": [dict(episode) for episode in self._done],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._draws.bit_generator.state = state["draws"]
        self._alive = np.asarray(state["alive"], np.bool_)
        self._open = [[] if episode is None else _unpacked(episode) for episode in state["open"]]
        self._done = list(state["done"])


def _one_step(
    obs: Obs, actions: NDArray[Any], reward: NDArray[Any], mask: Flags | None, slot: int
) -> dict[str, Any]:
    return {
        "obs": copy(take(obs, np.s_[slot : slot + 1])),
        "action": actions[slot].copy(),
        "reward": float(reward[slot]),
        "mask": None if mask is None else mask[slot].copy(),
    }


def _packed(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Stacks steps into arrays with a leading axis of time."""
    return {
        "obs": joined([step["obs"] for step in steps]),
        "actions": np.stack([step["action"] for step in steps]),
        "rewards": np.array([step["reward"] for step in steps], np.float32),
        "mask": None if steps[0]["mask"] is None else np.stack([step["mask"] for step in steps]),
    }


def _unpacked(episode: dict[str, Any]) -> list[dict[str, Any]]:
    mask = episode["mask"]
    return [
        {
            "obs": copy(take(episode["obs"], np.s_[t : t + 1])),
            "action": episode["actions"][t],
            "reward": float(reward),
            "mask": None if mask is None else mask[t],
        }
        for t, reward in enumerate(episode["rewards"])
    ]
