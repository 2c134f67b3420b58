"""The policy loss of one micro-batch, as the slope d loss / d log-prob that the output head needs.

Invariants: the importance weight and the ratio of the KL term never overlap. In the decoupled form, tokens
are weighted by π_start/μ and the rest is corrected by π/π_start. In bypass, the whole ratio is π/μ.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from onward.lm import losses
from onward.lm.options import LearnerConfig

GAIN, BOUND = 0.1, 0.2  # K_β and the clipping bound of the error in the paper


@dataclass
class KlCoefficient:
    """β ← β (1 + 0.1·clip(KL/target − 1, ±0.2)) after each step; constant without a target (Ziegler et al.,
    1909.08593, section 2.2)."""

    value: float
    target: float | None = None

    def observe(self, kl: float) -> None:
        """``kl`` in nats per token; a number that is not finite is ignored."""
        if self.target is None or not abs(kl) < float("inf"):
            return
        error = max(-BOUND, min(BOUND, kl / self.target - 1.0))
        self.value *= 1.0 + GAIN * error


@dataclass
class PolicyObjective:
    """Σ w (clipped loss + β c KL + hold) over trained tokens, all tensors (trained tokens,).

    ``weights`` are token weights of the whole optimiser step times importance weights; c = π/π_old, detached.
    The KL has the gradient of its k2 estimate. The hold is ``hold_coef`` · (log π − log μ)²/2 on near-certain
    tokens, μ the sampling policy's ``behaviour``. ``loss`` is the unscaled sum over all calls of ``slope`` so
    far.
    """

    config: LearnerConfig
    advantages: Tensor
    weights: Tensor
    old: Tensor
    behaviour: Tensor
    reference: Tensor | None
    kl_coef: float
    scale: float = 1.0
    loss: float = 0.0
    _certain: Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.config.spare_above is not None:
            self._certain = losses.near_certain(self.behaviour, self.config.spare_above)
            self.advantages = losses.spare(self.advantages, self._certain)

    def slope(self, logp: Tensor, at: Tensor | slice) -> Tensor:
        config = self.config
        with torch.enable_grad():
            leaf = logp.detach().requires_grad_()
            loss = losses.clipped_loss(
                leaf,
                self.old[at],
                self.advantages[at],
                clip_epsilon=config.clip_epsilon,
                clip_epsilon_high=config.clip_epsilon_high,
                dual_clip=config.dual_clip,
            )
            if self.reference is not None:
                correction = losses.log_ratio(leaf, self.old[at]).exp().detach()
                penalty = losses.kl_loss(leaf, self.reference[at], config.kl_estimator)
                loss = loss + self.kl_coef * correction * penalty
            if self._certain is not None and self.config.hold_coef > 0:
                pull = losses.kl(leaf, self.behaviour[at], "k2", self._certain[at])
                loss = loss + self.config.hold_coef * pull
            total = (loss * self.weights[at]).sum()
            (gradient,) = torch.autograd.grad(total, leaf)
        self.loss += float(total.detach())
        return gradient * self.scale
