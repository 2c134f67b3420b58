"""Token rows: the tokens of a policy's context and answers, exactly as the engine processed them.

Invariants: a row is append-only. History is never rendered or encoded again; a call whose prompt does not
extend a row token by token starts a new row (the prefix rule).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from onward.errors import OnwardError

if TYPE_CHECKING:
    from onward.lm.masks import AllowedTokens


@dataclass(frozen=True)
class Call:
    """One generation. ``prompt_ids`` are the tokens after generation ``continues``, or the whole prompt.
    ``logprobs`` None: the probabilities of the drawn tokens were not recorded."""

    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float] | None
    temperature: float
    generation_id: str
    continues: str | None = None
    top_p: float = 1.0
    top_k: int | None = None
    trains: bool = True
    """False: the tokens are context alone, for example because a penalty changed their distribution."""
    allowed: Sequence[AllowedTokens] = ()
    """The mask of each token if a grammar restricted the draw, else empty."""

    @property
    def settings(self) -> tuple[float, float, int | None, bool]:
        """Settings with one value per row: temperature, top-p, top-k, True if log-probs are known."""
        return self.temperature, self.top_p, self.top_k, self.logprobs is not None


@dataclass
class TokenRow:
    """One training row; all three lists have one entry per token.

    ``sampled`` is the loss mask: true where this policy drew the token, the end-of-turn token included.
    ``logprobs`` are the behaviour log-probs at ``temperature`` (0.0 where not sampled). With ``top_p`` below
    1 or a ``top_k`` they are of another distribution than any that the learner computes. With
    ``behaviour_known`` false they have no meaning. A policy gradient refuses both.
    """

    ids: list[int]
    sampled: list[bool]
    logprobs: list[float]
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    behaviour_known: bool = True
    turns: list[tuple[int, int]] = field(default_factory=list)
    """(number of the call, end of its tokens) of each sampled turn, if the row was made from calls: the first
    turn in time may be in another row. Empty: turns follow from the mask, in the order of rows.
    """
    allowed: dict[int, AllowedTokens] = field(default_factory=dict)
    """The mask of each sampled position at which a grammar restricted the draw. Log-probs there are those of
    the policy renormalised over the allowed tokens."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sampled_count(self) -> int:
        return sum(self.sampled)

    @property
    def settings(self) -> tuple[float, float, int | None, bool]:
        return self.temperature, self.top_p, self.top_k, self.behaviour_known

    @property
    def trained(self) -> list[int]:
        """Positions that can be trained: sampled ones, but never the first, which nothing predicts, nor those
        at which one token alone was allowed, where nothing was decided."""
        if not self.allowed:
            return [t for t in range(1, len(self.ids)) if self.sampled[t]]
        forced = {t for t, allowed in self.allowed.items() if allowed.is_forced}
        return [t for t in range(1, len(self.ids)) if self.sampled[t] and t not in forced]

    @property
    def prompt(self) -> list[int]:
        """The tokens before the first sampled one that has any before it. With a grammar it may lie before
        the first trained one."""
        return self.ids[: self.sampled.index(True, 1)]

    def extend(
        self,
        context: Sequence[int],
        answer: Sequence[int],
        logprobs: Sequence[float] | None = None,
        allowed: Sequence[AllowedTokens] = (),
    ) -> None:
        """Appends ``context`` and a sampled ``answer`` after it; ``allowed`` are the masks of its tokens if a
        grammar restricted them."""
        if allowed and len(allowed) != len(answer):
            raise OnwardError(
                f"An answer of {len(answer)} tokens has {len(allowed)} masks: give one for each token."
            )
        start = len(self.ids) + len(context)
        self.ids += [*context, *answer]
        self.sampled += [False] * len(context) + [True] * len(answer)
        self.logprobs += [0.0] * len(context) + list(logprobs or [0.0] * len(answer))
        self.allowed.update(enumerate(allowed, start))

    def masks_digest(self) -> bytes:
        """Returns a digest of the masks; empty without any."""
        if not self.allowed:
            return b""
        digest = hashlib.sha256()
        for t, one in sorted(self.allowed.items()):
            digest.update(repr((t, one.vocab, one.count)).encode() + one.data)
        return digest.digest()

    def stretches(self) -> list[tuple[int, int]]:
        """Returns (number of the call, trained tokens) of each sampled turn, in the order of the row."""
        found: list[tuple[int, int]] = []
        before, end = -1, 0
        calls = iter(self.turns)
        number = 0
        trained = set(self.trained)
        for t in range(1, len(self.ids)):
            if not self.sampled[t]:
                continue
            starts = t >= end if self.turns else t != before + 1
            if starts and self.turns:
                number, end = next(turn for turn in calls if turn[1] > t)
            if starts or not found:
                found.append((number, 0))
            found[-1] = (number, found[-1][1] + (t in trained))
            before = t
        return found

    def cut(self, length: int) -> TokenRow:
        """Returns the first ``length`` tokens."""
        return replace(
            self,
            ids=self.ids[:length],
            sampled=self.sampled[:length],
            logprobs=self.logprobs[:length],
            turns=[turn for turn in self.turns if turn[1] <= length],
            allowed={t: one for t, one in self.allowed.items() if t < length},
        )


