"""Clipped policy-gradient updates of one adapter from token rows and their advantages.

The one thing to know: everything here follows from rows, advantages, configuration and ``state``; the
order of rows is derived from (seed, update, epoch), so an update that was saved half-way and restored
takes exactly the steps that an uninterrupted one takes.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from onward.errors import ConfigError, TrainingError
from onward.lm import losses
from onward.lm.batches import Batches, Prepared
from onward.lm.head import backward_logprobs
from onward.lm.losses import KlEstimator, Normaliser
from onward.lm.policy import Policy
from onward.lm.tokens import TokenRow

STATE_FILE = "learner.pt"


@dataclass(frozen=True)
class LearnerConfig:
    """Settings of ``Learner``; the defaults suit rank-16 adapters on networks of 1 to 500 M parameters."""

    learning_rate: float = 5e-4
    epochs: int = 2
    minibatch_rows: int = 64
    """Rows per optimiser step."""
    clip_epsilon: float = 0.2
    clip_epsilon_high: float | None = None
    """Upper clip where it differs from the lower one."""
    dual_clip: float | None = 3.0
    kl_coef: float = 0.0
    kl_estimator: KlEstimator = "k3"
    """Value of the penalty; its gradient is always that of the reverse KL."""
    kl_reference: Literal["start", "base"] = "start"
    """Penalise distance from the adapter at the start of the update, or from the base weights."""
    importance_cap: float | None = None
    """None: the clipped ratio is π/μ. A number: it is π/π_start, weighted by min(π_start/μ, cap)."""
    normaliser: Normaliser = "token"
    constant_length: int = 1024
    max_grad_norm: float = 1.0
    micro_batch_tokens: int = 2048
    """Tokens with a graph at once; changes memory and speed, never the result."""
    cache_bytes: int = 1 << 30
    """Room for the output of the frozen layers below the adapter; beyond it they are computed again."""
    seed: int = 0

    def __post_init__(self) -> None:
        bad = [
            name
            for name, good in (
                ("learning_rate", self.learning_rate > 0),
                ("epochs", self.epochs >= 1),
                ("minibatch_rows", self.minibatch_rows >= 1),
                ("clip_epsilon", 0 < self.clip_epsilon < 1),
                ("clip_epsilon_high", self.clip_epsilon_high is None or self.clip_epsilon_high > 0),
                ("dual_clip", self.dual_clip is None or self.dual_clip > 1),
                ("kl_coef", self.kl_coef >= 0),
                ("kl_estimator", self.kl_estimator in ("k1", "k2", "k3")),
                ("kl_reference", self.kl_reference in ("start", "base")),
                ("importance_cap", self.importance_cap is None or self.importance_cap > 0),
                ("normaliser", self.normaliser in ("token", "sequence", "constant")),
                ("constant_length", self.constant_length >= 1),
                ("max_grad_norm", self.max_grad_norm > 0),
                ("micro_batch_tokens", self.micro_batch_tokens >= 1),
            )
            if not good
        ]
        if bad:
            raise ConfigError(
                f"The learner setting {bad[0]} = {getattr(self, bad[0])!r} is out of range: see the "
                f"description of LearnerConfig for what is allowed."
            )


@dataclass(frozen=True)
class StepMetrics:
    """One optimiser step; all statistics are over its trained tokens, before the step.

    ``ratio`` is π/π_old, ``kl`` the k3 estimate of KL(μ‖π) in nats per token (never negative), ``ess``
    the effective share of samples under π/μ, ``skipped`` true when no step was taken (not finite, or
    nothing to learn from).
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


