"""Values of a critic for rows that it was not fitted to: cross-fitting over folds of prompts.

A value that was fitted to a row's own return subtracts the signal from itself: the advantages of good and bad
rows become equal. Each fold's values are therefore those of a head fitted to the other folds. Rows of one
unit (a prompt, a group of attempts) are in one fold, so that a prompt is never judged by what was learned
from it.

All heads are fitted together by conjugate gradients (CGLS, Björck 1996, section 7.4). Few steps are a strong
regularisation, and the scale of the features does not matter. The number of steps is chosen by errors on rows
outside the fit.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FOLDS = 8
LEAST_GAIN = 2.0
"""Standard errors by which a fit must be better than the mean of the other folds, else that mean is used."""
_TINY = 1e-20


@dataclass
class CrossFit:
    """``values`` (positions,), each from the other folds; ``weight`` and ``bias`` are those of a head for
    other rows, fitted to all of these."""

    values: Tensor
    weight: Tensor
    bias: Tensor


def folds_of(units: Sequence[Sequence[Hashable]], seed: int = 0) -> Tensor:
    """Returns the fold (rows,) of each row; rows that share any of their ``units`` are in the same fold.

    The units of a row are ordered from the smallest, its attempt, to the largest, its prompt. Where the
    largest leave a single fold (all rows answer one prompt), only the smaller ones separate the folds.
    """
    levels = (_connected([u[:size] for u in units]) for size in range(max(map(len, units)), 0, -1))
    connected = next((one for one in levels if len(set(one)) > 1), [0] * len(units))
    roots = sorted(set(connected))
    shuffled = random.Random(f"{seed}/folds").sample(roots, len(roots))
    fold = {one: k % FOLDS for k, one in enumerate(shuffled)}
    return torch.tensor([fold[one] for one in connected])


def _connected(units: Sequence[Sequence[Hashable]]) -> list[int]:
    """Returns the same number for rows that are connected by units (union-find)."""
    parent = list(range(len(units)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first: dict[Hashable, int] = {}
    for i, names in enumerate(units):
        for name in names:
            parent[root(i)] = root(first.setdefault(name, i))
    return [root(i) for i in range(len(units))]


def cross_fit(
    states: Tensor, returns: Tensor, folds: Tensor, start: tuple[Tensor, Tensor], steps: int
) -> CrossFit:
    """Fits heads w·h + b to ``returns`` from ``states`` (positions, hidden), all float32.

    ``folds`` (positions,) are 0, 1, … and at least two. ``start`` is the (weight, bias) that every fit begins
    at and that was not fitted to these rows; the least correction is the mean error on the other folds.
    """
    weight, bias = start
    count, positions = int(folds.max()) + 1, torch.arange(len(states))
    center = states.mean(0)
    centered = states - center
    base = states @ weight + bias
    target = (returns - base)[:, None]
    inside = (folds[:, None] != torch.arange(count + 1)).float()  # the last column: all rows
    sizes = inside.sum(0)

    def demeaned(columns: Tensor) -> Tensor:
        return (columns - (columns * inside).sum(0) / sizes) * inside

    fits = states.new_zeros(states.shape[1], count + 1)
    rest = demeaned(target.expand(-1, count + 1))
    gradient = centered.t() @ rest
    direction, square = gradient, gradient.square().sum(0)
    found, heads, errors = [], [], []
    for step in range(steps + 1):
        predicted = centered @ fits
        shift = ((target - predicted) * inside).sum(0) / sizes
        outside = (predicted + shift)[positions, folds]
        found.append(base + outside)
        heads.append((fits[:, count], shift[count]))
        errors.append(outside.new_zeros(count).index_add_(0, folds, (target[:, 0] - outside).square()))
        if step < steps:
            moved = demeaned(centered @ direction)
            size = square / moved.square().sum(0).clamp_min(_TINY)
            fits, rest = fits + size * direction, rest - size * moved
            gradient = centered.t() @ rest
            before, square = square, gradient.square().sum(0)
            direction = gradient + square / before.clamp_min(_TINY) * direction
    error = torch.stack(errors)
    chosen = torch.tensor([_best_step(error[:, torch.arange(count) != k]) for k in range(count)])
    fit, shift = heads[_best_step(error)]
    return CrossFit(torch.stack(found)[chosen[folds], positions], weight + fit, bias + shift - fit @ center)


def _best_step(error: Tensor) -> int:
    """Returns the step with the least ``error`` (steps, folds), or 0 unless it is clearly better."""
    if error.shape[1] < 2:
        return 0
    gain = error[0] - error
    mean, deviation = gain.mean(1), gain.std(1) / gain.shape[1] ** 0.5
    best = int(mean.argmax())
    return best if bool(mean[best] > LEAST_GAIN * deviation[best]) else 0
