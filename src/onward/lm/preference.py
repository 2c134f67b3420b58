"""DPO: raises the better of two answers against the worse, relative to a fixed reference.

Only trained tokens count, on both sides. The reference is the policy as it was at the start, this network
with the adapter off, or another policy. Nothing here uses dropout, so that the start agrees with itself
exactly: the first loss is ln 2.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.errors import ConfigError, TrainingError
from onward.lm.batches import Batches, Prepared
from onward.lm.cursor import Cursor
from onward.lm.model import LanguageModel
from onward.lm.options import DpoConfig
from onward.lm.packing import split_by_tokens
from onward.lm.pairs import Pair
from onward.lm.saved import load_state, save_state, trained_tensors
from onward.lm.stepper import Stepper, Stepping

STATE_FILE = "preference.pt"


@dataclass(frozen=True)
class PreferenceMetrics:
    """Statistics of one optimiser step, before it is taken. ``accuracy`` is the share of pairs in the right
    order; ``margin`` is β(log-ratio of chosen − log-ratio of rejected), the ``*_reward`` are its two parts.
    """

    step: int
    total_steps: int
    loss: float
    accuracy: float
    margin: float
    chosen_reward: float
    rejected_reward: float
    grad_norm: float
    skipped: bool


def dpo_loss(margin: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """−(1−ε) log σ(margin) − ε log σ(−margin) (2305.18290, eq. 7; ε: conservative DPO); per pair."""
    return -(1 - label_smoothing) * F.logsigmoid(margin) - label_smoothing * F.logsigmoid(-margin)


def side_sums(log_ratios: Tensor, side_of: Tensor, sides: int, length_normalised: bool) -> Tensor:
    """Sums (or averages) token log-ratios per side (sides,); ``side_of`` is each trained token's side."""
    sums = log_ratios.new_zeros(sides).index_add_(0, side_of, log_ratios)
    if not length_normalised:
        return sums
    counts = log_ratios.new_zeros(sides).index_add_(0, side_of, torch.ones_like(log_ratios))
    return sums / counts.clamp_min(1.0)


Reference = Callable[[], tuple[LanguageModel, str | None]]
"""Loads another policy to refer to: its network, and the adapter of it that counts (None: no adapter)."""


