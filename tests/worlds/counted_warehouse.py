"""A warehouse for the coordinator that counts what was added to it."""

from __future__ import annotations

import json

import pytest

from onward.coordinator import coordinator as module


class CountedWarehouse:
    """Stands for the warehouse: how many rewarded trajectories of which policy, up to which sequence."""

    def __init__(self) -> None:
        self.latest = 0
        self.rewarded: list[tuple[str, int]] = []
        self.payloads: list[dict] = []
        self.corrections: list[dict] = []
        self.sessions: list[tuple[str, int, float]] = []

    def add(self, digest: str, n: int) -> None:
        for _ in range(n):
            self.latest += 1
            self.rewarded.append((digest, self.latest))

    def serve(self, digest: str, values: list[float]) -> None:
        """Adds sessions of one rewarded trajectory each, with these mean raw totals."""
        for value in values:
            self.add(digest, 1)
            self.sessions.append((digest, self.latest, value))

    @classmethod
    def installed(cls, monkeypatch: pytest.MonkeyPatch) -> CountedWarehouse:
        """One that the coordinator's queries read."""

        async def latest_seq(w):
            return w.latest

        async def rewarded_count(w, digest, since_seq=0, until_seq=None):
            return sum(1 for d, seq in w.rewarded if d == digest and seq > since_seq)

        async def rows(w, digests, since=None, limit=0, **_):
            return [{"payload": json.dumps(p)} for p in w.payloads[:limit]]

        async def new_corrections(w, digest, since):
            return w.corrections

        async def session_values(w, digest, after_seq, scored_until, settle_seconds, limit):
            new = [(seq, value) for d, seq, value in w.sessions if d == digest and seq > after_seq]
            return [{"seq": seq, "value": value} for seq, value in new[:limit]]

        monkeypatch.setattr(module.queries, "session_values", session_values)
        monkeypatch.setattr(module.queries, "latest_seq", latest_seq)
        monkeypatch.setattr(module.reward_queries, "new_corrections", new_corrections)
        monkeypatch.setattr(module.queries, "rewarded_count", rewarded_count)
        monkeypatch.setattr(module.queries, "trajectories_for_training", rows)
        return cls()
