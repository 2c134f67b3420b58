"""Statistics of each optimiser step, over its trained tokens and before it is taken."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from onward.lm import losses
from onward.lm.options import LearnerConfig


@dataclass(frozen=True)
class StepMetrics:
    """One optimiser step; all statistics are over its trained tokens, before the step.

    ``ratio`` is π/π_old, ``kl`` the k3 estimate of KL(μ‖π) in nats per token (never negative), ``ess`` the
    effective share of samples under π/μ, ``skipped`` true when no step was taken (not finite, or nothing to
    learn from). ``reference_kl`` is the k3 estimate of KL(π‖reference), ``kl_coef`` the coefficient in force.
    ``importance_*`` are of the decoupled weights π_start/μ: mean, largest, effective share, share cut to the
    cap, share masked to 0. ``logprob_difference`` is the mean of |log π_start − log μ|; without weights that
    of a sample of the rows, if one was taken. ``held_out_explained_variance`` is that of the critic's values
    on plain returns of the whole update, whose rows it was not fitted to. A disabled term has 0.
    """

    step: int
    total_steps: int
    loss: float
    ratio_mean: float
    ratio_max: float
    clip_fraction: float
    kl: float
    entropy: float
    ess: float
    grad_norm: float
    skipped: bool
    reference_kl: float = 0.0
    kl_coef: float = 0.0
    value_loss: float = 0.0
    held_out_explained_variance: float = 0.0
    importance_mean: float = 1.0
    importance_max: float = 1.0
    importance_ess: float = 1.0
    truncated_share: float = 0.0
    masked_share: float = 0.0
    logprob_difference: float = 0.0


@dataclass
class PartStatistics:
    """Per-token results of one micro-batch, all (trained tokens,)."""

    logp: Tensor
    old: Tensor
    behaviour: Tensor
    advantages: Tensor
    entropy: Tensor
    importance: Tensor
    reference: Tensor


class StepStatistics:
    """Statistics collected over the micro-batches of one step."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.value_loss = 0.0
        self._parts: list[PartStatistics] = []

    def add_part(self, part: PartStatistics) -> None:
        self._parts.append(part)

    def _all(self, name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in self._parts])

    @property
    def reference_kl(self) -> float:
        if not self._parts or not len(self._all("reference")):
            return 0.0
        return float(losses.kl(self._all("logp"), self._all("reference"), "k3").mean())

    def metrics(
        self, step: int, total: int, norm: float, skipped: bool, coef: float, c: LearnerConfig
    ) -> StepMetrics:
        if not self._parts:
            return StepMetrics(step, total, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, norm, skipped, kl_coef=coef)
        logp, behaviour = self._all("logp"), self._all("behaviour")
        ratio = losses.log_ratio(logp, self._all("old")).exp()
        clipped = losses.clipped_share(ratio, self._all("advantages"), c.clip_epsilon, c.clip_high)
        weights = self._all("importance")
        cap = float("inf") if c.importance_cap is None or c.importance_floor is not None else c.importance_cap
        return StepMetrics(
            step=step,
            total_steps=total,
            loss=self.loss,
            ratio_mean=float(ratio.mean()),
            ratio_max=float(ratio.max()),
            clip_fraction=float(clipped.float().mean()),
            kl=float(losses.kl(behaviour, logp, "k3").mean().clamp_min(0)),
            entropy=float(self._all("entropy").mean()),
            ess=losses.effective_sample_share(losses.log_ratio(logp, behaviour).exp()),
            grad_norm=norm,
            skipped=skipped,
            reference_kl=self.reference_kl,
            kl_coef=coef,
            value_loss=self.value_loss,
            importance_mean=float(weights.mean()),
            importance_max=float(weights.max()),
            importance_ess=losses.effective_sample_share(weights),
            truncated_share=float((weights >= cap).float().mean()),
            masked_share=float((weights == 0).float().mean()),
            logprob_difference=float((self._all("old") - behaviour).abs().mean()),
        )
