"""Selection of a job's data from a source: filters, limits, groups and the mix of domains, then the file.

Pages come newest first, and the selection says when it has enough. Without a mix it takes the newest
``sample_size`` admitted trajectories; with one it goes back until each domain has twice its part to draw
from, and over ``REACH`` times ``sample_size`` trajectories at most.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onward.contracts import canonical_json
from onward.training.data import admission, corrections, dataset
from onward.training.data.admission import AdmissionRules, ScoredTrajectory
from onward.training.data.dataset import Dataset, Line, Shares
from onward.training.data.sampling import stratified
from onward.training.spec.algorithms import ALGORITHMS

REACH = 10


@dataclass(frozen=True)
class Mix:
    """A stratified sample: ``shares`` by domain, or None for equal parts of the domains that there are."""

    shares: Mapping[str, float] | None
    seed: int


@dataclass(frozen=True)
class Limits:
    """Size of a dataset, and the shares of unusable input above which a job fails."""

    sample_size: int
    max_unscored_share: float
    max_masked_share: float = 0.5


class Selection:
    """The data of one job while it is read."""

    def __init__(self, rules: AdmissionRules, algorithm: str, limits: Limits, mix: Mix | None = None) -> None:
        self._rules = rules
        self.algorithm = algorithm
        self._limits = limits
        self._mix = mix
        self._kept: list[Line] = []
        self._domains: dict[str, str] = {}
        self._found: Counter[str] = Counter()
        """Admitted trajectories by domain."""
        self._members: dict[str, dict[str, Any]] = {}
        self._generations: set[str] = set()
        self._shares = Shares()
        self.excluded: Counter[str] = Counter()

    def add(self, page: Iterable[ScoredTrajectory]) -> bool:
        """Admits trajectories, newest first; returns whether that is enough."""
        for item in page:
            if self.is_full():
                break
            self._add(item)
        return self.is_full()

    def is_full(self) -> bool:
        size = self._limits.sample_size
        if self._mix is None:
            return len(self._kept) >= size
        if self._shares.seen >= REACH * size:
            return True
        shares = self._mix.shares or dict.fromkeys(self._found, 1.0)
        weight = sum(shares.values())
        return len(self._kept) >= 2 * size and all(
            self._found[name] >= 2 * size * share / weight for name, share in shares.items()
        )

    def finish(self, folder: Path, left_out: Mapping[str, int] | None = None) -> Dataset:
        """Writes ``dataset.jsonl`` in ``folder``. Raises TrainingError("DATA") when too little is left, or
        when too much of the input was unusable. ``left_out`` counts what the source did not yield."""
        kind, limits = ALGORITHMS[self.algorithm], self._limits
        self._shares.refuse(
            limits.max_unscored_share, 1.0 if kind.text_is_enough else limits.max_masked_share
        )
        excluded = self.excluded + Counter(left_out or {})
        spare = admission.one_per_session(self._kept)
        lines = dataset.select_lines(
            self._kept, self.algorithm, excluded, min_reward=self._rules.filters.get("min_reward")
        )
        strata, notes = None, []
        if self._mix is not None:
            sample = stratified(
                lines, self._domains, self._mix.shares, limits.sample_size,
                seed=self._mix.seed, grouped=kind.grouped,
            )  # fmt: skip
            excluded["not_drawn"] += len(lines) - len(sample.lines)
            strata, notes = sample.strata, sample.shortages()
            lines = dataset.select_lines(sample.lines, self.algorithm, excluded)
        made = dataset.write(lines, folder, +excluded)
        members = [
            {**self._members[one["trajectory_id"]], **one, **({"spare_vote": True} if name in spare else {})}
            for one in made.members
            for name in (one["trajectory_id"],)
        ]
        return replace(
            made,
            calls=self._shares.calls,
            masked_calls=self._shares.masked_calls,
            members=members,
            strata=strata,
            notes=notes,
        )

    def _add(self, item: ScoredTrajectory) -> None:
        line = admission.line(item, self._rules)
        if not isinstance(line, str):
            line = corrections.apply_correction(line, item, self.excluded)
        if not isinstance(line, str):
            line = self._once(line)
        domain = str(item.trajectory["task_context"].get("domain") or "general")
        if not isinstance(line, str) and self._mix and domain not in (self._mix.shares or (domain,)):
            line = "other_domain"
        self._shares.count_line(item, line)
        if isinstance(line, str):
            self.excluded[line] += 1
            return
        self._kept.append(line)
        self._domains[line["trajectory_id"]] = domain
        self._found[domain] += 1
        self._members[line["trajectory_id"]] = member(item)

    def _once(self, line: Line) -> Line | str:
        """Returns the line, or ``replayed`` if one of its generation records was used before."""
        made_by = {call["generation_id"] for call in line.get("calls", ())}
        replayed = self._generations & made_by or line["trajectory_id"] in self._members
        self._generations |= made_by
        return "replayed" if replayed else line


def member(item: ScoredTrajectory) -> dict[str, Any]:
    """Returns the provenance of one trajectory: what must be read again to make its line."""
    reward, correction = item.reward, item.correction
    return {
        "trajectory_id": item.trajectory["trajectory_id"],
        "identity": item.identity,
        "sequence": item.sequence,
        "reward_id": None if reward is None else reward.get("reward_id"),
        "reward_sha256": None if reward is None else hashlib.sha256(canonical_json(reward)).hexdigest(),
        "feedback_id": None if correction is None else correction.feedback_id,
    }