class Learner:
    """Owns the optimiser of one resident adapter; the base weights are never touched."""

    def __init__(self, policy: Policy, adapter: str, config: LearnerConfig) -> None:
        self.policy = policy
        self.name = adapter
        self.config = config
        self.adapter = policy.adapter(adapter)
        self.parameters = list(self.adapter.params.values())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )
        self.updates = 0
        self.skipped_steps = 0
        """Steps not taken because loss or gradient was not finite."""
        self._cursor = 0  # optimiser steps of the current update that are done
        self._fingerprint = ""
        self._start: list[Tensor] | None = None  # log-probs of the adapter at the start of the update
        self._reference: list[Tensor] | None = None

    def update(
        self, rows: Sequence[TokenRow], advantages: Sequence[float | Sequence[float]]
    ) -> Iterator[StepMetrics]:
        """``epochs`` passes over ``rows``; an advantage is one number per row, or one per token of it.

        After ``restore`` in the middle of an update, the same rows continue where it stopped. Raises
        TrainingError (DATA) when no row can be trained on or the rows differ from the restored ones.
        """
        prepared = Prepared.of(rows, advantages, self.policy.shape.max_positions)
        self._begin(prepared)
        batches = Batches(
            self.policy, self.name, prepared, self.config.micro_batch_tokens, self.config.cache_bytes
        )
        self._references(batches)
        count = len(prepared.rows)
        per_epoch = -(-count // self.config.minibatch_rows)
        total = per_epoch * self.config.epochs
        while self._cursor < total:
            epoch, minibatch = divmod(self._cursor, per_epoch)
            shuffle = random.Random(f"{self.config.seed}/{self.updates}/{epoch}")
            order = shuffle.sample(range(count), count)
            size = self.config.minibatch_rows
            metrics = self._step(batches, order[minibatch * size : (minibatch + 1) * size], total)
            self._cursor += 1
            yield metrics
        self.updates += 1
        self._cursor, self._fingerprint, self._start, self._reference = 0, "", None, None

    def _begin(self, prepared: Prepared) -> None:
        digest = hashlib.sha256()
        for row, advantage in zip(prepared.rows, prepared.advantages, strict=True):
            digest.update(repr((row.ids, row.logprobs, row.temperature, advantage.tolist())).encode())
        if self._cursor and digest.hexdigest() != self._fingerprint:
            raise TrainingError(
                "DATA",
                "The rows differ from those of the update that was restored: pass the same frozen dataset.",
            )
        self._fingerprint = digest.hexdigest()

    def _references(self, batches: Batches) -> None:
        """Log-probs that stay fixed during the update, computed before its first step only."""
        config = self.config
        penalty = config.kl_coef > 0
        if self._start is None and (
            config.importance_cap is not None or (penalty and config.kl_reference == "start")
        ):
            self._start = batches.logprobs(self.name)
        if self._reference is None and penalty:
            self._reference = self._start if config.kl_reference == "start" else batches.logprobs(None)

    def _step(self, batches: Batches, indices: Sequence[int], total: int) -> StepMetrics:
        """One optimiser step on the rows ``indices``; its denominator counts all of them."""
        config, prepared = self.config, batches.prepared
        counts = [len(prepared.advantages[i]) for i in indices]
        weight = dict(
            zip(indices, losses.token_weights(counts, config.normaliser, config.constant_length), strict=True)
        )
        learning = [i for i in indices if config.kl_coef > 0 or bool(prepared.advantages[i].any())]
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        seen = _Seen()
        try:
            for part in batches.split(learning):
                self._backward(batches, part, weight, seen)
        finally:
            for parameter in self.parameters:
                parameter.requires_grad_(False)
        norm = 0.0
        skipped = not learning
        if learning:
            norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm))
            if not (norm < float("inf") and abs(seen.loss) < float("inf")):  # true for NaN as well
                skipped = True
                self.skipped_steps += 1
            else:
                self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return seen.metrics(self._cursor + 1, total, norm, skipped, config)

    def _backward(self, batches: Batches, part: Sequence[int], weight: dict[int, float], seen: _Seen) -> None:
        """Add the gradient of the rows ``part``; ``weight`` is that of each row's tokens in the step."""
        config, prepared = self.config, batches.prepared
        with torch.enable_grad():
            packed, hidden = batches.hidden(part, self.name)

        def gathered(values: list[Tensor]) -> Tensor:
            return torch.cat([values[i] for i in part]).to(hidden.device)

        advantages = gathered(prepared.advantages)
        weights = torch.tensor([weight[i] for i in part], device=hidden.device)[packed.row_of]
        old = packed.behaviour
        if config.importance_cap is not None and self._start is not None:
            old = gathered(self._start)
            weights = weights * losses.importance_weights(old, packed.behaviour, config.importance_cap)
        reference = None if self._reference is None else gathered(self._reference)

        def slope(logp: Tensor, at: slice) -> Tensor:
            with torch.enable_grad():
                leaf = logp.detach().requires_grad_()
                loss = losses.clipped_loss(
                    leaf,
                    old[at],
                    advantages[at],
                    clip_epsilon=config.clip_epsilon,
                    clip_epsilon_high=config.clip_epsilon_high,
                    dual_clip=config.dual_clip,
                )
                if reference is not None:
                    correction = losses.log_ratio(leaf, packed.behaviour[at]).exp().detach()
                    penalty = losses.kl_loss(leaf, reference[at], config.kl_estimator)
                    loss = loss + config.kl_coef * correction * penalty
                total = (loss * weights[at]).sum()
                (gradient,) = torch.autograd.grad(total, leaf)
            seen.loss += float(total.detach())
            return gradient

        logp, entropy = backward_logprobs(
            hidden, self.policy.weights.head, packed.targets, packed.temperature, slope
        )
        seen.add(logp, old, packed.behaviour, advantages, entropy)

    def save(self, folder: Path) -> None:
        """Write parameters, optimiser and cursor, so that ``restore`` continues between two steps."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "params": {name: p.detach().cpu() for name, p in self.adapter.params.items()},
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
            "skipped_steps": self.skipped_steps,
            "cursor": self._cursor,
            "fingerprint": self._fingerprint,
            "start": self._start,
            "reference": self._reference,
        }
        part = folder / (STATE_FILE + ".part")
        with open(part, "wb") as out:
            torch.save(state, out)
            out.flush()
            os.fsync(out.fileno())
        part.replace(folder / STATE_FILE)

    def restore(self, folder: Path) -> None:
        """Continue from ``save``; the adapter must have the same rank and layers."""
        state: dict[str, Any] = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)
        if {k: v.shape for k, v in state["params"].items()} != {
            k: v.shape for k, v in self.adapter.params.items()
        }:
            raise ConfigError(
                f"The learner state in {folder} is of another adapter: create the adapter with the same rank "
                f"and layers before restoring."
            )
        for name, parameter in self.adapter.params.items():
            parameter.copy_(state["params"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates, self.skipped_steps = int(state["updates"]), int(state["skipped_steps"])
        self._cursor, self._fingerprint = int(state["cursor"]), str(state["fingerprint"])
        self._start, self._reference = state["start"], state["reference"]


class _Seen:
    """Statistics over the micro-batches of one step."""

    def __init__(self) -> None:
        self.loss = 0.0
        self._parts: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = []

    def add(self, logp: Tensor, old: Tensor, behaviour: Tensor, advantages: Tensor, entropy: Tensor) -> None:
        self._parts.append((logp, old, behaviour, advantages, entropy))

    def metrics(self, step: int, total: int, norm: float, skipped: bool, c: LearnerConfig) -> StepMetrics:
        if not self._parts:
            return StepMetrics(step, total, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, norm, skipped)
        logp, old, behaviour, advantages, entropy = (
            torch.cat([part[k] for part in self._parts]) for k in range(5)
        )
        ratio = losses.log_ratio(logp, old).exp()
        high = c.clip_epsilon if c.clip_epsilon_high is None else c.clip_epsilon_high
        clipped = losses.clipped_share(ratio, advantages, c.clip_epsilon, high)
        return StepMetrics(
            step=step,
            total_steps=total,
            loss=self.loss,
            ratio_mean=float(ratio.mean()),
            ratio_max=float(ratio.max()),
            clip_fraction=float(clipped.float().mean()),
            kl=float(losses.kl(behaviour, logp, "k3").mean().clamp_min(0)),
            entropy=float(entropy.mean()),
            ess=losses.effective_sample_share(losses.log_ratio(logp, behaviour).exp()),
            grad_norm=norm,
            skipped=skipped,
        )
