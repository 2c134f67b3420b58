"""The draw of the next token of every running answer, with no more logits than its grammar leaves open.

Where a grammar allows one token nothing is computed, and where it allows few, their logits alone: in a JSON
text of enums that is nearly everywhere. A draw depends on its own answer alone, not on others of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from onward.lm.answers import Answer
from onward.lm.draw import draw
from onward.lm.masks import AllowedTokens
from onward.lm.permitted import is_few, padded_ids
from onward.lm.request import Alternatives
from onward.lm.shaping import masks_of, shape_

AnAnswer = TypeVar("AnAnswer", bound=Answer)
Masks = dict[int, AllowedTokens]
"""The mask of each place of the batch whose answer has a grammar."""
_TOGETHER = 16_384
"""Logits that are computed for nothing rather than in a second draw, whose calls take as long."""


class Logits(Protocol):
    """The logits after the last token of each running row, computed where they are asked for."""

    @property
    def device(self) -> torch.device: ...
    @property
    def vocab(self) -> int: ...

    def every(self, rows: Sequence[int] | None) -> Tensor:
        """Returns (rows, vocab) of some rows, None: of all. The caller may overwrite them."""
        ...

    def some(self, rows: Sequence[int], ids: Tensor) -> Tensor:
        """Returns those of the tokens ``ids`` (rows, tokens)."""
        ...


class Computed:
    """Logits (rows, vocab) that exist already."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits
        self.device, self.vocab = logits.device, logits.shape[1]

    def every(self, rows: Sequence[int] | None) -> Tensor:
        return self._logits if rows is None else self._logits[rows]

    def some(self, rows: Sequence[int], ids: Tensor) -> Tensor:
        return self._logits[torch.tensor(rows, device=self.device)[:, None], ids]


class _Drawn(NamedTuple):
    place: int
    token: int
    logprob: float
    likeliest: Sequence[tuple[int, float]] = ()


def draw_next(answers: Sequence[AnAnswer], logits: Logits) -> list[tuple[AnAnswer, str]]:
    """Draws one token for each answer; returns those that it ends, each with the reason. An answer whose
    grammar failed ends without another token."""
    masks = masks_of([answer.shaping for answer in answers], logits.vocab)
    if not masks:
        return _append(answers, _draw_all(answers, None, logits, masks), masks)
    failed: list[int] = []
    few: list[int] = []
    rest: list[int] = []
    drawn: list[_Drawn] = []
    for place, answer in enumerate(answers):
        mask = masks.get(place)
        if mask is not None and not mask.count:
            failed.append(place)
        elif mask is None or answer.shaping is None or not answer.shaping.only_masks:
            rest.append(place)
        elif mask.is_forced:
            drawn.append(_Drawn(place, mask.first, 0.0))
        else:
            (few if is_few(mask) else rest).append(place)
    if rest and len(few) * logits.vocab <= _TOGETHER:
        rest, few = sorted(rest + few), []
    if few:
        drawn += _draw_few(answers, few, logits, masks)
    if rest:
        drawn += _draw_all(answers, rest, logits, masks)
    drawn.sort()  # places are distinct
    return [(answers[place], answers[place].broken()) for place in failed] + _append(answers, drawn, masks)


def _append(answers: Sequence[AnAnswer], drawn: Sequence[_Drawn], masks: Masks) -> list[tuple[AnAnswer, str]]:
    ended = []
    for one in drawn:
        answer = answers[one.place]
        answer.token_ids.append(one.token)
        answer.logprobs.append(one.logprob)
        if answer.request.alternatives:
            answer.alternatives.append(list(one.likeliest[: answer.request.alternatives]))
        if answer.shaping is not None:
            if answer.shaping.keeps_masks:
                answer.allowed.append(masks[one.place])
            answer.shaping.advance(one.token)
        if (reason := answer.end()) is not None:
            ended.append((answer, reason))
    return ended


def _draw_few(answers: Sequence[Answer], places: Sequence[int], logits: Logits, masks: Masks) -> list[_Drawn]:
    """Draws among the allowed tokens, as ``_draw_all`` would."""
    chosen = [answers[place] for place in places]
    ids, outside = padded_ids([masks[place] for place in places])
    some = logits.some(places, torch.from_numpy(ids).to(logits.device)).float()
    some.masked_fill_(torch.from_numpy(outside).to(logits.device), float("-inf"))
    at, logp = draw(some, _uniforms(chosen, logits.device), _temperatures(chosen, logits.device))
    tokens = np.take_along_axis(ids, at.cpu().numpy()[:, None], axis=1)[:, 0].tolist()
    return [_Drawn(*one) for one in zip(places, tokens, logp.tolist(), strict=True)]


def _draw_all(
    answers: Sequence[Answer], places: Sequence[int] | None, logits: Logits, masks: Masks
) -> list[_Drawn]:
    """Draws among all tokens, under all options of the requests; ``places`` None: for all answers."""
    chosen = list(answers) if places is None else [answers[place] for place in places]
    places = range(len(answers)) if places is None else places
    device, requests = logits.device, [answer.request for answer in chosen]
    every = logits.every(None if len(chosen) == len(answers) else places)
    uniforms, temperature = _uniforms(chosen, device), _temperatures(chosen, device)
    top_k = [r.top_k for r in requests] if any(r.top_k is not None for r in requests) else None
    top_p = [r.top_p for r in requests] if any(r.top_p < 1.0 for r in requests) else None
    if any(answer.shaping is not None for answer in chosen):
        every = every.float()  # in half precision a small bias would be rounded away
        shape_(every, [answer.shaping for answer in chosen], [masks.get(place) for place in places])
    most = max(r.alternatives for r in requests)
    likeliest: list[Alternatives] | None = [] if most else None
    tokens, logp = draw(every, uniforms, temperature, top_k, top_p, likeliest, most)
    best = likeliest or [[]] * len(chosen)
    return [_Drawn(*one) for one in zip(places, tokens.tolist(), logp.tolist(), best, strict=True)]


def _uniforms(answers: Sequence[Answer], device: torch.device) -> Tensor:
    return torch.tensor([float(a.uniforms[len(a.token_ids)]) for a in answers], device=device)


def _temperatures(answers: Sequence[Answer], device: torch.device) -> Tensor | None:
    """Returns the temperatures, None if all of them are 1."""
    if all(answer.request.temperature == 1.0 for answer in answers):
        return None
    return torch.tensor([answer.request.temperature for answer in answers], device=device)
