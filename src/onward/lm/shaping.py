"""Changes of the logits that a single request asks for: penalties, a bias, and the mask of a grammar.

The draw then sees a changed distribution, and the recorded log-probs are those of it: renormalised over the
allowed tokens. The learner computes the same under the masks that an answer for training keeps.
``SampleRequest.for_training`` refuses penalties and biases, which it does not compute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from onward.errors import OnwardError
from onward.lm.constrained import CompiledGrammar, Constraint, next_masks
from onward.lm.masks import AllowedTokens
from onward.lm.request import SampleRequest


class Shaping:
    """The shaping of one answer in progress."""

    def __init__(self, request: SampleRequest, vocab: int) -> None:
        """Raises OnwardError for a grammar that is not compiled, or is for a vocabulary of another size."""
        self.constraint: Constraint | None = None
        self.keeps_masks = request.for_training and request.grammar is not None
        self.only_masks = not (
            request.shifts_logits or request.alternatives or request.top_k is not None or request.top_p < 1.0
        )
        """True if temperature and mask are all that shapes the draw."""
        if request.grammar is not None:
            if not isinstance(request.grammar, CompiledGrammar):
                raise OnwardError(
                    f"Request {request.request_id!r} has a grammar that is not compiled: give the result of "
                    f"a GrammarCompiler."
                )
            if request.grammar.vocab not in (0, vocab):
                raise OnwardError(
                    f"Request {request.request_id!r} has a grammar for {request.grammar.vocab} tokens and "
                    f"the model has {vocab}: compile it for this model's vocabulary."
                )
            self.constraint = request.grammar.begin()
        self._presence, self._frequency = request.presence_penalty, request.frequency_penalty
        self._bias = request.logit_bias
        self._drawn: Counter[int] = Counter()

    @property
    def is_broken(self) -> bool:
        """True if the grammar needed more work than its limits allow: the answer ends unfinished."""
        return self.constraint is not None and self.constraint.is_broken

    def advance(self, token: int) -> None:
        """Takes the token that was drawn."""
        if self._presence or self._frequency:
            self._drawn[token] += 1
        if self.constraint is not None:
            self.constraint.advance(token)

    def restart(self) -> None:
        """Returns to the beginning of the answer."""
        self._drawn.clear()
        if self.constraint is not None:
            self.constraint.reset()

    def added(self) -> dict[int, float]:
        """Returns token → what is added to its logit: the bias, less ``frequency`` for each time that the
        token was drawn, less ``presence`` once (OpenAI's formula)."""
        if not self._bias and not self._drawn:
            return {}
        values = dict(self._bias)
        for token, count in self._drawn.items():
            penalty = self._presence + self._frequency * count
            values[token] = values.get(token, 0.0) - penalty
        return values


def masks_of(shapings: Sequence[Shaping | None], vocab: int) -> dict[int, AllowedTokens]:
    """Returns the mask of the next token of each row that has a grammar. That of a grammar that failed is
    empty."""
    found = {
        row: one.constraint
        for row, one in enumerate(shapings)
        if one is not None and one.constraint is not None
    }
    if not found:
        return {}
    masks = next_masks(list(found.values()), vocab, torch.get_num_threads())
    return dict(zip(found, masks, strict=True))


def shape_(logits: Tensor, shapings: Sequence[Shaping | None], masks: Sequence[AllowedTokens | None]) -> None:
    """Changes ``logits`` (rows, vocab) in place, before temperature and truncation."""
    for row, shaping in enumerate(shapings):
        if shaping is not None and (added := shaping.added()):
            tokens = torch.tensor(list(added), device=logits.device)
            logits[row, tokens] += torch.tensor(
                list(added.values()), device=logits.device, dtype=logits.dtype
            )
    closed = {row: mask.closed for row, mask in enumerate(masks) if mask is not None}
    if not closed:
        return
    if logits.device.type == "cpu":  # five times as fast as torch
        lines = logits.numpy()
        for row, outside in closed.items():
            np.copyto(lines[row], -np.inf, where=outside)
        return
    every = np.zeros(logits.shape, dtype=bool)
    every[list(closed)] = list(closed.values())
    logits.masked_fill_(torch.from_numpy(every).to(logits.device), float("-inf"))
