"""The interface of an algorithm: a choice of trajectories, and an estimate of their advantages.

Per-row lists have one tensor per row of ``Selection.rows``, with one number per *trained* token. Before any
computation along time, the rows of a trajectory are joined in the order of sampling: its reward belongs to
the earlier rows as much as to the last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from onward.lm import advantages
from onward.lm.algorithm_options import AlgorithmOptions
from onward.lm.trajectories import Selection, Trajectory, group_key, select

RowTensors = list[Tensor]


@dataclass
class Estimate:
    """Advantages and, for a critic, its target returns; per row, per trained token."""

    advantages: RowTensors
    returns: RowTensors | None = None


class Algorithm(AlgorithmOptions, ABC):
    """Base class of the algorithms. A subclass is a dataclass that inherits its options from the class of
    ``algorithm_options``.
    """

    def select(
        self, trajectories: Sequence[Trajectory], *, max_staleness: int = 1, max_tokens: int | None = None
    ) -> Selection:
        """Selects the trajectories to train on. Raises TrainingError (DATA), see ``trajectories.select``."""
        return select(trajectories, method=self.type, max_staleness=max_staleness, max_tokens=max_tokens,
                      **self._needs())  # fmt: skip

    def _needs(self) -> dict[str, bool]:
        return {}

    @abstractmethod
    def estimate(
        self, selection: Selection, penalty: RowTensors | None, values: RowTensors | None
    ) -> Estimate:
        """Estimates advantages; ``penalty``: KL cost per token in the reward, ``values``: the critic's."""

    def monte_carlo(self, selection: Selection, penalty: RowTensors | None) -> RowTensors:
        """Returns the plain return of each trained token, which the critic is fitted to."""
        raise NotImplementedError(f"{self.type} has no critic")

    def state(self) -> dict[str, Any]:
        """Returns the state that the next update needs; ``load_state`` restores it."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        del state


def returns_of(selection: Selection, penalty: RowTensors | None) -> list[float]:
    """Returns one number per trajectory: its reward, less the KL penalty of all its tokens."""
    rewards = [float(one.reward or 0.0) for one in selection.trajectories]
    if penalty is None:
        return rewards
    costs = [float(part.sum()) for part in join_rows(selection, penalty)]
    return [reward - cost for reward, cost in zip(rewards, costs, strict=True)]


def over_groups(
    selection: Selection,
    penalty: RowTensors | None,
    formula: Callable[[list[float], list[Hashable]], Sequence[float]],
) -> Estimate:
    """Applies ``formula`` to rewards and groups of all attempts. Observers (attempts that are not trained on)
    count in their groups but get no advantage."""
    everybody = [*selection.trajectories, *selection.observers]
    rewards = returns_of(selection, penalty) + [float(one.reward or 0.0) for one in selection.observers]
    found = formula(rewards, [group_key(one) for one in everybody])
    return spread(selection, found[: len(selection.trajectories)])


def spread(selection: Selection, values: Sequence[float]) -> Estimate:
    """Gives every trained token of a trajectory's rows that trajectory's number."""
    return Estimate(
        [
            torch.full((count,), float(value))
            for one, value in zip(selection.trajectories, values, strict=True)
            for count in one.counts
        ]
    )


def units_of(selection: Selection) -> list[list[Hashable]]:
    """Returns for each row the names of its attempt and, if it has one, its group."""
    return [
        [("attempt", number), *([] if one.group is None else [("group", group_key(one))])]
        for number, one in enumerate(selection.trajectories)
        for _ in one.rows
    ]


def join_rows(selection: Selection, per_row: RowTensors) -> list[Tensor]:
    """Joins per-row tensors into one tensor per trajectory, in the order of sampling."""
    result, at = [], 0
    for one in selection.trajectories:
        whole = torch.cat([part.float().cpu() for part in per_row[at : at + len(one.rows)]])
        result.append(whole[one.order()])
        at += len(one.rows)
    return result


def split_rows(selection: Selection, per_trajectory: Sequence[Tensor]) -> RowTensors:
    """Splits per-trajectory tensors into per-row tensors, the inverse of ``join_rows``."""
    return [
        part
        for one, whole in zip(selection.trajectories, per_trajectory, strict=True)
        for part in torch.empty_like(whole).index_copy_(0, one.order(), whole).split(one.counts)
    ]


def padded_rewards(selection: Selection, penalty: RowTensors | None) -> tuple[Tensor, Tensor]:
    """Returns token rewards (trajectories, longest) and a mask that is false on padding."""
    costs = [None] * len(selection.trajectories) if penalty is None else join_rows(selection, penalty)
    rewards = [one.token_rewards(cost) for one, cost in zip(selection.trajectories, costs, strict=True)]
    return pad_sequence(rewards, batch_first=True), pad_sequence(
        [torch.ones(len(r), dtype=torch.bool) for r in rewards], batch_first=True
    )


def unpadded(selection: Selection, padded: Tensor) -> RowTensors:
    """Returns the per-row tensors of a (trajectories, longest) tensor."""
    lengths = [sum(one.counts) for one in selection.trajectories]
    return split_rows(selection, [padded[k, :n] for k, n in enumerate(lengths)])


def monte_carlo_returns(selection: Selection, penalty: RowTensors | None, gamma: float) -> RowTensors:
    rewards, mask = padded_rewards(selection, penalty)
    return unpadded(selection, advantages.returns(rewards, mask, gamma))
