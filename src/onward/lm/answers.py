"""Answers in progress: how one begins, and the reasons for which it ends.

Every sampler uses this, so an option of a request means the same on each path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import torch

from onward.lm.masks import AllowedTokens
from onward.lm.request import Alternatives, Sample, SampleRequest
from onward.lm.shaping import Shaping
from onward.lm.stop_text import StopText

if TYPE_CHECKING:
    from onward.lm.model import LanguageModel


@dataclass(eq=False)
class Answer:
    """One answer in progress."""

    request: SampleRequest
    uniforms: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    """One random number for each token that it may get."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[Alternatives] = field(default_factory=list)
    allowed: list[AllowedTokens] = field(default_factory=list)
    shaping: Shaping | None = None
    """None: the logits are drawn from as they are."""
    ending: StopText | None = None

    def end(self) -> str | None:
        """Returns the reason for which the token drawn last ends the answer, or None."""
        if self.shaping is not None and self.shaping.is_broken:
            return self.broken()
        if self.token_ids[-1] in self.request.stop_ids or (self.ending and self.ending.ends(self.token_ids)):
            return "stop"
        return "length" if len(self.token_ids) == self.request.max_new_tokens else None

    def broken(self) -> str:
        """Returns the reason of an answer whose grammar failed: it is unfinished, no sample to train on."""
        return "error" if self.request.for_training else "length"

    def restart(self) -> None:
        """Returns to the beginning of the answer."""
        self.token_ids, self.logprobs, self.alternatives, self.allowed = [], [], [], []
        if self.shaping is not None:
            self.shaping.restart()

    def finished(self, reason: str) -> Sample:
        return Sample(
            self.request.request_id,
            self.token_ids,
            self.logprobs,
            reason,
            self.alternatives,
            self.allowed,
            self._error() if reason == "error" else "",
        )

    def _error(self) -> str:
        return (
            f"The grammar of request {self.request.request_id!r} failed after {len(self.token_ids)} tokens: "
            f"it needs more work than its limits allow, or its engine is defective. Make the grammar simpler."
        )

    def orphaned(self) -> Sample:
        """Returns the end of an answer whose adapter was removed."""
        error = (
            f"Adapter {self.request.adapter!r} was removed before request {self.request.request_id!r} was "
            f"answered: load it again and repeat the request."
        )
        return replace(self.finished("error"), error=error)


class Openings:
    """Checks requests and gives their answers random numbers, shaping and stop strings."""

    def __init__(self, policy: LanguageModel, max_context: int) -> None:
        self._policy, self._max_context = policy, max_context
        self._fresh = np.random.SeedSequence()

    def open(self, answer: Answer) -> None:
        """Begins an answer. Raises OnwardError when its request cannot be served (NotFoundError: no such
        adapter)."""
        request = answer.request
        request.check(self._max_context, self._policy.shape.vocab)
        if request.adapter is not None:
            self._policy.adapter(request.adapter)
        seed = self._fresh.spawn(1)[0] if request.seed is None else request.seed
        generator = np.random.Generator(np.random.Philox(seed))
        answer.uniforms = generator.random(request.max_new_tokens, dtype=np.float32)
        if request.shapes_logits:
            answer.shaping = Shaping(request, self._policy.shape.vocab)
        if request.stop_texts:
            answer.ending = StopText(self._policy.tokenizer, request.stop_texts)


AnAnswer = TypeVar("AnAnswer", bound=Answer)


class AnswerQueue(ABC, Generic[AnAnswer]):
    """Waiting answers of a sampler, in order of arrival, beside those that run in its batch."""

    def __init__(self, policy: LanguageModel, max_batch: int = 64, max_context: int = 2048) -> None:
        self._model = policy
        self.max_batch = max_batch
        self.max_context = min(max_context, policy.shape.max_positions)
        self._waiting: deque[AnAnswer] = deque()
        self._openings = Openings(policy, self.max_context)

    @abstractmethod
    def _running(self) -> Iterable[AnAnswer]:
        """Returns the answers that the next step draws for."""

    @abstractmethod
    def _new(self, request: SampleRequest) -> AnAnswer:
        """Makes an answer that has not begun."""

    @abstractmethod
    def _drop(self, answer: AnAnswer) -> None:
        """Removes a running answer from the batch."""

    @property
    def running(self) -> int:
        return sum(1 for _ in self._running())

    @property
    def busy(self) -> bool:
        return bool(self._waiting) or self.running > 0

    def submit(self, request: SampleRequest) -> None:
        """Queues a request. Raises OnwardError when it cannot be served (NotFoundError: no such adapter)."""
        answer = self._new(request)
        self._openings.open(answer)
        self._waiting.append(answer)

    @torch.inference_mode()
    def cancel(self, request_id: str) -> bool:
        """Drops a request; True when it was waiting or running."""
        if (waiting := _of_request(self._waiting, request_id)) is not None:
            self._waiting.remove(waiting)
            return True
        if (running := _of_request(self._running(), request_id)) is not None:
            self._drop(running)
            return True
        return False

    def drawn(self, request_id: str) -> tuple[list[int], list[float], list[Alternatives]]:
        """Returns tokens, log-probs and alternatives of a running request so far; empty for a waiting or
        finished one."""
        answer = _of_request(self._running(), request_id)
        return ([], [], []) if answer is None else (answer.token_ids, answer.logprobs, answer.alternatives)

    def _end_orphans(self) -> list[Sample]:
        """Ends waiting answers whose adapter was removed; all others go on."""
        known = {None, *self._model.adapters}
        orphans = [answer for answer in self._waiting if answer.request.adapter not in known]
        for answer in orphans:
            self._waiting.remove(answer)
        return [answer.orphaned() for answer in orphans]

    def _begin_again(self, answers: Sequence[AnAnswer]) -> None:
        """Puts answers back at the head of the queue, without what was drawn for them."""
        for answer in answers:
            answer.restart()
        self._waiting.extendleft(reversed(answers))


def _of_request(answers: Iterable[AnAnswer], request_id: str) -> AnAnswer | None:
    return next((answer for answer in answers if answer.request.request_id == request_id), None)
