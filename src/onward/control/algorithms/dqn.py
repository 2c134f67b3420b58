"""DQN (Mnih et al. 2015) with Double targets (1509.06461), n steps, dueling streams (1511.06581), prioritised
replay (1511.05952), and an ensemble whose disagreement can drive exploration.

An action of several components has one head per component, and its value is their sum (branching,
1711.08946). The best action is then the best of each head, and DQN stays exact except for that assumption.
Time is counted in environment steps, for the target network as well.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from onward.control.algorithms.off_policy import OffPolicy
from onward.control.core.config import DQNConfig
from onward.control.core.contract import EnvSpec, Flags
from onward.control.core.replay import Batch
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionKind, Obs
from onward.control.explore.epsilon import decayed_epsilon, epsilon_greedy, linear_epsilon
from onward.control.explore.ucb import ensemble_choice
from onward.control.networks.fast.by_hand import HuberLoss
from onward.control.networks.in_numpy import Layer, NumpyMLP
from onward.control.networks.nets import Encoder, Ensemble
from onward.control.policies.policy import PolicyParts
from onward.errors import ControlError


class QNetwork(nn.Module):
    """Q(s, ·) of E members: (B, …) → (E, B, components, choices); −∞ where a component has fewer choices.

    Dueling: Q = V + A − mean A (1511.06581, equation 9), with separate streams after the encoder.
    """

    def __init__(
        self, encoder: Encoder, sizes: tuple[int, ...], config: DQNConfig, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.shape = (len(sizes), max(sizes))
        options = (config.activation, config.layer_norm, None, generator)
        widths = (encoder.width, *config.hidden)
        self.advantage = Ensemble(config.ensemble, (*widths, len(sizes) * max(sizes)), *options)
        self.value = Ensemble(config.ensemble, (*widths, len(sizes)), *options) if config.dueling else None
        real = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
        self._share = real / real.sum(dim=1, keepdim=True)
        self._padding = None if real.all() else torch.zeros(self.shape).masked_fill(~real, -torch.inf)

    def forward(self, obs: Any) -> Tensor:
        features = self.encoder(obs)
        q = self.advantage(features).unflatten(-1, self.shape)
        if self.value is not None:
            q = self.value(features).unsqueeze(-1) + q - (q * self._share).sum(-1, keepdim=True)
        return q if self._padding is None else q + self._padding


class DQN(OffPolicy):
    """DQN: minimises Huber(R + γⁿ Q̄(s′, a*) − Q(s, a)) with a* = argmax Q(s′, ·), chosen by the trained
    network and valued by the target network."""

    action_kinds: ClassVar[tuple[ActionKind, ...]] = ("discrete", "multi_discrete", "multi_binary")

    def __init__(self, spec: EnvSpec, num: int, config: DQNConfig, seeds: Seeds) -> None:
        super().__init__(spec, num, config, seeds)
        self.config: DQNConfig = config
        self.single_batches = config.prioritised
        if config.ensemble > 1 and config.layer_norm:
            raise ControlError(
                "dqn: an ensemble with layer_norm cannot be exported as one network: set layer_norm=False."
            )
        sizes = spec.actions.sizes
        self.online, self.target = (
            QNetwork(self._encoder(), sizes, config, self._init_generator) for _ in range(2)
        )
        self._online = self._trained("online", [self.online])
        self._target_flat = self._target("target", [self.target], self._online)
        self._by_hand = HuberLoss(self.online.advantage) if HuberLoss.fits(spec, config) else None
        self._targets_made = 0  # updates of the target network so far
        self._actors = [NumpyMLP(self.online.advantage.arrays(e)) for e in range(config.ensemble)]
        self._sizes = np.array(sizes)
        padded = np.arange(max(sizes)) >= self._sizes[:, None]
        self._padded: NDArray[np.bool_] | None = padded if padded.any() else None

    @property
    def epsilon(self) -> float:
        """Share of random actions now: linear in environment steps, or multiplied at each gradient step."""
        c = self.config
        if c.epsilon_decay is not None:
            return decayed_epsilon(self.updates, c.epsilon_start, c.epsilon_end, c.epsilon_decay)
        return linear_epsilon(
            self.steps, self.total_steps, c.epsilon_start, c.epsilon_end, c.epsilon_fraction
        )

    def act(self, obs: Obs, mask: Flags | None) -> NDArray[Any]:
        """Returns epsilon-greedy actions; every slot draws for itself."""
        epsilon = 1.0 if self.warming_up else self.epsilon
        greedy = self._greedy(obs, mask)
        if self.spec.actions.kind == "discrete":
            return epsilon_greedy(greedy[:, 0], epsilon, int(self._sizes[0]), self._explore, mask)
        explores = self._explore.random(self.num) < epsilon
        return np.where(explores[:, None], self._explore.integers(0, self._sizes, greedy.shape), greedy)

    def _greedy(self, obs: Obs, mask: Flags | None) -> NDArray[np.int64]:
        """Returns (N, components). Dueling acts by advantages, which have the same order as the values."""
        if mask is not None and self.spec.actions.kind != "discrete":
            raise ControlError("dqn takes action masks of Discrete actions only: drop the mask, or use ppo.")
        x = self._features(self.online.encoder, obs)
        values = np.stack([actor(x) for actor in self._actors]).reshape(-1, self.num, *self.online.shape)
        if self.config.ucb:
            by_component = [
                ensemble_choice(values[:, :, i, :n], self.config.ucb, mask) for i, n in enumerate(self._sizes)
            ]
            return np.stack(by_component, axis=1)
        q = values[0] if len(values) == 1 else values.mean(axis=0)
        if mask is not None:
            q = np.where(mask[:, None], q, -np.inf)
        elif self._padded is not None:
            q = np.where(self._padded, -np.inf, q)
        return q.argmax(axis=-1)

    def update(self) -> dict[str, float]:
        self._follow()
        return super().update() | {"epsilon": self.epsilon}

    def _follow(self) -> None:
        """Moves the target network by ``tau`` for each ``target_every`` steps that passed, at once."""
        owed = self.steps // self.config.target_every - self._targets_made
        if owed > 0:
            self._target_flat.lerp_from(self._online, 1 - (1 - self.config.tau) ** owed)
            self._targets_made += owed

    def _learn_burst(self, burst: Batch) -> dict[str, Tensor]:
        """Learns from a burst. The target network is frozen within it, so one pass serves all its batches."""
        size = self.config.batch_size
        values = self.target(burst.next_obs)
        at_once = None if self.config.double else self.targets(burst, values).split(size, dim=1)
        loss = q = values  # a burst is never empty
        for at, batch in enumerate(burst.pieces(size)):
            part = values[:, at * size : (at + 1) * size]
            loss, q = self._step(batch, at_once[at] if at_once else self.targets(batch, part))
            self.updates += 1
        return {"q_loss": loss, "q_mean": q}

    def targets(self, batch: Batch, values: Tensor) -> Tensor:
        """Returns (E, B) R + γᵐ · value of the best next action; ``values``: the target network's in s′."""
        judge = values
        if self.config.double:
            with torch.no_grad():
                judge = self.online(batch.next_obs)
        if batch.next_mask is not None:
            judge = judge.masked_fill(~batch.next_mask[:, None], -torch.inf)
        if judge is values:
            best = values.amax(dim=-1)
        else:
            best = values.gather(-1, judge.argmax(dim=-1, keepdim=True)).squeeze(-1)
        return batch.returns + batch.discount * best.sum(dim=-1)

    def _step(self, batch: Batch, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Makes one gradient step. Returns the loss and the values (E, B) of the actions before it."""
        if self._by_hand is not None:
            loss, values = self._by_hand(batch, targets)
        else:
            loss, values = self._loss(batch, targets)
            self._online.backward(loss)
        if self.config.max_grad_norm:
            self._online.clip_(self.config.max_grad_norm)
        self.optimisers["online"].step()
        if batch.weights is not None:
            errors = (values.detach() - targets).abs().mean(dim=0)
            self.replay.set_priorities(batch.rows, errors.numpy())
        return loss.detach(), values.detach()

    def _loss(self, batch: Batch, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the sum over members of the mean loss, and the values of the batch's actions (E, B)."""
        q = self.online(batch.obs)
        members, rows, components, _ = q.shape
        taken = batch.actions.view(1, rows, components, 1).expand(members, -1, -1, -1)
        values = q.gather(-1, taken).sum(dim=(-2, -1))
        loss_of = F.smooth_l1_loss if self.config.loss == "huber" else F.mse_loss
        losses = loss_of(values, targets, reduction="none")
        if batch.weights is not None:
            losses = losses * batch.weights
        return losses.mean(dim=1).sum(), values

    def _sample(self, rows: int) -> Batch:
        start = self.config.priority_beta
        return self.replay.sample(rows, beta=start + (1 - start) * self.progress)

    def networks(self) -> PolicyParts:
        """Returns the mean of the members' values (dueling: advantages) as one network."""
        members = [self.online.advantage.arrays(e) for e in range(self.config.ensemble)]
        layers = side_by_side(members)
        weight, bias, activation, norm = layers[-1]
        real = ~self._padded.ravel() if self._padded is not None else slice(None)
        weight, bias = weight[real], bias[real]
        if self.spec.actions.kind == "multi_binary":  # one number per bit: the advantage of 1 over 0
            weight, bias = weight[1::2] - weight[::2], bias[1::2] - bias[::2]
        layers[-1] = Layer(weight, bias, activation, norm)
        images = self._image_parts(self.online.encoder)
        return PolicyParts(
            self.spec.layout, self.spec.actions, "q", layers, norm=self._norm_parts(), images=images
        )

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"targets_made": self._targets_made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._targets_made = int(state["targets_made"])


def side_by_side(members: list[list[Layer]]) -> list[Layer]:
    """Returns one network with the mean of ``members`` (of one shape, without layer norm if several)."""
    if len(members) == 1:
        return [layer.copied() for layer in members[0]]
    layers: list[Layer] = []
    for depth, parallel in enumerate(zip(*members, strict=True)):
        weights, biases = [layer.weight for layer in parallel], [layer.bias for layer in parallel]
        if depth == len(members[0]) - 1:
            weight, bias = np.concatenate(weights, axis=1) / len(members), np.mean(biases, axis=0)
        elif depth == 0:
            weight, bias = np.concatenate(weights), np.concatenate(biases)
        else:
            out, width = weights[0].shape
            weight, bias = (
                np.zeros((out * len(members), width * len(members)), np.float32),
                np.concatenate(biases),
            )
            for e, w in enumerate(weights):
                weight[e * out : (e + 1) * out, e * width : (e + 1) * width] = w
        layers.append(Layer(weight, bias, parallel[0].activation))
    return layers
