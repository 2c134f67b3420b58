"""The masks of a micro-batch, on its device, in the parts in which the output head computes its positions.

Positions at which few tokens are allowed need few logits, those of these tokens alone. The others need all
logits, and a mask over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onward.errors import TrainingError
from onward.lm.masks import AllowedTokens

FEW = 64
"""Most tokens that are allowed where logits are computed one by one."""
_SHARE = 16
"""And at most the vocabulary divided by this: reading a row of the head alone costs more than its share."""


def is_few(mask: AllowedTokens) -> bool:
    """Returns whether the logits of the allowed tokens are computed one by one."""
    return mask.count <= min(FEW, mask.vocab // _SHARE)


def refuse_outside(mask: AllowedTokens, token: int) -> None:
    """Raises TrainingError (DATA) for a token that its mask does not allow."""
    if token not in mask:
        raise TrainingError(
            "DATA",
            f"Token {token} is none of the {mask.count} tokens that the grammar allowed at its place: give "
            f"each row the masks of the grammar that it was sampled under.",
        )


def padded_ids(masks: Sequence[AllowedTokens]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Returns the allowed tokens (masks, most of them), filled up with token 0, and where they are filled."""
    width = max(one.count for one in masks)
    ids = np.zeros((len(masks), width), dtype=np.int64)
    outside = np.ones((len(masks), width), dtype=bool)
    for line, one in enumerate(masks):
        ids[line, : one.count] = one.ids
        outside[line, : one.count] = False
    return ids, outside


@dataclass(frozen=True)
class Part:
    """Positions ``at`` of a micro-batch whose logits are computed together, over all tokens or few."""

    at: Tensor | slice
    targets: Tensor
    """Place of the target among the logits of each position."""
    few: Tensor | None = None
    """Allowed tokens (positions, most of them), the rows filled up with token 0; None: all logits."""
    outside: Tensor | None = None
    """True for logits that are not allowed, or fill a row up; None: all are allowed."""


class Permitted:
    """The masks of the wanted log-probs of a micro-batch; None: the position is free."""

    def __init__(
        self, allowed: Sequence[AllowedTokens | None], targets: Sequence[int], device: torch.device
    ) -> None:
        """Raises TrainingError (DATA) for a target that its mask does not allow."""
        few, wide, free = [], [], []
        self.vocabs: set[int] = set()
        """Sizes of the vocabularies that the masks are of."""
        for place, (one, target) in enumerate(zip(allowed, targets, strict=True)):
            if one is None:
                free.append(place)
                continue
            refuse_outside(one, target)
            self.vocabs.add(one.vocab)
            (few if is_few(one) else wide).append(place)
        self._allowed, self._device = allowed, device
        self._few, self._wide, self._free = few, wide, free
        self._targets = torch.tensor(targets, dtype=torch.long, device=device)

    def parts(self, chunk: int) -> Iterator[Part]:
        """Yields all positions, at most ``chunk`` of them at a time."""
        for start in range(0, len(self._few), chunk):
            yield self._listed(self._few[start : start + chunk])
        for start in range(0, len(self._wide), chunk):
            yield self._masked(self._wide[start : start + chunk])
        for start in range(0, len(self._free), chunk):
            at = torch.tensor(self._free[start : start + chunk], device=self._device)
            yield Part(at, self._targets[at])

    def masked_parts(self, chunk: int) -> Iterator[Part]:
        """As ``parts``, with all logits everywhere: for a head whose rows cannot be read alone."""
        every = sorted([*self._few, *self._wide])
        for start in range(0, len(every), chunk):
            yield self._masked(every[start : start + chunk])
        for start in range(0, len(self._free), chunk):
            at = torch.tensor(self._free[start : start + chunk], device=self._device)
            yield Part(at, self._targets[at])

    def _listed(self, places: list[int]) -> Part:
        ids, outside = padded_ids([self._known(place) for place in places])
        at = torch.tensor(places, device=self._device)
        few, out = torch.from_numpy(ids).to(self._device), torch.from_numpy(outside).to(self._device)
        same = (few == self._targets[at][:, None]) & ~out
        return Part(at, same.to(torch.uint8).argmax(-1), few, out)

    def _masked(self, places: list[int]) -> Part:
        closed = np.stack([self._known(place).closed for place in places])
        at = torch.tensor(places, device=self._device)
        outside = torch.from_numpy(closed).to(self._device)
        return Part(at, self._targets[at], None, outside)

    def _known(self, place: int) -> AllowedTokens:
        one = self._allowed[place]
        assert one is not None
        return one
