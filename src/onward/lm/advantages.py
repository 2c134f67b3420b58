"""Advantages and returns: pure functions from rewards to the factors that multiply the gradient.

Only tokens that the policy sampled take part. Observation tokens between them neither decay nor break a
return: the running value is carried across them. A group of one is refused, because its own reward is not an
advantage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from onward.errors import TrainingError

MIN_STD = 1e-3  # reward differences below this carry no ranking: the group's advantages are 0


@dataclass
class RunningBaseline:
    """REINFORCE with a baseline per task type: A = r − b, where b never contains r itself.

    b is the mean of earlier rewards of the type and of the other rewards of the same update. The weight of an
    update is ``decay`` times that of the next one. A type with no other reward uses all types; with no other
    reward at all the advantage is 0.
    """

    decay: float = 0.9
    sums: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    def advantages(
        self, rewards: Sequence[float], types: Sequence[str], trainable: Sequence[bool] | None = None
    ) -> list[float]:
        """One advantage per reward; samples not ``trainable`` get 0 and do not affect the baseline."""
        keep = [True] * len(rewards) if trainable is None else list(trainable)
        now: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
        for reward, kind, kept in zip(rewards, types, keep, strict=True):
            if kept:
                total, count = now[kind]
                now[kind] = (total + reward, count + 1)
        kinds = set(self.sums) | set(now)
        sums = {k: self.sums.get(k, 0.0) + now[k][0] for k in kinds}
        weights = {k: self.weights.get(k, 0.0) + now[k][1] for k in kinds}
        everything, total_weight = sum(sums.values()), sum(weights.values())
        result = []
        for reward, kind, kept in zip(rewards, types, keep, strict=True):
            other_weight = weights[kind] - 1 if kept else 0.0
            if not kept:
                result.append(0.0)
            elif other_weight > 1e-9:
                result.append(reward - (sums[kind] - reward) / other_weight)
            elif total_weight - 1 > 1e-9:
                result.append(reward - (everything - reward) / (total_weight - 1))
            else:
                result.append(0.0)
        self.sums = {k: v * self.decay for k, v in sums.items()}
        self.weights = {k: v * self.decay for k, v in weights.items()}
        return result

    def state(self) -> dict[str, Any]:
        return {"decay": self.decay, "sums": dict(self.sums), "weights": dict(self.weights)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> RunningBaseline:
        return cls(float(state["decay"]), dict(state["sums"]), dict(state["weights"]))


def rloo(
    rewards: Sequence[float], groups: Sequence[Hashable], trainable: Sequence[bool] | None = None
) -> list[float]:
    """A = r − mean of the others in the group (RLOO, 2402.14740). Raises TrainingError on a group of one."""
    result = [0.0] * len(rewards)
    for members in _members(groups, trainable, "rloo"):
        total = sum(rewards[i] for i in members)
        for i in members:
            result[i] = rewards[i] - (total - rewards[i]) / (len(members) - 1)
    return result


def grpo(
    rewards: Sequence[float],
    groups: Sequence[Hashable],
    trainable: Sequence[bool] | None = None,
    *,
    normalise_std: bool = True,
    eps: float = 1e-6,
) -> list[float]:
    """A = (r − μ)/(σ + eps) per group, σ with n−1 (2402.03300); without σ it is Dr. GRPO (2503.20783).

    σ divides by n−1, as in torch and TRL; numpy's n would differ by √(n/(n−1)).

    With σ, a group whose σ is below ``MIN_STD`` gets 0: dividing would blow noise up to full size. Raises
    TrainingError on a group of one.
    """
    result = [0.0] * len(rewards)
    for members in _members(groups, trainable, "grpo"):
        mean = sum(rewards[i] for i in members) / len(members)
        std = (sum((rewards[i] - mean) ** 2 for i in members) / (len(members) - 1)) ** 0.5
        if normalise_std and std < MIN_STD:
            continue
        for i in members:
            result[i] = (rewards[i] - mean) / (std + eps if normalise_std else 1.0)
    return result


def _members(groups: Sequence[Hashable], trainable: Sequence[bool] | None, method: str) -> list[list[int]]:
    members: dict[Hashable, list[int]] = defaultdict(list)
    for i, group in enumerate(groups):
        if trainable is None or trainable[i]:
            members[group].append(i)
    for group, indices in members.items():
        if len(indices) < 2:
            raise TrainingError(
                "DATA",
                f"{method} needs at least two trainable samples per group but group {group!r} has one: use "
                f"reinforce, whose baseline needs no group, or collect more attempts of that task.",
            )
    return list(members.values())


def place_reward(mask: Tensor, reward: Tensor) -> Tensor:
    """Returns rewards (rows, tokens) with each row's ``reward`` at its last trainable token. Raises
    TrainingError when a row has no trainable token: its reward would be lost silently."""
    mask = mask.bool()
    if not bool(mask.any(-1).all()):
        raise TrainingError("DATA", "A row has no trainable token to carry its reward: leave such rows out.")
    last = mask.shape[-1] - 1 - mask.flip(-1).int().argmax(-1)
    return torch.zeros(mask.shape, dtype=torch.float32).scatter(1, last[:, None], reward[:, None].float())


def returns(rewards: Tensor, mask: Tensor, gamma: float = 1.0) -> Tensor:
    """REINFORCE++ returns G_t = r_t + γ G_{t'}, t' the next *trainable* token (2501.03262).

    All tensors are (rows, tokens). There is one factor γ per trainable token, not per position. Rewards at
    other tokens are ignored; values at other tokens are 0.
    """
    mask = mask.bool()
    rewards = torch.where(mask, rewards, 0.0)
    running = torch.zeros(len(rewards), dtype=rewards.dtype)
    result = torch.zeros_like(rewards)
    for t in range(rewards.shape[1] - 1, -1, -1):
        running = torch.where(mask[:, t], rewards[:, t] + gamma * running, running)
        result[:, t] = torch.where(mask[:, t], running, 0.0)
    return result


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Advantages and returns (A + V), both (rows, tokens), by GAE (1506.02438, eq. 16).

    The next value and the running sum are carried across tokens that are not trainable. Observation tokens
    anywhere therefore leave every action's advantage unchanged; their own values and padding are never read.
    The end of a row is terminal.
    """
    mask = mask.bool()
    rewards, values = torch.where(mask, rewards, 0.0), torch.where(mask, values, 0.0)
    next_value = torch.zeros(len(rewards), dtype=values.dtype)
    running = torch.zeros_like(next_value)
    advantages = torch.zeros_like(values)
    for t in range(rewards.shape[1] - 1, -1, -1):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        running = torch.where(mask[:, t], delta + gamma * lam * running, running)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        advantages[:, t] = torch.where(mask[:, t], running, 0.0)
    return advantages, torch.where(mask, advantages + values, 0.0)


def asymmetric(advantages: Sequence[float], negative_weight: float) -> list[float]:
    """Multiplies negative advantages by ``negative_weight`` (0 to 1) and leaves positive ones unchanged.

    Probability taken from one token goes to others: with many tokens to choose from, mostly to ones that were
    never good. Less weight below the baseline preserves the form of a policy's answers. AsymRE (2506.20520)
    has the same aim with a lower baseline; a weight of 1 is plain REINFORCE.
    """
    return [value if value > 0 else value * negative_weight for value in advantages]


def whiten(
    advantages: Tensor, mask: Tensor, weighting: Literal["token", "sequence"] = "token", eps: float = 1e-8
) -> Tensor:
    """Scales to zero mean and unit variance over the trainable tokens; a single one is returned unchanged.

    "token": every trainable token counts once (variance with n−1), so long rows set the mean. "sequence":
    every row counts once (its tokens share a weight of 1; variance with n−1 rows). If the deviation is below
    ``MIN_STD``, only the mean is subtracted, since dividing would blow noise up to full size. It is
    called once per update, over all of its rows, before they are cut into steps.
    """
    mask, advantages = mask.bool(), advantages.float()
    weight = mask.float()
    if weighting == "sequence":
        weight = weight / weight.sum(-1, keepdim=True).clamp_min(1.0)
    elif weighting != "token":
        raise ValueError(f"unknown weighting {weighting!r}: use token or sequence")
    total = float(weight.sum())
    kept = torch.where(mask, advantages, 0.0)
    if total < 1.5:  # one token, or one row
        return kept
    mean = (kept * weight).sum() / total
    variance = ((kept - mean) ** 2 * weight).sum() / (total - 1)
    scale = (variance + eps).sqrt() if variance > MIN_STD**2 else torch.ones(())
    return torch.where(mask, (advantages - mean) / scale, 0.0)
