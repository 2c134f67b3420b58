"""Supervised fine-tuning: maximum likelihood of the tokens marked ``sampled``, and of no others.

With ``adapter`` None all base parameters are trained in place (a tiny base is made this way). Save the policy
to a new folder afterwards, since ``base_digest`` is of the folder it was loaded from.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from onward.errors import TrainingError
from onward.lm.head import backward_logprobs
from onward.lm.packing import Packed, common_prefix
from onward.lm.policy import Policy, split_by_tokens
from onward.lm.saved import trained_tensors
from onward.lm.stepper import Stepper
from onward.lm.tokens import TokenRow
from onward.lm.trajectories import Trajectory


@dataclass(frozen=True)
class SftMetrics:
    """One optimiser step. ``loss`` is in nats per trained token; ``skipped``: it was not finite."""

    step: int
    total_steps: int
    loss: float
    tokens: int
    grad_norm: float
    skipped: bool


def warm_start_rows(
    trajectories: Sequence[Trajectory], min_reward: float, demonstrations: Sequence[TokenRow] = ()
) -> list[TokenRow]:
    """Returns rows to imitate: all ``demonstrations``, and those of trajectories that scored at least
    ``min_reward``. Unscored trajectories are left out. Raises TrainingError (DATA) when nothing is left."""
    good = [one for one in trajectories if one.reward is not None and one.reward >= min_reward]
    rows = [*demonstrations, *(row for one in good for row in one.rows if row.trained)]
    if not rows:
        raise TrainingError(
            "DATA",
            f"None of the {len(trajectories)} trajectories with tokens scored at least {min_reward:g}: lower "
            f"min_reward or give demonstrations.",
        )
    return rows


def fit(
    policy: Policy,
    adapter: str | None,
    rows: Sequence[TokenRow],
    *,
    learning_rate: float,
    batch_rows: int,
    epochs: int = 1,
    should_stop: Callable[[int], bool] | None = None,
    warmup_steps: int = 0,
    weight_decay: float = 0.0,
    max_grad_norm: float = 1.0,
    micro_batch_tokens: int = 2048,
    recompute: bool = False,
    seed: int = 0,
    stepper: Stepper | None = None,
    done: int = 0,
) -> Iterator[SftMetrics]:
    """Trains on ``rows`` in random order; ``should_stop(step)`` is called after each step (1, 2, …).

    A caller that restores the ``stepper`` (of the same parameters) and its state continues after the first
    ``done`` steps of the same rows, exactly as without a stop. The loss of a step is the mean over all
    trained tokens of its rows, whatever the split into micro-batches. Raises TrainingError (DATA) when no row
    has a token to train.
    """
    usable = [row for row in rows if any(row.sampled[1:])]
    if not usable:
        raise TrainingError(
            "DATA", f"None of the {len(rows)} rows has a token to train: mark answers as sampled."
        )
    if stepper is None:
        stepper = Stepper(
            list(trained_tensors(policy, adapter).values()),
            learning_rate,
            max_grad_norm,
            weight_decay=weight_decay,
        )
        stepper.scale_for(policy.weights.norm.dtype)
    per_epoch = -(-len(usable) // batch_rows)
    total = epochs * per_epoch
    shuffle = random.Random(seed)
    step = 0
    if adapter is None:
        policy.weights.unpack()
    with stepper.tracking():
        for _ in range(epochs):
            order = shuffle.sample(range(len(usable)), len(usable))
            for start in range(0, len(order), batch_rows):
                batch = sorted((usable[i] for i in order[start : start + batch_rows]), key=len)
                step += 1
                if step <= done:
                    continue
                for group in stepper.optimizer.param_groups:
                    group["lr"] = learning_rate * min(1.0, step / max(1, warmup_steps))
                loss, tokens = _accumulate(
                    policy, adapter, batch, micro_batch_tokens, stepper.scale, recompute
                )
                norm, taken = stepper.step(loss)
                if adapter is None:
                    policy.weights.unpack()  # a caller that samples between two steps may have packed them
                yield SftMetrics(step, total, loss, tokens, norm, not taken)
                if should_stop is not None and should_stop(step):
                    return


def _accumulate(
    policy: Policy, adapter: str | None, rows: Sequence[TokenRow], limit: int, scale: float, recompute: bool
) -> tuple[float, int]:
    """Backpropagates the mean negative log-likelihood of ``rows``; returns (loss, trained tokens)."""
    tokens = sum(sum(row.sampled[1:]) for row in rows)
    loss = 0.0
    for run in split_by_tokens(range(len(rows)), [len(row) for row in rows], limit):
        part = [rows[i] for i in run]
        packed = Packed(part, common_prefix(part), policy.device)
        with torch.enable_grad():
            hidden = policy.hidden(packed, adapter, recompute=recompute)
        ones = torch.ones_like(packed.temperature)
        logp, _ = backward_logprobs(
            hidden,
            policy.weights.head,
            packed.targets,
            ones,
            lambda part, _: torch.full_like(part, -scale / tokens),
        )
        loss -= float(logp.sum()) / tokens
    return loss, tokens
