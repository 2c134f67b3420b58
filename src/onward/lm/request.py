"""The request to a sampler and its answer, the same for every engine.

Needs no torch: an engine behind HTTP uses the same two types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onward.errors import OnwardError

if TYPE_CHECKING:
    from onward.lm.constrained import Grammar
    from onward.lm.masks import AllowedTokens

Alternatives = list[tuple[int, float]]
"""The likeliest tokens at one position with their log-probs, the likeliest first."""


@dataclass(frozen=True)
class SampleRequest:
    """One answer to draw. ``temperature`` 0 takes the most probable token; ``seed`` None: a fresh one."""

    request_id: str
    prompt_ids: Sequence[int]
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    stop_ids: Sequence[int] = ()
    adapter: str | None = None
    seed: int | None = None
    for_training: bool = False
    """Refuses top_p, top_k, temperature 0, penalties and biases: the log-probs are then not those of the
    policy. Under a grammar the policy is the one that is renormalised over the allowed tokens, and the answer
    has the mask of each token, under which it is trained."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token → a number that is added to its logit."""
    grammar: Grammar | None = None
    """The answer is a text of this language; log-probs are renormalised over the allowed tokens. A sampler of
    this process needs a ``CompiledGrammar``; a server compiles it itself."""
    stop_texts: Sequence[str] = ()
    """The answer ends with the token that completes one of these. The token is part of the answer."""
    alternatives: int = 0
    """Likeliest tokens to return at each position, of the distribution that was drawn from."""

    @property
    def shifts_logits(self) -> bool:
        """True if a penalty or a bias is added to logits."""
        return bool(self.presence_penalty or self.frequency_penalty or self.logit_bias)

    @property
    def shapes_logits(self) -> bool:
        return self.shifts_logits or self.grammar is not None

    def check(self, max_context: int, vocab: int | None = None) -> None:
        """Raises OnwardError when the request cannot be served as it is."""
        problem = ""
        if not len(self.prompt_ids):
            problem = "an empty prompt"
        elif self.max_new_tokens < 1 or len(self.prompt_ids) + self.max_new_tokens > max_context:
            problem = (
                f"{len(self.prompt_ids)} prompt tokens and {self.max_new_tokens} new ones, "
                f"with room for {max_context}"
            )
        elif (
            not 0 <= self.temperature < float("inf")
            or not 0 < self.top_p <= 1
            or (self.top_k is not None and self.top_k < 1)
        ):
            problem = f"temperature {self.temperature}, top_p {self.top_p}, top_k {self.top_k}"
        elif min(self.prompt_ids) < 0 or (vocab is not None and max(self.prompt_ids) >= vocab):
            problem = f"a token id outside 0 to {'the vocabulary' if vocab is None else vocab - 1}"
        elif vocab is not None and not all(0 <= token < vocab for token in self.logit_bias):
            problem = f"a logit_bias for a token id outside 0 to {vocab - 1}"
        elif not all(
            map(math.isfinite, (self.presence_penalty, self.frequency_penalty, *self.logit_bias.values()))
        ):
            problem = "a penalty or bias that is not a finite number"
        if problem:
            raise OnwardError(
                f"Request {self.request_id!r} has {problem}: expected a non-empty prompt that fits, at least "
                f"one new token, temperature ≥ 0, 0 < top_p ≤ 1 and top_k ≥ 1."
            )
        if self.for_training and (self.top_p < 1.0 or self.top_k is not None or not self.temperature):
            raise OnwardError(
                f"Request {self.request_id!r} is for training with temperature {self.temperature}, top_p "
                f"{self.top_p} and top_k {self.top_k}: sample from the full support (temperature above 0, "
                f"top_p 1, no top_k), or the log-probs are not those of the policy."
            )
        if self.for_training and self.shifts_logits:
            raise OnwardError(
                f"Request {self.request_id!r} is for training with penalties or a logit bias: leave them "
                f"out, or the log-probs are not those of the policy."
            )


@dataclass(frozen=True)
class Sample:
    """A finished answer; the stop token, if one was drawn, or the token
    that completed a stop string is the last of ``token_ids``."""

    request_id: str
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    """``stop``, ``length``, or ``error`` for an answer that could not be completed."""
    alternatives: list[Alternatives] = field(default_factory=list)
    """One entry for each token if the request asked for alternatives, else empty."""
    allowed: list[AllowedTokens] = field(default_factory=list)
    """The mask of each token of an answer for training that has a grammar, else empty."""
    error: str = ""
    """A sentence: the reason why the answer could not be completed, and what to do."""
