"""Proximal policy optimisation (Schulman et al. 2017, 1707.06347), with clipped ratios.

Invariants: acting runs the policy network alone. Values and log-probs of the whole rollout are computed in
one pass when it is full, by the same parameters and statistics that acted. So the observation normaliser
changes between rollouts only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from onward.control.algorithms.actor_critic import ActorCritic, annealed
from onward.control.algorithms.base import take_norm
from onward.control.algorithms.policy_gradient import PolicyGradient
from onward.control.core.config import PPOConfig
from onward.control.core.contract import EnvSpec, Flags, Step
from onward.control.core.normalise import ReturnScale
from onward.control.core.returns import gae, normalise_advantages
from onward.control.core.rollout import Rollout, in_rows, merged
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import Obs, take
from onward.control.explore.bonus import bonus_weight
from onward.control.explore.make import make_bonus
from onward.control.networks.dists import Scores
from onward.control.networks.fast.by_hand import ClippedPolicyLoss
from onward.control.networks.nets import to_tensor

Floats = NDArray[np.float32]
Data = dict[str, Any]
"""Rows to learn from: arrays by name, ``obs`` possibly a dict of them."""
_FIXED = ("log_probs", "advantages", "values", "returns")
_TERMS = ("policy_loss", "value_loss", "grad_norm")


class PPO(PolicyGradient):
    """PPO: max over θ of E[min(r A, clip(r, 1 ± ε) A)] − c_v·(V − R)² + c_e·H, r = π_θ(a|s) / π_old(a|s).

    A: generalised advantage estimates, normalised over the rollout. With a bonus the value network has a
    second head, and A = A_reward + weight · A_bonus (Burda et al. 2018, section 2.3).
    """

    def __init__(self, spec: EnvSpec, num: int, config: PPOConfig, seeds: Seeds) -> None:
        self.config = config
        self.bonus = make_bonus(spec, num, config, seeds)
        self._own_head = self.bonus is not None and config.bonus_head
        super().__init__(spec, num, config, seeds, heads=2 if self._own_head else 1, log_std=config.log_std)
        self.rollout = Rollout(spec.layout, spec.actions, config.n_steps, num)
        self.scale = ReturnScale(num, config.gamma) if config.scale_rewards else None
        fits = self.network is ActorCritic and ClippedPolicyLoss.fits(spec, config)
        self._by_hand = ClippedPolicyLoss(self.net.policy, self.net.value) if fits else None
        self._draws, self._order = seeds.generator("actions"), seeds.generator("minibatches")
        self._mask: Flags | None = None
        self._alive: Flags | None = None

    def act(self, obs: Obs, mask: Flags | None) -> NDArray[Any]:
        self._mask = mask
        if self.bonus is not None and not self.bonus.primed:
            return self._random_actions(mask)
        return self.net.act(self._seen(obs), self._draws, mask)

    def observe(self, obs: Obs, actions: NDArray[Any], step: Step) -> None:
        self.steps += self.num
        if self.bonus is not None and not self.bonus.primed:
            self.bonus.prime(step.next_obs())
        else:
            self.rollout.add(obs, actions, step, self._mask, self._alive)
            if self.scale is not None:
                self.scale.update(step.reward, step.ended, self._alive)
        self._alive = step.alive

    def environments_reset(self) -> None:
        """Discards the steps since the last update."""
        self.rollout.clear()
        self._alive = None

    def due(self) -> bool:
        return self.rollout.full

    def update(self) -> dict[str, float]:
        config, progress = self.config, self.progress
        self.optimiser.lr = annealed(config.learning_rate, config.lr_schedule, progress)
        clip = annealed(config.clip, config.clip_schedule, progress)
        data, metrics = self._data()
        if len(data["advantages"]):
            terms: list[tuple[float, ...]] = []
            all(self._epoch(data, clip, terms) for _ in range(config.epochs))
            means = np.mean(terms, axis=0).tolist()
            metrics |= dict(zip(_TERMS, means, strict=True)) | self._moved(data, clip)
        metrics |= self._learn_bonus()
        if self.norm is not None:
            self.norm.update_obs(self._rows(), self.rollout.alive.reshape(-1))
        self.rollout.clear()
        return metrics

    def _epoch(self, data: Data, clip: float, terms: list[tuple[float, ...]]) -> bool:
        """Makes one pass over the rollout; False where the policy has moved too far to continue."""
        config = self.config
        for batch in self._minibatches(data):
            policy_loss, value_loss, log_ratio = self._gradient(batch, clip)
            if config.target_kl is not None and _kl(log_ratio) > 1.5 * config.target_kl:
                return False
            norm = self.net.flat.clip_(config.max_grad_norm)
            self.optimiser.step()
            terms.append((policy_loss, value_loss, norm.item()))
        return True

    def _gradient(self, batch: Data, clip: float) -> tuple[float, float, Tensor]:
        """Sets the gradient of ``_loss``, by hand where that fits. Returns its terms and log r (B,)."""
        if self._by_hand is not None and "mask" not in batch:
            return self._by_hand(batch, clip, self.config.value_coef, self.config.entropy_coef)
        loss, policy_loss, value_loss, log_ratio = self._loss(batch, clip)
        self.net.flat.backward(loss)
        return policy_loss.item(), value_loss.item(), log_ratio.detach()

    def _loss(self, batch: Data, clip: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the loss of a minibatch, its policy and value terms, and log r (B,)."""
        config = self.config
        old_log_probs, advantages, old_values, returns = (torch.from_numpy(batch[key]) for key in _FIXED)
        outputs, values = self.net(to_tensor(batch["obs"]))
        scores = self.net.dist.score(outputs, batch["actions"], batch.get("mask"))

        log_ratio = scores.log_probs - old_log_probs
        ratio = log_ratio.exp()
        bounded = ratio.clamp(1 - clip, 1 + clip)
        policy_loss = -torch.min(ratio * advantages, bounded * advantages).mean()

        if config.value_clip is not None:
            values = old_values + (values - old_values).clamp(-config.value_clip, config.value_clip)
        value_loss = values.shape[1] * F.mse_loss(values, returns)

        loss = policy_loss + config.value_coef * value_loss
        if config.entropy_coef:
            loss = loss - config.entropy_coef * scores.entropies().mean()
        return loss, policy_loss, value_loss, log_ratio

    @torch.no_grad()
    def _moved(self, data: Data, clip: float) -> dict[str, float]:
        """Measures how far the update moved the policy, over the whole rollout."""
        scores = self._scores(data)
        log_ratio = scores.log_probs - torch.from_numpy(data["log_probs"])
        clipped = ((log_ratio.exp() - 1).abs() > clip).float().mean()
        entropy = scores.entropies().mean()
        return {"approx_kl": _kl(log_ratio), "clip_fraction": float(clipped), "entropy": float(entropy)}

    @torch.no_grad()
    def _scores(self, data: Data) -> Scores:
        """Scores the actions of all rows by the present policy."""
        outputs = torch.from_numpy(self.net.outputs(data["obs"]))
        return self.net.dist.score(outputs, data["actions"], data.get("mask"))

    def _data(self) -> tuple[Data, dict[str, float]]:
        """Returns the rollout's alive steps as rows to learn from, and metrics of them."""
        rollout, config = self.rollout, self.config
        of_obs, led_to = rollout.values(lambda obs: self.net.values(self._seen(obs)))
        values, flags = of_obs[:-1], (rollout.terminated, rollout.truncated)
        rewards = rollout.rewards if self.scale is None else self.scale.scale(rollout.rewards)
        stream, weight = self._bonus_stream(), 0.0
        if stream is not None:
            weight = bonus_weight(config, self.progress)
            if not self._own_head:
                rewards = rewards + np.float32(weight) * stream
        factors = (config.gamma, config.gae_lambda, rollout.alive)
        advantages = gae(rewards, values[..., 0], led_to[..., 0], *flags, *factors)
        returns = (advantages + values[..., 0])[..., None]
        if stream is not None and self._own_head:
            extra = self._bonus_advantages(stream, of_obs[..., 1], led_to[..., 1])
            returns = np.stack((returns[..., 0], extra + values[..., 1]), axis=-1)
            advantages = advantages + np.float32(weight) * extra
        told = {"explained_variance": _explained(values[..., 0], returns[..., 0], rollout.alive)}
        if stream is not None:
            told["bonus_mean"] = float(stream.mean())
        return self._table(values, normalise_advantages(advantages, rollout.alive), returns), told

    def _table(self, values: Floats, advantages: Floats, returns: Floats) -> Data:
        rollout, obs = self.rollout, self._seen(self._rows())
        data: Data = {"obs": obs, "actions": in_rows(rollout.actions), "advantages": advantages.reshape(-1)}
        data |= {"values": in_rows(values), "returns": in_rows(returns)}
        if rollout.masks is not None:
            data["mask"] = in_rows(rollout.masks)
        data["log_probs"] = self._scores(data).log_probs.numpy()
        return data if rollout.alive.all() else _rows_of(data, np.flatnonzero(rollout.alive))

    def _minibatches(self, data: Data) -> Iterator[Data]:
        """Yields all rows once, in batches of nearly equal size, in a new random order."""
        count = len(data["advantages"])
        parts = math.ceil(count / self.config.batch_size)
        if parts <= 1:
            yield data
            return
        shuffled = _rows_of(data, self._order.permutation(count))
        for rows in np.array_split(np.arange(count), parts):
            yield _rows_of(shuffled, np.s_[int(rows[0]) : int(rows[-1]) + 1])

    # -- the bonus

    def _bonus_stream(self) -> Floats | None:
        """Returns (T, N) the present bonus of each step; 0 where a slot was dead."""
        if self.bonus is None:
            return None
        met = (take(self.rollout.obs, np.s_[:-1]), self.rollout.actions, self.rollout.next_obs())
        self.bonus.observe(*met, self.rollout.ended, self.rollout.alive)
        return np.where(self.rollout.alive, self.bonus.reward(*met), np.float32(0))

    def _bonus_advantages(self, stream: Floats, of_obs: Floats, led_to: Floats) -> Floats:
        """Estimates the second head's advantages. A bonus that crosses episodes sees one endless episode."""
        assert self.bonus is not None
        rollout, config = self.rollout, self.config
        terminated, truncated = rollout.terminated, rollout.truncated
        if not self.bonus.episodic:
            led_to = of_obs[1:]
            terminated = truncated = np.zeros_like(rollout.terminated)
        factors = (config.bonus_gamma, config.gae_lambda, rollout.alive)
        return gae(stream, of_obs[:-1], led_to, terminated, truncated, *factors)

    def _learn_bonus(self) -> dict[str, float]:
        """Trains the bonus' own networks in one pass over the rollout."""
        if self.bonus is None:
            return {}
        living = self._order.permutation(np.flatnonzero(self.rollout.alive))
        obs, following = self._rows(), merged(self.rollout.next_obs())
        actions = in_rows(self.rollout.actions)
        told: dict[str, float] = {}
        for rows in np.array_split(living, max(1, math.ceil(len(living) / self.config.batch_size))):
            told = self.bonus.update(take(obs, rows), actions[rows], take(following, rows))
        return told

    def _random_actions(self, mask: Flags | None) -> NDArray[Any]:
        if self.spec.actions.kind == "box":
            return self._draws.uniform(-1, 1, (self.num, self.spec.actions.dim)).astype(np.float32)
        return self.net.dist.sample(np.zeros((self.num, self.net.dist.width), np.float32), self._draws, mask)

    # -- data and state

    def _rows(self) -> Obs:
        return merged(take(self.rollout.obs, np.s_[:-1]))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "rollout": self.rollout.state_dict(),
            "scale": None if self.scale is None else self.scale.state_dict(),
            "bonus": None if self.bonus is None else self.bonus.state_dict(),
            "draws": self._draws.bit_generator.state,
            "order": self._order.bit_generator.state,
            "alive": None if self._alive is None else self._alive.copy(),
        }

    def start_from(self, state: dict[str, Any]) -> None:
        super().start_from(state)
        scale = None if self.scale is None else self.scale.norm
        saved = None if state["scale"] is None else state["scale"]["norm"]
        take_norm(scale, saved, "scale_rewards")  # the values were learned in its unit

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.rollout.load_state_dict(state["rollout"])
        for part, saved in ((self.scale, "scale"), (self.bonus, "bonus")):
            if part is not None:
                part.load_state_dict(state[saved])
        self._draws.bit_generator.state = state["draws"]
        self._order.bit_generator.state = state["order"]
        self._alive = None if state["alive"] is None else np.asarray(state["alive"], np.bool_)


def _rows_of(data: Data, rows: Any) -> Data:
    return {key: take(value, rows) for key, value in data.items()}


def _kl(log_ratio: Tensor) -> float:
    """Returns the mean of (r − 1) − log r: an unbiased, never negative divergence (Schulman 2020)."""
    return (log_ratio.expm1() - log_ratio).mean().item()


def _explained(values: Floats, returns: Floats, alive: Flags) -> float:
    """Returns the share of the returns' variance that the values explain; 0 where the returns do not vary."""
    variance = float(returns[alive].var())
    return 1.0 - float((returns - values)[alive].var()) / variance if variance > 0 else 0.0
