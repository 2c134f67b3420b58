"""Samples from an ``AnyPolicy`` for many requests at once.

Requests that are admitted together and use one adapter form a group, which decodes with one cache until its
last row ends; later requests form groups of their own. A step draws one token for every running row.

Invariants: no row outlives the weights that it began with. If the base or its adapter changes, the row begins
again with the new ones. If its adapter is removed, the row ends with an error. A draw depends on the
request's seed and its own row alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from onward.lm.answers import Answer, AnswerQueue
from onward.lm.any_model.cached import CachedRows
from onward.lm.any_model.policy import AnyPolicy, parts_of
from onward.lm.next_token import Computed, draw_next
from onward.lm.request import Sample, SampleRequest
from onward.lm.watch import Watch

PREFILL_TOKENS = 4096
"""Most tokens computed in one pass over new prompts, padding included; a longer prompt has its own pass."""


class _Row(Answer):
    @property
    def ids(self) -> list[int]:
        return [*self.request.prompt_ids, *self.token_ids]


class _Group:
    """Rows that decode together under one adapter."""

    def __init__(self, policy: AnyPolicy, rows: list[_Row]) -> None:
        self.policy, self.rows = policy, rows
        self.adapter = rows[0].request.adapter
        self._cached: CachedRows | None = None
        self._watch = Watch()
        self._watch.changed(self._weights())

    def _weights(self) -> Iterator[Tensor]:
        yield from self.policy.tensors()
        if self.adapter is not None:
            yield from self.policy.adapter(self.adapter).params.values()

    @property
    def orphaned(self) -> bool:
        """True if the group's adapter was removed."""
        return self.adapter is not None and self.adapter not in self.policy.adapters

    @property
    def stale(self) -> bool:
        """True if weights changed since the group began, or since the last look."""
        return self._watch.changed(self._weights())

    def next_logits(self) -> Tensor:
        """Returns logits (rows, vocab) after the last token of each row."""
        self.policy.activate(self.adapter)
        if not self.policy.trust.cache:
            return self._whole()
        if self._cached is None:
            return self._prompts()
        last = torch.tensor([row.token_ids[-1] for row in self.rows], device=self.policy.device)
        return self._cached.advance(last)

    def _prompts(self) -> Tensor:
        """Computes each distinct prompt once, and repeats its result for the rows that have it."""
        places: dict[tuple[int, ...], int] = {}
        order = [places.setdefault(tuple(row.request.prompt_ids), len(places)) for row in self.rows]
        self._cached = CachedRows(self.policy.network)
        logits = self._cached.begin(list(places))
        if order == list(range(len(places))):
            return logits
        index = torch.tensor(order, device=self.policy.device)
        self._cached.select(index)
        return logits[index]

    def _whole(self) -> Tensor:
        """Computes the rows again from their first token."""
        logits = self.policy.network.logits([row.ids for row in self.rows])
        return torch.stack([line[len(row.ids) - 1] for line, row in zip(logits, self.rows, strict=True)])

    def keep(self, places: list[int]) -> None:
        """Goes on with the rows at ``places`` alone."""
        self.rows = [self.rows[i] for i in places]
        if self._cached is not None and places:
            self._cached.select(torch.tensor(places, device=self.policy.device))


class AnySampler(AnswerQueue[_Row]):
    """A sampler with the methods of ``sampler.Sampler``."""

    def __init__(self, policy: AnyPolicy, max_batch: int = 64, max_context: int = 2048) -> None:
        super().__init__(policy, max_batch, max_context)
        self.policy = policy
        self._groups: list[_Group] = []

    def _running(self) -> Iterator[_Row]:
        return (row for group in self._groups for row in group.rows)

    def _new(self, request: SampleRequest) -> _Row:
        return _Row(request)

    def _drop(self, answer: _Row) -> None:
        for group in self._groups:
            places = [i for i, row in enumerate(group.rows) if row is not answer]
            if len(places) < len(group.rows):
                self._keep(group, places)
                return

    @torch.inference_mode()
    def step(self) -> list[Sample]:
        """Draws one token for every running row, admits waiting requests, returns the finished answers.

        An answer whose adapter was removed is finished with reason ``error`` and its tokens so far.
        """
        done = self._end_orphans()
        for group in list(self._groups):
            if group.stale:
                self._groups.remove(group)
                self._begin_again(group.rows)
        self._admit()
        for group in list(self._groups):
            self._draw(group, done)
        return done

    def forget_prefixes(self) -> None:
        """Does nothing: no prefix outlives its group."""

    def _end_orphans(self) -> list[Sample]:
        """Ends rows whose adapter was removed, those that run included."""
        rows = [row for group in self._groups if group.orphaned for row in group.rows]
        self._groups = [group for group in self._groups if not group.orphaned]
        return [row.orphaned() for row in rows] + super()._end_orphans()

    def _admit(self) -> None:
        free = self.max_batch - self.running
        by_adapter: dict[str | None, list[_Row]] = {}
        while self._waiting and free > 0:
            row = self._waiting.popleft()
            by_adapter.setdefault(row.request.adapter, []).append(row)
            free -= 1
        trust = self.policy.trust
        for rows in by_adapter.values():
            mixed = trust.padded_cache if trust.cache else trust.padding
            rows.sort(key=lambda row: len(row.request.prompt_ids))
            for part in parts_of([len(row.request.prompt_ids) for row in rows], trust.batches, mixed):
                for run in _runs([rows[i] for i in part]):
                    self._groups.append(_Group(self.policy, run))

    def _draw(self, group: _Group, done: list[Sample]) -> None:
        rows = group.rows
        ended = draw_next(rows, Computed(group.next_logits().clone()))
        if ended:
            done += [row.finished(reason) for row, reason in ended]
            gone = {id(row) for row, _ in ended}
            self._keep(group, [i for i, row in enumerate(rows) if id(row) not in gone])

    def _keep(self, group: _Group, places: list[int]) -> None:
        group.keep(places)
        if not places:
            self._groups.remove(group)


def _runs(rows: list[_Row]) -> list[list[_Row]]:
    """Cuts rows, shortest prompt first, into runs of at most ``PREFILL_TOKENS`` padded tokens."""
    runs: list[list[_Row]] = [[]]
    for row in rows:
        if runs[-1] and (len(runs[-1]) + 1) * len(row.request.prompt_ids) > PREFILL_TOKENS:
            runs.append([])
        runs[-1].append(row)
    return runs