class PreferenceLearner(Stepping):
    """Owns the optimiser of one resident adapter (None: all weights) and trains it on pairs."""

    def __init__(
        self, policy: LanguageModel, adapter: str | None, config: DpoConfig, other: Reference | None = None
    ) -> None:
        """``other`` loads the policy that ``config.reference`` = 'other' refers to, when it is needed."""
        if adapter is None and config.reference == "base":
            raise ConfigError(
                "Training all weights leaves no base as the reference: use reference = 'start' or an adapter."
            )
        if (other is None) == (config.reference == "other"):
            raise ConfigError("reference = 'other' needs that policy, and no other reference does.")
        self.policy, self.name, self.config = policy, adapter, config
        self.tensors = trained_tensors(policy, adapter)
        self.stepper = Stepper(list(self.tensors.values()), config.learning_rate, config.max_grad_norm)
        self.stepper.scale_for(policy.torch_dtype)
        self.cursor = Cursor(
            config.minibatch_pairs,
            config.epochs,
            schedule=config.schedule,
            warmup_steps=config.warmup_steps,
            max_steps=config.max_steps,
        )
        self._other = other
        self._fixed: dict[str, Any] = {}
        self._start = (
            [p.detach().clone() for p in self.tensors.values()] if config.reference == "start" else []
        )

    def update(self, pairs: Sequence[Pair]) -> Iterator[PreferenceMetrics]:
        """Runs ``epochs`` passes over ``pairs`` (see ``pairs.usable``); after ``restore``, continues from the
        saved step.

        Raises TrainingError (DATA) when a row cannot be used or the pairs are not those of the state.
        """
        batches, members = self._batches(pairs)

        def order(epoch: int) -> list[int]:
            return random.Random(f"{self.config.seed}/{epoch}").sample(range(len(pairs)), len(pairs))

        for chosen in self.cursor.batches(len(pairs), order):
            metrics = self._step(batches, members, chosen)
            self.cursor.advance()
            yield metrics
        self._fixed = {}

    def margins(self, pairs: Sequence[Pair]) -> list[float]:
        """Returns β(log-ratio of chosen − log-ratio of rejected) for each pair under the current policy."""
        batches, members = self._batches(pairs, fresh=True)
        now, reference = batches.logprobs(self.name), self._reference(batches)
        result = []
        for chosen, rejected in members:
            sides = []
            for side in (chosen, rejected):
                ratios = torch.cat([now[i] - reference[i] for i in side])
                sides.append(ratios.mean() if self.config.length_normalised else ratios.sum())
            result.append(self.config.beta * float(sides[0] - sides[1]))
        return result

    def accuracy(self, pairs: Sequence[Pair]) -> float:
        """Share of ``pairs`` whose chosen side gained more against the reference than its rejected one."""
        margins = self.margins(pairs)
        return sum(margin > 0 for margin in margins) / len(margins)

    def _batches(
        self, pairs: Sequence[Pair], fresh: bool = False
    ) -> tuple[Batches, list[tuple[list[int], list[int]]]]:
        """Returns batches over all rows, and for each pair the rows of its two sides. All rows get
        temperature 1: the comparison is of answers, not of how they were drawn."""
        config, rows = self.config, []
        members: list[tuple[list[int], list[int]]] = []
        for pair in pairs:
            sides = []
            for side in (pair.chosen, pair.rejected):
                kept = [replace(row, temperature=1.0) for row in side if row.trained]
                sides.append(list(range(len(rows), len(rows) + len(kept))))
                rows.extend(kept)
            if not all(sides):
                raise TrainingError(
                    "DATA", "A side of a pair has no trained token: leave it out with pairs.usable."
                )
            members.append((sides[0], sides[1]))
        prepared = Prepared.from_rows(rows, self.policy.shape.max_positions, "unused")
        batches = Batches(self.policy, self.name, prepared, config.micro_batch_tokens, config.cache_bytes,
                          config.gradient_checkpointing)  # fmt: skip
        if fresh:
            return batches, members
        digest = hashlib.sha256(repr([(r.ids, r.sampled) for r in rows]).encode())
        for row in rows:
            digest.update(row.masks_digest())
        self.cursor.refuse_other_data(self._fixed.get("rows"), digest.hexdigest(), "pairs")
        if not self.cursor.done:
            self._fixed = {"rows": digest.hexdigest(), "reference": self._reference(batches)}
        return batches, members

    def _reference(self, batches: Batches) -> list[Tensor]:
        if self.config.reference == "base":
            return batches.logprobs(None)
        if self._other is not None:
            policy, adapter = self._other()
            # Batches of its own: it may differ in the layers whose output ``batches`` keeps.
            other = Batches(policy, adapter, batches.prepared, self.config.micro_batch_tokens, 0)
            return other.logprobs(adapter)
        now = [p.detach().clone() for p in self.tensors.values()]
        self._put(self._start)
        try:
            return batches.logprobs(self.name)
        finally:
            self._put(now)

    @torch.no_grad()
    def _put(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.tensors.values(), values, strict=True):
            parameter.copy_(value)
        if self.name is None:
            self.policy.drop_copies()

    def _step(
        self, batches: Batches, members: list[tuple[list[int], list[int]]], chosen: Sequence[int]
    ) -> PreferenceMetrics:
        sharing = batches.sharing
        chosen = sorted(chosen, key=lambda p: sharing.prompt_of[members[p][0][0]] or 0)  # prompts together
        lengths = [
            sharing.prompt(members[p][0][0]) + sum(sharing.rest(i) for side in members[p] for i in side)
            for p in chosen
        ]
        loss, rewards = 0.0, []
        with self.stepper.tracking():
            for part in split_by_tokens(list(chosen), lengths, self.config.micro_batch_tokens):
                found, sides = self._backward(batches, [members[p] for p in part], 1 / len(chosen))
                loss += found
                rewards.append(sides)
        self.stepper.scale_rate(self.cursor.rate_share)
        norm, taken = self.stepper.step(loss)
        if self.name is None:
            self.policy.drop_copies()
        better, worse = torch.cat(rewards).unbind(1)
        return PreferenceMetrics(
            self.cursor.done + 1,
            self.cursor.total,
            loss,
            float((better > worse).float().mean()),
            float((better - worse).mean()),
            float(better.mean()),
            float(worse.mean()),
            norm,
            not taken,
        )

    def _backward(
        self, batches: Batches, part: Sequence[tuple[list[int], list[int]]], weight: float
    ) -> tuple[float, Tensor]:
        """Adds the gradient of a few whole pairs; returns (share of the loss, β·log-ratios (pairs, 2))."""
        config, scale = self.config, self.stepper.scale
        rows = [i for pair in part for side in pair for i in side]
        side_of_row = [2 * p + s for p, pair in enumerate(part) for s, side in enumerate(pair) for _ in side]
        with torch.enable_grad():
            packed, hidden = batches.hidden(rows, self.name)
        side_of = torch.tensor(side_of_row, device=hidden.device)[packed.row_of]
        reference = torch.cat([self._fixed["reference"][i] for i in rows]).to(hidden.device)
        # the loss of a pair couples all of its tokens: its slope needs every log-prob before any gradient
        logp, _ = self.policy.token_logprobs(
            hidden.detach(), packed.targets, packed.temperature, permitted=packed.permitted
        )
        with torch.enable_grad():
            leaf = logp.requires_grad_()
            sums = side_sums(leaf - reference, side_of, 2 * len(part), config.length_normalised)
            rewards = config.beta * sums.view(-1, 2)
            loss = dpo_loss(rewards[:, 0] - rewards[:, 1], config.label_smoothing).sum() * weight
            (slope,) = torch.autograd.grad(loss, leaf)
        slope = slope * scale
        self.policy.backward_logprobs(
            hidden,
            packed.targets,
            packed.temperature,
            lambda _, at: slope[at],
            permitted=packed.permitted,
        )
        return float(loss.detach()), rewards.detach().cpu()

    def save(self, folder: Path) -> bool:
        """Saves the state as ``Learner.save`` does."""
        if not self.finite:
            return False
        state = {
            "stepper": self.stepper.state(),
            "cursor": self.cursor.done,
            "fixed": self._fixed,
            "start": self._start,
        }
        save_state(folder / STATE_FILE, self.tensors, state)
        return True

    def restore(self, folder: Path) -> None:
        """Restores the state as ``Learner.restore`` does."""
        state = load_state(folder / STATE_FILE, self.tensors)
        self.stepper.load_state(state["stepper"])
        self.cursor.done, self._fixed = int(state["cursor"]), dict(state["fixed"])
        self._start = list(state["start"]) or self._start  # empty: it was begun with another reference
        if self.name is None:
            self.policy.drop_copies()
