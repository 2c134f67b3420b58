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
from numpy.typing import NDArray
from torch import Tensor

from onward.errors import OnwardError
from onward.lm.constrained import CompiledGrammar, Constraint
from onward.lm.request import SampleRequest


class Shaping:
    """The shaping of one answer in progress."""

    def __init__(self, request: SampleRequest, vocab: int) -> None:
        """Raises OnwardError for a grammar that is not compiled, or is for a vocabulary of another size."""
        self.constraint: Constraint | None = None
        self.vocab = vocab
        self.keeps_masks = request.for_training and request.grammar is not None
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
        values = dict(self._bias)
        for token, count in self._drawn.items():
            penalty = self._presence + self._frequency * count
            values[token] = values.get(token, 0.0) - penalty
        return values


def shape_(logits: Tensor, shapings: Sequence[Shaping | None]) -> dict[int, NDArray[np.int32]]:
    """Changes ``logits`` (rows, vocab) in place, before temperature and truncation. Returns the mask of each
    row that has a grammar; an empty one, of a constraint that failed, changes nothing."""
    masked: list[int] = []
    for row, shaping in enumerate(shapings):
        if shaping is None:
            continue
        if added := shaping.added():
            tokens = torch.tensor(list(added), device=logits.device)
            logits[row, tokens] += torch.tensor(
                list(added.values()), device=logits.device, dtype=logits.dtype
            )
        if shaping.constraint is not None:
            masked.append(row)
    if not masked:
        return {}
    vocab = logits.shape[1]
    bits = np.zeros((len(masked), (vocab + 31) // 32), dtype=np.int32)
    for place, row in enumerate(masked):
        shaping = shapings[row]
        assert shaping is not None and shaping.constraint is not None
        shaping.constraint.mask(bits[place])
    allowed = np.unpackbits(bits.view(np.uint8), axis=1, count=vocab, bitorder="little")
    some = bits.any(axis=1)
    for place, row in enumerate(masked):
        if some[place]:
            forbidden = torch.from_numpy(allowed[place] == 0).to(logits.device)
            logits[row].masked_fill_(forbidden, float("-inf"))
    return dict(zip(masked, bits, strict=True))
