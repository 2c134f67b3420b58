"""Supervised fine-tuning: maximum likelihood of the tokens marked ``sampled``, and of no others.

With ``adapter`` None all base parameters are trained in place (a tiny base is made this way). Save the policy
to a new folder afterwards, since ``base_digest`` is of the folder it was loaded from.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch

from onward.errors import TrainingError
from onward.lm.cursor import Cursor
from onward.lm.model import LanguageModel
from onward.lm.options import SftConfig
from onward.lm.packing import split_by_tokens
from onward.lm.saved import load_state, save_state, trained_tensors
from onward.lm.stepper import Stepper, Stepping
from onward.lm.tokens import TokenRow
from onward.lm.trajectories import Trajectory

STATE_FILE = "supervised.pt"


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


class SupervisedLearner(Stepping):
    """Owns the optimiser of one resident adapter (None: all weights) and trains it on rows to imitate."""

    def __init__(self, policy: LanguageModel, adapter: str | None, config: SftConfig) -> None:
        self.policy, self.name, self.config = policy, adapter, config
        self.tensors = trained_tensors(policy, adapter)
        self.stepper = Stepper(
            list(self.tensors.values()),
            config.learning_rate,
            config.max_grad_norm,
            weight_decay=config.weight_decay,
        )
        self.stepper.scale_for(policy.torch_dtype)
        self.cursor = Cursor(
            config.batch_rows,
            config.epochs,
            schedule=config.schedule,
            warmup_steps=config.warmup_steps,
            max_steps=config.max_steps,
        )

    def update(self, rows: Sequence[TokenRow]) -> Iterator[SftMetrics]:
        """Runs ``epochs`` passes over ``rows`` in random order; after ``restore``, continues from the saved
        step of the same rows, exactly as without a stop.

        The loss of a step is the mean over all trained tokens of its rows, whatever the split into
        micro-batches. Raises TrainingError (DATA) when no row has a token to train.
        """
        usable = _usable(rows)
        shuffle = random.Random(self.config.seed)
        orders = (shuffle.sample(range(len(usable)), len(usable)) for _ in count())
        drawn = -1

        def order(epoch: int) -> list[int]:  # one generator draws them one after the other
            nonlocal drawn
            found = next(islice(orders, epoch - drawn - 1, None))
            drawn = epoch
            return found

        if self.name is None:
            self.policy.drop_copies()
        with self.stepper.tracking():
            for chosen in self.cursor.batches(len(usable), order):
                metrics = self._step(sorted((usable[i] for i in chosen), key=len))
                self.cursor.advance()
                yield metrics

    def _step(self, batch: Sequence[TokenRow]) -> SftMetrics:
        config, cursor = self.config, self.cursor
        self.stepper.scale_rate(cursor.rate_share)
        loss, tokens = _accumulate(
            self.policy,
            self.name,
            batch,
            config.micro_batch_tokens,
            self.stepper.scale,
            config.gradient_checkpointing,
        )
        norm, taken = self.stepper.step(loss)
        if self.name is None:
            self.policy.drop_copies()  # a caller that samples between two steps may have packed them
        return SftMetrics(cursor.done + 1, cursor.total, loss, tokens, norm, not taken)

    @torch.no_grad()
    def loss(self, rows: Sequence[TokenRow]) -> float:
        """Returns the mean negative log-likelihood of the trained tokens of ``rows``, without training."""
        usable = sorted(_usable(rows), key=len)
        total = 0.0
        for run in split_by_tokens(
            range(len(usable)), [len(row) for row in usable], self.config.micro_batch_tokens
        ):
            part = [usable[i] for i in run]
            wanted, states = self.policy.states(part, self.name)
            ones = torch.ones_like(wanted.temperature)
            logp, _ = self.policy.token_logprobs(states, wanted.targets, ones, permitted=wanted.permitted)
            total -= float(logp.sum())
        return total / sum(len(row.trained) for row in usable)

    def save(self, folder: Path) -> bool:
        """Saves the state as ``Learner.save`` does."""
        if not self.finite:
            return False
        state = {"stepper": self.stepper.state(), "done": self.cursor.done}
        save_state(folder / STATE_FILE, self.tensors, state)
        return True

    def restore(self, folder: Path) -> None:
        """Restores the state as ``Learner.restore`` does."""
        state = load_state(folder / STATE_FILE, self.tensors)
        self.stepper.load_state(state["stepper"])
        self.cursor.done = int(state["done"])
        if self.name is None:
            self.policy.drop_copies()


def fit(
    policy: LanguageModel,
    adapter: str | None,
    rows: Sequence[TokenRow],
    *,
    learning_rate: float,
    batch_rows: int,
    **settings: Any,
) -> Iterator[SftMetrics]:
    """Trains ``adapter`` (None: all weights) on ``rows`` once; ``settings`` are others of ``SftConfig``."""
    config = SftConfig(learning_rate, batch_rows, **settings)
    return SupervisedLearner(policy, adapter, config).update(rows)


def _usable(rows: Sequence[TokenRow]) -> list[TokenRow]:
    found = [row for row in rows if row.trained]
    if not found:
        raise TrainingError(
            "DATA", f"None of the {len(rows)} rows has a token to train: mark answers as sampled."
        )
    return found


def _accumulate(
    policy: LanguageModel,
    adapter: str | None,
    rows: Sequence[TokenRow],
    limit: int,
    scale: float,
    recompute: bool,
) -> tuple[float, int]:
    """Backpropagates the mean negative log-likelihood of ``rows``; returns (loss, trained tokens)."""
    tokens = sum(len(row.trained) for row in rows)
    loss = 0.0
    for run in split_by_tokens(range(len(rows)), [len(row) for row in rows], limit):
        part = [rows[i] for i in run]
        with torch.enable_grad():
            wanted, states = policy.states(part, adapter, recompute=recompute)
        ones = torch.ones_like(wanted.temperature)
        logp, _ = policy.backward_logprobs(
            states,
            wanted.targets,
            ones,
            lambda part, _: torch.full_like(part, -scale / tokens),
            permitted=wanted.permitted,
        )
        loss -= float(logp.sum()) / tokens
    return loss, tokens
