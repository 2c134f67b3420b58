"""Supervised fine-tuning: maximum likelihood of the tokens marked ``sampled``, and of nothing else.

The one thing to know: with ``adapter`` None all base parameters are trained in place (that is how a
tiny base is made); save the policy to a new folder afterwards, since ``base_digest`` names the folder
it was loaded from.
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
from onward.lm.tokens import TokenRow


@dataclass(frozen=True)
class SftMetrics:
    """One optimiser step. ``loss`` is in nats per trained token; ``skipped`` says it was not finite."""

    step: int
    total_steps: int
    loss: float
    tokens: int
    grad_norm: float
    skipped: bool


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
    seed: int = 0,
) -> Iterator[SftMetrics]:
    """Train on ``rows`` in random order; ``should_stop(step)`` is asked after each step (1, 2, …).

    The loss of a step is the mean over all trained tokens of its rows, whatever the split into
    micro-batches. Raises TrainingError (DATA) when no row has a token to train.
    """
    usable = [row for row in rows if any(row.sampled[1:])]
    if not usable:
        raise TrainingError(
            "DATA", f"None of the {len(rows)} rows has a token to train: mark answers as sampled."
        )
    parameters = list(
        policy.weights.tensors() if adapter is None else policy.adapter(adapter).params.values()
    )
    per_epoch = -(-len(usable) // batch_rows)
    total = epochs * per_epoch
    shuffle = random.Random(seed)
    for parameter in parameters:
        parameter.requires_grad_(True)
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.95), weight_decay=weight_decay)
    step = 0
    if adapter is None:
        policy.weights.unpack()
    try:
        for _ in range(epochs):
            order = shuffle.sample(range(len(usable)), len(usable))
            for start in range(0, len(order), batch_rows):
                batch = sorted((usable[i] for i in order[start : start + batch_rows]), key=len)
                step += 1
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate * min(1.0, step / max(1, warmup_steps))
                loss, tokens = _accumulate(policy, adapter, batch, micro_batch_tokens)
                norm = float(torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm))
                good = norm < float("inf")  # false for NaN as well
                if good:
                    optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                yield SftMetrics(step, total, loss, tokens, norm, not good)
                if should_stop is not None and should_stop(step):
                    return
    finally:
        for parameter in parameters:
            parameter.requires_grad_(False)
            parameter.grad = None


def _accumulate(
    policy: Policy, adapter: str | None, rows: Sequence[TokenRow], limit: int
) -> tuple[float, int]:
    """Backpropagate the mean negative log-likelihood of ``rows``; (loss, trained tokens)."""
    tokens = sum(sum(row.sampled[1:]) for row in rows)
    loss = 0.0
    for run in split_by_tokens(range(len(rows)), [len(row) for row in rows], limit):
        part = [rows[i] for i in run]
        packed = Packed(part, common_prefix(part), policy.device)
        with torch.enable_grad():
            hidden = policy.hidden(packed, adapter)
        ones = torch.ones_like(packed.temperature)
        logp, _ = backward_logprobs(
            hidden,
            policy.weights.head,
            packed.targets,
            ones,
            lambda part, _: torch.full_like(part, -1 / tokens),
        )
        loss -= float(logp.sum()) / tokens
    return loss, tokens