@dataclass
class _Growing:
    row: TokenRow
    ends: dict[str, int] = field(default_factory=dict)  # generation id -> length of the row after it

    def append(self, context: list[int], call: Call, number: int) -> None:
        row = self.row
        if call.trains:
            row.extend(context, call.token_ids, call.logprobs, call.allowed)
            row.turns.append((number, len(row.ids)))
        else:
            row.extend([*context, *call.token_ids], [])
        self.ends[call.generation_id] = len(row.ids)


def rows_from_calls(calls: Iterable[Call]) -> list[TokenRow]:
    """Joins the calls of one trajectory, in order, into as few rows as the prefix rule allows.

    A call that branches off in the middle of a row, or that was drawn under other sampling settings, gets a
    row of its own whose copied context is not trained again. A call without tokens (voided by redaction) ends
    its row, and every call that continues it is left out, and so is a row without a token to train. Raises
    OnwardError when a call continues an unknown generation, when ids and log-probs differ in number, or when
    a log-prob is not a finite number.
    """
    growing: list[_Growing] = []
    for number, call in _kept(calls):
        parent, end, context = _place(growing, call)
        if parent is None or end < len(parent.row) or parent.row.settings != call.settings:
            kept = [] if parent is None else parent.row.ids[:end]
            empty = TokenRow(list(kept), [False] * len(kept), [0.0] * len(kept), *call.settings)
            parent = _Growing(empty)
            growing.append(parent)
        parent.append(context, call, number)
    return [g.row for g in growing if g.row.turns]


def prompt_of(calls: Iterable[Call], generation_id: str) -> list[int]:
    """Returns all tokens before the sampled ones of ``generation_id``, sampled ones of earlier calls
    included. The calls that it continues must be in ``calls`` and have their tokens (see ``left_out``)."""
    known = {call.generation_id: call for call in calls}
    call = known[generation_id]
    parts = [call.prompt_ids]
    while call.continues is not None:
        call = known[call.continues]
        parts += [call.token_ids, call.prompt_ids]
    return [token for part in reversed(parts) for token in part]


def left_out(calls: Iterable[tuple[str, str | None, int]]) -> set[str]:
    """Returns those of ``(generation, continues, sampled tokens)`` that no row can contain: generations
    without tokens, and all that continue them.
    """
    void: set[str] = set()
    for generation, continues, tokens in calls:
        if not tokens or continues in void:
            void.add(generation)
    return void


def _kept(calls: Iterable[Call]) -> Iterator[tuple[int, Call]]:
    """Yields the checked calls that rows contain, with their number among all calls."""
    everything = list(calls)
    void = left_out((call.generation_id, call.continues, len(call.token_ids)) for call in everything)
    for number, call in enumerate(everything):
        _check(call)
        if call.generation_id not in void:
            yield number, call


def _place(growing: list[_Growing], call: Call) -> tuple[_Growing | None, int, list[int]]:
    """Returns the row that ``call`` extends, the length at which it does, and the context tokens to add."""
    if call.continues is not None:
        for candidate in growing:
            if call.continues in candidate.ends:
                return candidate, candidate.ends[call.continues], call.prompt_ids
        raise OnwardError(
            f"Generation {call.generation_id!r} continues {call.continues!r}, which is not among the "
            f"calls before it: pass all calls of the trajectory in the order in which they were made."
        )
    for candidate in growing:
        length = len(candidate.row)
        if len(call.prompt_ids) > length and call.prompt_ids[:length] == candidate.row.ids:
            return candidate, length, call.prompt_ids[length:]
    return None, 0, call.prompt_ids


def _check(call: Call) -> None:
    if call.allowed and len(call.token_ids) != len(call.allowed):
        raise OnwardError(
            f"Generation {call.generation_id!r} has {len(call.token_ids)} tokens but {len(call.allowed)} "
            f"masks: give one for each sampled token."
        )
    if call.logprobs is None:
        return
    if len(call.token_ids) != len(call.logprobs):
        raise OnwardError(
            f"Generation {call.generation_id!r} has {len(call.token_ids)} tokens but {len(call.logprobs)} "
            f"log-probs: record one log-prob for each sampled token."
        )
    if not all(math.isfinite(value) for value in call.logprobs):
        raise OnwardError(
            f"Generation {call.generation_id!r} has a log-prob that is not a finite number: "
            f"tokens whose sampling probability is unknown cannot be trained on."
        )
