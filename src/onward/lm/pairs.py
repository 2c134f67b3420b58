"""Pairs to compare: a better and a worse attempt at a task, or a correction and the answer it corrects.

A pair whose difference would be cut off by the length limit teaches nothing about it. It is skipped and
counted, as is every other pair that cannot be compared.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from onward.errors import TrainingError
from onward.lm.tokens import TokenRow

if TYPE_CHECKING:  # it needs torch; choosing pairs does not
    from onward.lm.trajectories import Trajectory


class Attempt(Protocol):
    """One attempt at a task, to compare with others."""

    @property
    def reward(self) -> float | None: ...


A = TypeVar("A", bound=Attempt)


@dataclass
class Pair:
    """Two answers to exactly the same prompt tokens. A side that is not append-only has several rows."""

    chosen: list[TokenRow]
    rejected: list[TokenRow]
    task: Hashable = None
    margin: float = 0.0
    """Reward of the chosen side minus that of the rejected one."""
    corrected: bool = False
    """True when the chosen side is a written correction of the rejected one."""


@dataclass
class PairSelection:
    """Pairs that can be learnt from, and the number of the others by reason."""

    pairs: list[Pair]
    excluded: Mapping[str, int] = field(default_factory=dict)


def make_pairs(
    trajectories: Sequence[Trajectory],
    *,
    margin: float = 0.0,
    min_reward: float | None = None,
    per_task: int | None = 8,
    seed: int = 0,
) -> list[Pair]:
    """Returns pairs within each group whose rewards differ by more than ``margin``, the widest first; then
    each correction with the answer that it corrects.

    ``min_reward`` applies to the chosen side. ``per_task`` bounds the pairs of one group; among equally wide
    ones ``seed`` decides. Neither applies to corrections, which need neither reward nor group. Unscored
    trajectories and those without tokens are left out. Policies may differ inside a pair: the comparison is
    of the answers. Raises TrainingError (DATA) when no pair exists.
    """
    groups: defaultdict[Hashable, list[Trajectory]] = defaultdict(list)
    for one in trajectories:
        if one.reward is not None and one.group is not None and any(one.counts):
            groups[one.group].append(one)
    rnd, result = random.Random(seed), []
    for key, members in groups.items():
        found = widest(members, margin=margin, min_reward=min_reward, per_task=per_task, rnd=rnd)
        result.extend(Pair(better.rows, worse.rows, key, width) for better, worse, width in found)
    result += [
        Pair([one.correction[0]], [one.correction[1]], one.group, corrected=True)
        for one in trajectories
        if one.correction is not None
    ]
    if not result:
        raise TrainingError(
            "DATA",
            f"None of the {len(trajectories)} trajectories has a better attempt at the same task to compare "
            f"with, and none was corrected: record several attempts per task (task_context.group_id), lower "
            f"the margin, or use sft.",
        )
    return result


def widest(
    members: Sequence[A],
    *,
    margin: float = 0.0,
    min_reward: float | None = None,
    per_task: int | None = 8,
    rnd: random.Random,
) -> list[tuple[A, A, float]]:
    """Returns ``(better, worse, difference)`` of attempts at one task whose rewards differ by more than
    ``margin``.

    The widest come first, ``per_task`` at most; among equally wide ones ``rnd`` decides. ``min_reward``
    applies to the better one. Unscored attempts are left out.
    """
    found = [
        (better, worse, float(better.reward) - float(worse.reward))
        for better in members
        for worse in members
        if better.reward is not None
        and worse.reward is not None
        and better.reward - worse.reward > margin
        and (min_reward is None or better.reward >= min_reward)
    ]
    rnd.shuffle(found)
    found.sort(key=lambda pair: -pair[2])
    return found[:per_task]


def usable(pairs: Sequence[Pair], max_tokens: int) -> PairSelection:
    """Cuts pairs to ``max_tokens`` per row; those that no longer compare anything are left out and counted.

    ``other_prompt``: the sides do not start from the same tokens. ``same_answer``: nothing differs.
    ``truncated``: the first turn in which a side differs does not fit. Raises TrainingError (DATA) when no
    pair is left.
    """
    kept: list[Pair] = []
    excluded: Counter[str] = Counter()
    for pair in pairs:
        reason = _problem(pair, max_tokens)
        if reason:
            excluded[reason] += 1
            continue
        chosen, rejected = _cut(pair.chosen, max_tokens), _cut(pair.rejected, max_tokens)
        kept.append(replace(pair, chosen=chosen, rejected=rejected))
    if not kept:
        reasons = ", ".join(f"{n} {why}" for why, n in sorted(excluded.items())) or "there were none"
        raise TrainingError(
            "DATA",
            f"None of the {len(pairs)} pairs can be compared within {max_tokens} tokens ({reasons}): raise "
            f"max_tokens or collect attempts that start from the same prompt.",
        )
    return PairSelection(kept, dict(excluded))


def _problem(pair: Pair, max_tokens: int) -> str:
    sides = [[row for row in side if row.trained] for side in (pair.chosen, pair.rejected)]
    if not all(sides):
        return "no_tokens"
    if sides[0][0].prompt != sides[1][0].prompt:
        return "other_prompt"
    at, place = _first_difference(sides[0], sides[1])
    if at is None:
        return "same_answer"
    for side in sides:
        if at < len(side) and not _turn_fits(side[at], place, max_tokens):
            return "truncated"
    return ""


def _first_difference(a: list[TokenRow], b: list[TokenRow]) -> tuple[int | None, int]:
    """Returns (row, position in it) of the first difference between the sides."""
    for k in range(max(len(a), len(b))):
        if k >= len(a) or k >= len(b):
            return k, 0
        first, second = a[k], b[k]
        for t in range(max(len(first), len(second))):
            if t >= len(first) or t >= len(second) or first.ids[t] != second.ids[t]:
                return k, t
            if first.sampled[t] != second.sampled[t]:
                return k, t
    return None, 0


def _turn_fits(row: TokenRow, place: int, max_tokens: int) -> bool:
    """Reports if the sampled turn at or after ``place`` ends within ``max_tokens``; true if there is none."""
    later = [t for t in row.trained if t >= place]
    if not later:
        return True
    end = later[0]
    while end + 1 < len(row) and row.sampled[end + 1]:
        end += 1
    return end < max_tokens


def _cut(rows: Sequence[TokenRow], max_tokens: int) -> list[TokenRow]:
    shorter = [row.cut(max_tokens) if len(row) > max_tokens else row for row in rows]
    return [row for row in shorter if row.trained]
