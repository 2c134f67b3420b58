"""Policy losses: pure functions over trained tokens, float32.

Invariants: values under a false mask are replaced *before* any arithmetic, since 0·NaN is NaN. Denominators
come from the whole optimiser step (``token_weights``), so that the gradient does not depend on how the step
is cut into micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from onward.lm.options import KlEstimator, Normaliser

LIMIT = 20.0  # log-ratios are clamped to ±LIMIT before exp


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else torch.where(mask.bool(), x, 0.0)


def log_ratio(logp: Tensor, old: Tensor, mask: Tensor | None = None) -> Tensor:
    return (masked(logp, mask) - masked(old, mask)).clamp(-LIMIT, LIMIT)


def clipped_loss(
    logp: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    *,
    clip_epsilon: float = 0.2,
    clip_epsilon_high: float | None = None,
    dual_clip: float | None = 3.0,
) -> Tensor:
    """Loss per token, −min(rA, clip(r)A) (PPO, 1707.06347, eq. 7), r = exp(logp − old). For A < 0 it is at
    most −``dual_clip``·A (dual clip, 1912.09729, eq. 5). 0 where ``mask`` is false."""
    advantages = masked(advantages, mask)
    ratio = log_ratio(logp, old, mask).exp()
    high = clip_epsilon if clip_epsilon_high is None else clip_epsilon_high
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_epsilon, 1 + high) * advantages)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)
    return masked(loss, mask)


def clipped_share(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """True where clipping removed the gradient: r above 1+high with A > 0, or below 1−low with A < 0."""
    return ((ratio > 1 + high) & (advantages > 0)) | ((ratio < 1 - low) & (advantages < 0))


def near_certain(behaviour: Tensor, least: float) -> Tensor:
    """True where the sampling policy drew the token with probability ``least`` or more.

    Right and wrong answers share such tokens (the braces of a tool call, the end of a word already begun).
    The choice that the reward judges was made at other tokens. ``behaviour``: log-probs.
    """
    return behaviour >= math.log(least)


def spare(advantages: Tensor, shared: Tensor) -> Tensor:
    """Sets negative advantages of ``shared`` tokens to 0; positive ones stay.

    Pushing down tokens that right answers begin with as well makes right answers less likely too (lazy
    likelihood displacement, 2505.18830). On inputs unlike the training data the answer's form breaks first.
    """
    return torch.where(shared & (advantages < 0), 0.0, advantages)


def importance_weights(
    old: Tensor,
    behaviour: Tensor,
    cap: float,
    mask: Tensor | None = None,
    *,
    rows: Tensor | None = None,
    floor: float | None = None,
) -> Tensor:
    """Importance weights w = π_old/μ of the decoupled loss, without gradient; 0 where masked out.

    By default they are truncated: min(w, ``cap``) (TIS). With ``floor`` they are masked instead: tokens with
    w outside [floor, cap] get 0 and the others keep w (IcePop). With ``rows`` (the row of each token) w is
    the geometric mean of the token ratios of the whole row, which unlike their product does not explode with
    length.
    """
    difference = log_ratio(old, behaviour, mask)
    if rows is not None:
        count = int(rows.max()) + 1 if len(rows) else 0
        kept = torch.ones_like(difference) if mask is None else mask.to(difference.dtype)
        sums = difference.new_zeros(count).index_add_(0, rows, masked(difference, mask))
        sizes = difference.new_zeros(count).index_add_(0, rows, kept)
        difference = (sums / sizes.clamp_min(1.0))[rows]
    weights = difference.exp().detach()
    if floor is None:
        weights = weights.clamp_max(cap)
    else:
        weights = torch.where((weights >= floor) & (weights <= cap), weights, 0.0)
    return masked(weights, mask)


def effective_sample_share(weights: Tensor) -> float:
    """Returns (Σw)² / (n Σw²): 1 when all weights are equal, near 0 when a few dominate, 0 when all are 0."""
    if weights.numel() == 0:
        return 1.0
    return float(weights.sum() ** 2 / (weights.numel() * (weights**2).sum()).clamp_min(1e-12))


def kl(logp: Tensor, reference: Tensor, estimator: KlEstimator, mask: Tensor | None = None) -> Tensor:
    """Per-token estimate of KL(π‖π_ref) on samples of π; ℓ = logp − reference.

    k1 = ℓ (unbiased; its gradient has mean 0), k2 = ℓ²/2 (biased, gradient of the reverse KL),
    k3 = e^{−ℓ} − 1 + ℓ (unbiased, never negative). See joschu.net/blog/kl-approx.html.
    """
    difference = log_ratio(logp, reference, mask)
    if estimator == "k1":
        return masked(difference, mask)
    if estimator == "k2":
        return masked(difference**2 / 2, mask)
    if estimator == "k3":
        return masked(torch.expm1(-difference) + difference, mask)
    raise ValueError(f"unknown KL estimator {estimator!r}: use k1, k2 or k3")


def kl_loss(logp: Tensor, reference: Tensor, estimator: KlEstimator, mask: Tensor | None = None) -> Tensor:
    """Penalty per token whose value is ``estimator`` and whose gradient is that of the reverse KL.

    The gradient always comes from k2. Used directly, k1 would have a mean gradient of 0, and k3 would push
    towards the forward KL.
    """
    value = kl(logp, reference, estimator, mask)
    carrier = kl(logp, reference, "k2", mask)
    return carrier + (value - carrier).detach()


def value_loss(
    values: Tensor, old: Tensor, returns: Tensor, mask: Tensor | None = None, *, clip: float | None = 0.5
) -> Tensor:
    """½ max((V − R)², (clip(V, V_old ± ``clip``) − R)²) per trained token (PPO2's form of 1707.06347). The
    larger term is taken, so that clipping never rewards a jump away from the return."""
    values, old, returns = masked(values, mask), masked(old, mask), masked(returns, mask)
    loss = (values - returns) ** 2
    if clip is not None:
        near = old + (values - old).clamp(-clip, clip)
        loss = torch.maximum(loss, (near - returns) ** 2)
    return masked(loss / 2, mask)


def entropy(logits: Tensor) -> Tensor:
    """Entropy in nats of softmax(``logits``) over the last dimension."""
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def token_weights(counts: Sequence[int], normaliser: Normaliser, constant_length: int = 1024) -> list[float]:
    """Weight of each trained token, one number per row, for the rows of a *whole* optimiser step.

    ``counts`` are trained tokens per row. "token": 1/Σ counts; "sequence": 1/(rows·count), the mean of
    row means; "constant": 1/(rows·constant_length), free of length bias (2503.20783). Rows without
    trained tokens have weight 0 and do not count.
    """
    rows = sum(1 for n in counts if n)
    total = sum(counts)
    if not rows:
        return [0.0] * len(counts)
    if normaliser == "token":
        return [1 / total if n else 0.0 for n in counts]
    if normaliser == "sequence":
        return [1 / (rows * n) if n else 0.0 for n in counts]
    if normaliser == "constant":
        return [1 / (rows * constant_length) if n else 0.0 for n in counts]
    raise ValueError(f"unknown normaliser {normaliser!r}: use token, sequence or constant")
