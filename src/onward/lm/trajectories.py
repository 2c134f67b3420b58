"""Scored trajectories, the input of the algorithms, and the selection of those that take part.

A trajectory without a score is *unscored*, never zero; it is left out of the baselines and the loss, and is
counted. Every exclusion is counted under a name. Silent errors are refused, with a remedy in the message.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from onward.errors import TrainingError
from onward.lm.tokens import TokenRow

MIN_SPREAD = 1e-6
"""Difference of rewards, relative to rewards above 1, below which attempts count as alike."""


class NothingToLearnError(TrainingError):
    """The trajectories are valid, but nothing in them can be compared: code DATA."""

    def __init__(self, message: str) -> None:
        super().__init__("DATA", message)


@dataclass
class Trajectory:
    """One attempt at a task. ``reward`` None: unscored.

    ``group`` is the key of task *and* start state (attempts with the same one are comparable), ``policy`` the
    digest of the policy that sampled; together they are the group. ``success`` is the binary outcome, beside
    the graded reward. ``turn_rewards``, one per sampled turn, replace the reward at the end and must sum to
    it. A trajectory with ``trains`` false (too late or too old) counts in the baseline of its group and is
    not trained on. ``staleness`` is how many policies ago it was sampled.
    """

    rows: list[TokenRow]
    reward: float | None
    group: Hashable = None
    task_type: str = "general"
    success: bool | None = None
    turn_rewards: Sequence[float] | None = None
    policy: str = ""
    trains: bool = True
    staleness: int = 0
    correction: tuple[TokenRow, TokenRow] | None = None
    """A user's correction of an answer, and that answer, after the same prompt tokens. It is for pairs alone:
    the correction was not sampled, so it is not among ``rows``, which policy gradients train on.
    """

    @property
    def counts(self) -> list[int]:
        """Trained tokens per row."""
        return [len(row.trained) for row in self.rows]

    @property
    def longest(self) -> int:
        """Tokens of the longest row, up to its last trained one."""
        return max((row.trained[-1] + 1 for row in self.rows if row.trained), default=0)

    def turn_ends(self) -> list[int]:
        """Returns, for each sampled turn in time, the index in ``order`` of the last trained token up to its
        end; -1 if there is none, since a grammar forced every token."""
        ends, seen = [], 0
        for _, count, _ in self.turns():
            seen += count
            ends.append(seen - 1)
        return ends

    def order(self) -> Tensor:
        """Returns the indices that sort the trajectory's trained tokens from row order into sampling order.

        The two differ when calls of several conversations alternate (an agent and its subordinate): the last
        turn, which carries the reward, need not be in the last row.
        """
        return torch.tensor([t for first, count, _ in self.turns() for t in range(first, first + count)])

    def turns(self) -> list[tuple[int, int, TokenRow]]:
        """Returns (index of the first trained token, their count, row) of each turn, in the order of
        sampling."""
        found: list[tuple[int, int, int, TokenRow]] = []
        seen = 0
        for row in self.rows:
            for call, count in row.stretches():
                found.append((call, seen, count, row))
                seen += count
        if all(row.turns for row in self.rows):
            found.sort(key=lambda turn: turn[0])
        return [turn[1:] for turn in found]

    def token_rewards(self, penalty: Tensor | None = None) -> Tensor:
        """Returns (trained tokens,) rewards in ``order``: each at the last token of its turn, less
        ``penalty`` per token (in the same order).
        """
        rewards = torch.zeros(sum(self.counts))
        ends = self.turn_ends()
        if self.turn_rewards is None:
            rewards[-1] = float(self.reward or 0.0)
        else:
            for end, value in zip(ends, self.turn_rewards, strict=True):
                rewards[max(end, 0)] += float(value)
        return rewards if penalty is None else rewards - penalty


@dataclass
class Selection:
    """The trajectories that take part, and the number of excluded ones by reason. ``observers`` are scored,
    count in baselines and are not trained on."""

    trajectories: list[Trajectory]
    observers: list[Trajectory] = field(default_factory=list)
    excluded: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> list[TokenRow]:
        """All rows in order, which is the order of every per-row list of an estimate."""
        return [row for one in self.trajectories for row in one.rows]


def select(
    trajectories: Sequence[Trajectory],
    *,
    method: str = "reinforce",
    groups: bool = False,
    drop_uniform: bool = False,
    dense: bool = False,
    max_staleness: int = 1,
    max_tokens: int | None = None,
) -> Selection:
    """Selects the trajectories that ``method`` can learn from.

    ``groups``: it compares attempts at one task. ``drop_uniform``: leave out groups whose binary outcomes are
    all the same (a shaped reward would still rank them, by shaping alone); in a group without binary outcomes
    the rewards decide. ``dense``: it uses rewards per turn. ``max_tokens``: a trajectory with a longer row is
    left out. Raises TrainingError (DATA) for invalid trajectories, NothingToLearnError when nothing is left.
    """
    if not trajectories:
        raise TrainingError("DATA", f"There are no trajectories for {method}: collect some first.")
    excluded: Counter[str] = Counter()
    if groups:
        _refuse_without_group(trajectories, method)
    kept: list[Trajectory] = []
    for number, one in enumerate(trajectories):
        reason = ""
        if one.reward is None:
            reason = "unscored"
        elif not any(one.counts):
            reason = "no_tokens"
        elif one.staleness > max_staleness:
            reason = "stale"
        elif max_tokens is not None and one.longest > max_tokens:
            reason = "too_long"
        if reason:
            excluded[reason] += 1
            continue
        _check_turns(number, one, method, dense)
        kept.append(one)
    if groups:
        attempts = Counter(group_key(one) for one in trajectories)
        kept = _comparable(kept, drop_uniform, attempts, excluded)
    taken = [_without_empty_rows(one) for one in kept if one.trains]
    if not taken:
        raise NothingToLearnError(_nothing_left(method, len(trajectories), excluded))
    return Selection(taken, [one for one in kept if not one.trains], dict(excluded))


def group_key(one: Trajectory) -> Hashable:
    """Returns the comparison key: attempts of different policies are never compared."""
    return (one.group, one.policy)


def _nothing_left(method: str, count: int, excluded: Counter[str]) -> str:
    if excluded["no_tokens"] == count:
        return (
            f"{method} needs the tokens that the policy sampled, and none of the {count} trajectories has "
            f"any: let the agent call the model through Onward's gateway, which captures them, or train with "
            f"dpo or sft, which need only text."
        )
    reasons = ", ".join(f"{n} {why}" for why, n in sorted(excluded.items())) or "none may be trained on"
    remedy = "collect other ones"
    if excluded["group_of_one"]:
        remedy = "use reinforce, whose baseline needs no group, or collect at least two attempts per task"
    elif excluded["too_long"] == count:
        remedy = "give shorter ones, or raise the maximum length"
    elif excluded["uniform_group"]:
        remedy = (
            "all attempts at a task ended alike. Collect tasks of which some attempts succeed, or, if the "
            "rewards are graded, leave `success` out, so that they decide"
        )
    return f"None of the {count} trajectories can be used by {method} ({reasons}): {remedy}."


def _refuse_without_group(trajectories: Sequence[Trajectory], method: str) -> None:
    if any(one.group is None for one in trajectories):
        raise TrainingError(
            "DATA",
            f"{method} compares attempts at the same task, and a trajectory carries no group: record "
            f"one (task_context.group_id), or use reinforce, whose baseline needs none.",
        )


def _check_turns(number: int, one: Trajectory, method: str, dense: bool) -> None:
    if one.turn_rewards is None:
        return
    turns, total = len(one.turn_ends()), sum(one.turn_rewards)
    if not dense:
        raise TrainingError(
            "DATA",
            f"Trajectory {number} has rewards per turn, which {method} cannot place: use ppo or "
            f"reinforce_plus_plus, or give their sum as the reward.",
        )
    if len(one.turn_rewards) != turns:
        raise TrainingError(
            "DATA",
            f"Trajectory {number} has {len(one.turn_rewards)} rewards for {turns} sampled turns: give one "
            f"for each.",
        )
    if abs(total - float(one.reward or 0.0)) > 1e-6 * max(1.0, abs(total)):
        raise TrainingError(
            "DATA",
            f"Trajectory {number} has the reward {one.reward:g} while its rewards per turn sum to "
            f"{total:g}: make them agree, since only one of them can be meant.",
        )


def _comparable(
    kept: list[Trajectory], drop_uniform: bool, attempts: Counter[Hashable], excluded: Counter[str]
) -> list[Trajectory]:
    members: defaultdict[Hashable, list[Trajectory]] = defaultdict(list)
    for one in kept:
        members[group_key(one)].append(one)
    result: list[Trajectory] = []
    for key, group in members.items():
        if len(group) < 2:
            # A single attempt is never compared with itself: its advantage would be 0 or its raw reward.
            excluded["left_alone" if attempts[key] > 1 else "group_of_one"] += 1
            continue
        if drop_uniform and _ended_alike(group):
            excluded["uniform_group"] += len(group)
            continue
        result.extend(group)
    return result


def _ended_alike(group: Sequence[Trajectory]) -> bool:
    """Reports if the attempts have one binary outcome; if not all of them have one, if their rewards agree.

    Without outcomes the reward is the only verdict, and may be graded: a share of tests passed, a rubric.
    """
    outcomes = {one.success for one in group}
    if None not in outcomes:
        return len(outcomes) == 1
    rewards = [float(one.reward or 0.0) for one in group]
    return max(rewards) - min(rewards) <= MIN_SPREAD * max(1.0, *map(abs, rewards))


def _without_empty_rows(one: Trajectory) -> Trajectory:
    """Leaves out rows without a trained token. The rewards of their turns, in which a grammar forced every
    token, go to the turns before them, as those of such turns in other rows do."""
    if all(one.counts):
        return one
    rows = [row for row in one.rows if row.trained]
    if one.turn_rewards is None:
        return replace(one, rows=rows)
    rewards: list[float] = []
    early = 0.0
    for (_, _, row), reward in zip(one.turns(), one.turn_rewards, strict=True):
        if row.trained:
            rewards.append(float(reward) + early)
            early = 0.0
        elif rewards:
            rewards[-1] += float(reward)
        else:
            early += float(reward)
    return replace(one, rows=rows, turn_rewards=rewards)
