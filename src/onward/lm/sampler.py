"""Samples from a policy for many requests at once: continuous batching over a static cache.

Invariants: a running row owns a cache slot. Slots ``0 … n-1`` are always in use and rows of one adapter are
neighbours, so that decoding needs no gather and each adapter is one slice of the batch. ``_arrange`` restores
that order whenever rows leave or are added. No key or value outlives the weights that it was computed with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onward.lm.answers import Answer, AnswerQueue
from onward.lm.attention import decode_attend, prompt_attend
from onward.lm.cache import PrefixStore, SlotCache, shared
from onward.lm.kernels import product, soft_cap
from onward.lm.network import Segment, final_norm, run_layers
from onward.lm.next_token import Computed, Logits, draw_next
from onward.lm.packing import split_by_tokens
from onward.lm.policy import Policy
from onward.lm.request import Sample, SampleRequest
from onward.lm.watch import Watch

MIN_SHARED = 8  # a common prefix shorter than this is not worth a pass of its own
PREFILL_TOKENS = 2048  # most tokens computed in one pass over new prompts


@dataclass(eq=False, kw_only=True)
class _Row(Answer):
    prompt: np.ndarray
    weights: Any = None  # the fused adapter at admission, or None for the base
    slot: int = -1
    known: int = 0  # positions with keys and values in the slot

    @property
    def ids(self) -> np.ndarray:
        """Tokens whose keys and values are in the cache."""
        return np.concatenate([self.prompt, np.asarray(self.token_ids, dtype=np.int64)])[: self.known]

    def restart(self) -> None:
        self.slot, self.known = -1, 0
        super().restart()


class Sampler(AnswerQueue[_Row]):
    """A sampler: ``submit`` adds requests; each ``step``, while ``busy``, decodes a token per running row."""

    def __init__(
        self,
        policy: Policy,
        max_batch: int = 64,
        max_context: int = 2048,
        *,
        prefix_cache_bytes: int = 512 << 20,
    ) -> None:
        super().__init__(policy, max_batch, max_context)
        self.policy = policy
        self.computed_prompt_tokens = 0  # prompt tokens not found in a cache
        self._cache = SlotCache(policy.shape, policy.device, policy.weights.embedding.dtype)
        self._store = PrefixStore(prefix_cache_bytes)
        self._watch = Watch()
        self._rows: list[_Row] = []  # in slot order
        self._groups: list[tuple[int, int, int]] = []  # runs of rows of one adapter, see decode_attend

    def _running(self) -> list[_Row]:
        return self._rows

    def _new(self, request: SampleRequest) -> _Row:
        return _Row(request=request, prompt=np.asarray(request.prompt_ids, dtype=np.int64))

    def _drop(self, answer: _Row) -> None:
        self._arrange([row for row in self._rows if row is not answer], [])

    @torch.inference_mode()
    def step(self) -> list[Sample]:
        """Admits waiting requests, decodes one token for every running row, returns the finished answers.
        After a change of the base weights, running rows begin again with the new ones. A row whose adapter
        was removed before it could begin is finished with reason ``error``."""
        done: list[Sample] = []
        if self._watch.changed(self.policy.weights.tensors()):
            self._store.keep_only([])
            self._begin_again(self._rows)
            self._rows, self._groups = [], []
        self.policy.weights.pack()
        done += self._end_orphans()
        if self._waiting and len(self._rows) < self.max_batch:
            self._admit(done)
        if self._rows:
            self._decode(done)
        return done

    def forget_prefixes(self) -> None:
        """Drops cached prefixes of adapters that were removed or trained since, which frees their memory."""
        weights: list[object] = [None, *(a.fused() for a in self.policy.adapters.values())]
        self._store.keep_only(weights)

    # --- admission -------------------------------------------------------------------------------

    def _admit(self, done: list[Sample]) -> None:
        new: list[_Row] = []
        while self._waiting and len(self._rows) + len(new) < self.max_batch:
            row = self._waiting.popleft()
            name = row.request.adapter
            row.weights = None if name is None else self.policy.adapter(name).fused()
            new.append(row)
        longest = max(len(r.prompt) + r.request.max_new_tokens for r in new)
        self._cache.reserve(len(self._rows) + len(new), longest)
        running = list(self._rows)
        self._arrange(running, new)
        for row in new:
            self._fill_from_known(row, running)
        for group in _by_weights(new):
            self._compute_shared(group)
        leaders, followers = _leaders(new)
        logits: dict[int, Tensor] = {}
        for part in _chunks(leaders):
            for row, line in zip(part, self._prefill([(r, len(r.prompt)) for r in part]), strict=True):
                logits[id(row)] = line
        for row, leader in followers:
            self._cache.copy(leader.slot, row.slot, leader.known)
            row.known = leader.known
            logits[id(row)] = logits[id(leader)]
        self._take(new, Computed(torch.stack([logits[id(row)] for row in new])), done)

    def _fill_from_known(self, row: _Row, running: list[_Row]) -> None:
        """Copies the longest known prefix (stored, or of a running row), short of the last prompt token."""
        limit = len(row.prompt) - 1
        entry, length = self._store.find(row.prompt, row.weights)
        source = None
        for other in running:
            if other.weights is row.weights:
                n = shared(other.ids, row.prompt)
                if n > length:
                    source, length = other, n
        length = min(length, limit)
        if length < MIN_SHARED:
            return
        if source is not None:
            self._cache.copy(source.slot, row.slot, length)
        elif entry is not None:
            self._cache.write(row.slot, entry.data[:, :, :, :length])
        row.known = length

    def _compute_shared(self, rows: list[_Row]) -> None:
        """Computes the prefix common to ``rows`` once, in the slot that already has most of it."""
        if len(rows) < 2:
            return
        first = rows[0]
        common = min(shared(first.prompt, r.prompt) for r in rows)
        common = min([common, *(len(r.prompt) - 1 for r in rows)])
        behind = [r for r in rows if r.known < common]
        if len(behind) < 2 or common - max(r.known for r in behind) < MIN_SHARED:
            return
        source = max(behind, key=lambda r: r.known)
        self._prefill([(source, common)])
        self._store.put(source.prompt[:common], source.weights, self._cache.read(source.slot, common))
        for row in behind:
            if row is not source:
                self._cache.copy(source.slot, row.slot, common)
                row.known = common

    def _prefill(self, work: list[tuple[_Row, int]]) -> Tensor:
        """Computes prompts up to the given length; returns logits (rows, vocab) after each last token."""
        policy, device = self.policy, self.policy.device
        spans = [(row.slot, row.known, upto) for row, upto in work]
        ids = np.concatenate([row.prompt[row.known : upto] for row, upto in work])
        positions = torch.cat([torch.arange(start, stop) for _, start, stop in spans]).to(device)
        self.computed_prompt_tokens += len(ids)
        segments: list[Segment] = []
        at, last = 0, []
        for row, upto in work:
            n = upto - row.known
            _extend_segments(segments, at, at + n, row.weights)
            at += n
            last.append(at - 1)
            row.known = upto
        x = policy.embed(torch.from_numpy(ids).to(device))
        x = run_layers(
            policy.shape,
            policy.weights,
            x,
            policy.angles(positions),
            prompt_attend(policy.shape, self._cache, spans),
            segments,
        )
        return _Decoded(policy, x).every(last)

    # --- decoding --------------------------------------------------------------------------------

    def _decode(self, done: list[Sample]) -> None:
        rows, policy, device = self._rows, self.policy, self.policy.device
        ids = torch.tensor([row.token_ids[-1] for row in rows], device=device)
        known = [row.known for row in rows]
        positions = torch.tensor(known, device=device)
        longest = max(known) + 1
        self._cache.reserve(len(rows), longest)
        segments: list[Segment] = []
        for i, row in enumerate(rows):
            _extend_segments(segments, i, i + 1, row.weights)
            row.known += 1
        x = run_layers(
            policy.shape,
            policy.weights,
            policy.embed(ids),
            policy.angles(positions),
            decode_attend(policy.shape, self._cache, positions, longest, self._groups),
            segments,
        )
        self._take(rows, _Decoded(self.policy, x), done)

    def _shared_groups(self) -> list[tuple[int, int, int]]:
        """Returns (first slot, end slot, common prompt prefix) for each run of rows of one adapter."""
        groups: list[tuple[int, int, int]] = []
        for rows in _by_weights(self._rows):
            first = rows[0]
            common = min(shared(first.prompt, row.prompt) for row in rows)
            groups.append((first.slot, first.slot + len(rows), common))
        return groups

    def _take(self, rows: list[_Row], logits: Logits, done: list[Sample]) -> None:
        """Draws one token for each row and retires the rows that are complete."""
        ended = draw_next(rows, logits)
        done += [row.finished(reason) for row, reason in ended]
        finished = [row for row, _ in ended]
        if finished:
            for row in finished:
                self._store.put(row.ids, row.weights, self._cache.read(row.slot, row.known))
            self._arrange([r for r in self._rows if r not in finished], [])

    def _arrange(self, staying: list[_Row], new: list[_Row]) -> None:
        """Gives every row a slot: adapters side by side, no gap, as few moves as possible."""
        groups = _by_weights([*staying, *new])
        moved: list[tuple[_Row, Tensor]] = []
        placed: dict[int, _Row] = {}
        pending: list[tuple[range, list[_Row]]] = []
        start = 0
        for group in groups:
            slots = range(start, start + len(group))
            start += len(group)
            rest = []
            for row in group:
                if row.slot in slots:
                    placed[row.slot] = row
                else:
                    rest.append(row)
                    if row.slot >= 0:
                        moved.append((row, self._cache.read(row.slot, row.known)))
            pending.append((slots, rest))
        for slots, rest in pending:
            free = [slot for slot in slots if slot not in placed]
            for row, slot in zip(rest, free, strict=True):
                row.slot = slot
                placed[slot] = row
        for row, data in moved:
            self._cache.write(row.slot, data)
        self._rows = [placed[slot] for slot in range(start)]
        self._groups = self._shared_groups()


class _Decoded:
    """The logits of states (rows, hidden) after the last block."""

    def __init__(self, policy: Policy, x: Tensor) -> None:
        self._policy, self._x = policy, x
        self.device, self.vocab = x.device, policy.shape.vocab

    def every(self, rows: Sequence[int] | None) -> Tensor:
        weights = self._policy.weights
        return self._capped(product(self._states(rows), weights.head, weights.packed_head))

    def some(self, rows: Sequence[int], ids: Tensor) -> Tensor:
        return self._capped(
            torch.bmm(self._policy.weights.head[ids], self._states(rows)[:, :, None])[:, :, 0]
        )

    def _states(self, rows: Sequence[int] | None) -> Tensor:
        x = self._x if rows is None else self._x[rows]
        return final_norm(self._policy.shape, self._policy.weights, x)

    def _capped(self, logits: Tensor) -> Tensor:
        cap = self._policy.shape.logit_cap
        return logits if cap is None else soft_cap(logits.float(), cap)


def _by_weights(rows: list[_Row]) -> list[list[_Row]]:
    groups: dict[int, list[_Row]] = {}
    for row in rows:
        groups.setdefault(id(row.weights), []).append(row)
    return list(groups.values())


def _leaders(rows: list[_Row]) -> tuple[list[_Row], list[tuple[_Row, _Row]]]:
    """Returns one row per distinct prompt, and each other row with the leader whose result it copies."""
    leaders: dict[tuple[int, bytes], _Row] = {}
    followers = []
    for row in rows:
        key = (id(row.weights), row.prompt.tobytes())
        leader = leaders.setdefault(key, row)
        if leader is not row:
            followers.append((row, leader))
    return list(leaders.values()), followers


def _chunks(rows: list[_Row]) -> list[list[_Row]]:
    """Splits rows, in slot order, into passes of at most ``PREFILL_TOKENS`` new tokens."""
    in_order = sorted(rows, key=lambda row: row.slot)
    return split_by_tokens(in_order, [len(row.prompt) - row.known for row in in_order], PREFILL_TOKENS)


def _extend_segments(segments: list[Segment], start: int, stop: int, weights: Any) -> None:
    if weights is None:
        return
    if segments and segments[-1][1] == start and segments[-1][2] is weights:
        segments[-1] = (segments[-1][0], stop, weights)
    else:
        segments.append((start, stop, weights))
