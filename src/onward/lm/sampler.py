"""Samples from a policy for many requests at once: continuous batching over a static cache.

Invariants: a running row owns a cache slot. Slots ``0 … n-1`` are always in use and rows of one adapter are
neighbours, so that decoding needs no gather and each adapter is one slice of the batch. ``_arrange`` restores
that order whenever rows leave or are added. No key or value outlives the weights that it was computed with.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onward.lm.attention import decode_attend, prompt_attend
from onward.lm.cache import PrefixStore, SlotCache, shared
from onward.lm.draw import draw
from onward.lm.kernels import product
from onward.lm.network import Segment, final_norm, run_layers
from onward.lm.policy import Policy
from onward.lm.request import Sample, SampleRequest
from onward.lm.watch import Watch

MIN_SHARED = 8  # a common prefix shorter than this is not worth a pass of its own
PREFILL_TOKENS = 2048  # most tokens computed in one pass over new prompts


@dataclass(eq=False)
class _Row:
    request: SampleRequest
    prompt: np.ndarray
    weights: Any  # the fused adapter at admission, or None for the base
    uniforms: np.ndarray
    stop: frozenset[int]
    slot: int = -1
    known: int = 0  # positions with keys and values in the slot
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def ids(self) -> np.ndarray:
        """Tokens whose keys and values are in the cache."""
        return np.concatenate([self.prompt, np.asarray(self.token_ids, dtype=np.int64)])[: self.known]


class Sampler:
    """A sampler: ``submit`` adds requests; each ``step``, while ``busy``, decodes a token per running row."""

    def __init__(
        self,
        policy: Policy,
        max_batch: int = 64,
        max_context: int = 2048,
        *,
        prefix_cache_bytes: int = 512 << 20,
    ) -> None:
        self.policy = policy
        self.max_batch = max_batch
        self.max_context = min(max_context, policy.shape.max_positions)
        self.computed_prompt_tokens = 0  # prompt tokens not found in a cache
        self._cache = SlotCache(policy.shape, policy.device, policy.weights.embedding.dtype)
        self._store = PrefixStore(prefix_cache_bytes)
        self._watch = Watch()
        self._waiting: deque[_Row] = deque()
        self._rows: list[_Row] = []  # in slot order
        self._groups: list[tuple[int, int, int]] = []  # runs of rows of one adapter, see decode_attend
        self._fresh = np.random.SeedSequence()

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._rows)

    @property
    def running(self) -> int:
        return len(self._rows)

    def submit(self, request: SampleRequest) -> None:
        """Queues a request. Raises OnwardError when it cannot be served (NotFoundError: no such adapter)."""
        request.check(self.max_context, self.policy.shape.vocab)
        if request.adapter is not None:
            self.policy.adapter(request.adapter)
        seed = self._fresh.spawn(1)[0] if request.seed is None else request.seed
        generator = np.random.Generator(np.random.Philox(seed))
        uniforms = generator.random(request.max_new_tokens, dtype=np.float32)
        prompt = np.asarray(request.prompt_ids, dtype=np.int64)
        self._waiting.append(_Row(request, prompt, None, uniforms, frozenset(request.stop_ids)))

    @torch.inference_mode()
    def cancel(self, request_id: str) -> bool:
        """Drops a request; True when it was waiting or running."""
        for row in self._waiting:
            if row.request.request_id == request_id:
                self._waiting.remove(row)
                return True
        for row in self._rows:
            if row.request.request_id == request_id:
                self._arrange([r for r in self._rows if r is not row], [])
                return True
        return False

    def drawn(self, request_id: str) -> tuple[list[int], list[float]]:
        """Returns tokens and log-probs of a running request so far; empty for a waiting or finished one."""
        for row in self._rows:
            if row.request.request_id == request_id:
                return row.token_ids, row.logprobs
        return [], []

    @torch.inference_mode()
    def step(self) -> list[Sample]:
        """Admits waiting requests, decodes one token for every running row, returns the finished answers.
        After a change of the base weights, running rows begin again with the new ones."""
        done: list[Sample] = []
        if self._watch.changed(self.policy.weights.tensors()):
            self._begin_again()
        self.policy.weights.pack()
        if self._waiting and len(self._rows) < self.max_batch:
            self._admit(done)
        if self._rows:
            self._decode(done)
        return done

    def forget_prefixes(self) -> None:
        """Drops cached prefixes of adapters that were removed or trained since, which frees their memory."""
        weights: list[object] = [None, *(a.fused() for a in self.policy.adapters.values())]
        self._store.keep_only(weights)

    def _begin_again(self) -> None:
        self._store.keep_only([])
        for row in self._rows:
            row.slot, row.known, row.token_ids, row.logprobs = -1, 0, [], []
        self._waiting.extendleft(reversed(self._rows))
        self._rows, self._groups = [], []

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
        self._take(new, torch.stack([logits[id(row)] for row in new]), done)

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
        x = policy.weights.embedding[torch.from_numpy(ids).to(device)]
        x = run_layers(
            policy.shape,
            policy.weights,
            x,
            policy.angles(positions),
            prompt_attend(policy.shape, self._cache, spans),
            segments,
        )
        return self._logits(x[last])

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
            policy.weights.embedding[ids],
            policy.angles(positions),
            decode_attend(policy.shape, self._cache, positions, longest, self._groups),
            segments,
        )
        self._take(rows, self._logits(x), done)

    def _logits(self, x: Tensor) -> Tensor:
        weights = self.policy.weights
        return product(final_norm(self.policy.shape, weights, x), weights.head, weights.packed_head)

    def _shared_groups(self) -> list[tuple[int, int, int]]:
        """Returns (first slot, end slot, common prompt prefix) for each run of rows of one adapter."""
        groups: list[tuple[int, int, int]] = []
        for rows in _by_weights(self._rows):
            first = rows[0]
            common = min(shared(first.prompt, row.prompt) for row in rows)
            groups.append((first.slot, first.slot + len(rows), common))
        return groups

    def _take(self, rows: list[_Row], logits: Tensor, done: list[Sample]) -> None:
        """Draws one token for each row and retires the rows that are complete."""
        device = logits.device
        uniforms = torch.tensor([float(r.uniforms[len(r.token_ids)]) for r in rows], device=device)
        requests = [r.request for r in rows]
        temperature = None
        if any(r.temperature != 1.0 for r in requests):
            temperature = torch.tensor([r.temperature for r in requests], device=device)
        top_k = [r.top_k for r in requests] if any(r.top_k is not None for r in requests) else None
        top_p = [r.top_p for r in requests] if any(r.top_p < 1.0 for r in requests) else None
        tokens, logp = draw(logits, uniforms, temperature, top_k, top_p)
        finished: list[_Row] = []
        for row, token, value in zip(rows, tokens.tolist(), logp.tolist(), strict=True):
            row.token_ids.append(token)
            row.logprobs.append(value)
            reason = "stop" if token in row.stop else None
            if reason is None and len(row.token_ids) == row.request.max_new_tokens:
                reason = "length"
            if reason is not None:
                finished.append(row)
                done.append(Sample(row.request.request_id, row.token_ids, row.logprobs, reason))
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
    chunks: list[list[_Row]] = []
    used = PREFILL_TOKENS + 1
    for row in sorted(rows, key=lambda r: r.slot):
        new = len(row.prompt) - row.known
        if used + new > PREFILL_TOKENS:
            chunks.append([])
            used = 0
        chunks[-1].append(row)
        used += new
    return chunks


def _extend_segments(segments: list[Segment], start: int, stop: int, weights: Any) -> None:
    if weights is None:
        return
    if segments and segments[-1][1] == start and segments[-1][2] is weights:
        segments[-1] = (segments[-1][0], stop, weights)
    else:
        segments.append((start, stop, weights))
