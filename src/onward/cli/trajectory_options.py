"""Options that select stored trajectories, the same for every command that takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from onward.cli.moments import moment
from onward.clock import SystemClock
from onward.errors import ConfigError
from onward.warehouse.trajectory_queries import OUTCOMES, Chosen

_WHICH = "Which trajectories"

Since = Annotated[
    str | None,
    typer.Option(help="Begun then or later: 7d, 24h, or 2026-01-31T12:00:00Z.", rich_help_panel=_WHICH),
]
Until = Annotated[str | None, typer.Option(help="Begun before then.", rich_help_panel=_WHICH)]
Agent = Annotated[str | None, typer.Option(help="Of this agent.", rich_help_panel=_WHICH)]
Domain = Annotated[str | None, typer.Option(help="Of this domain, such as coding.", rich_help_panel=_WHICH)]
Model = Annotated[str | None, typer.Option(help="Of this model: its name or digest.", rich_help_panel=_WHICH)]
SessionOption = Annotated[
    str | None, typer.Option("--session", help="Of this session.", rich_help_panel=_WHICH)
]
TaskOption = Annotated[
    str | None, typer.Option("--task", help="Of the task with this id.", rich_help_panel=_WHICH)
]
Outcome = Annotated[
    str | None,
    typer.Option(help=f"How it ended: {', '.join(OUTCOMES)}.", rich_help_panel=_WHICH),
]
MinReward = Annotated[
    float | None, typer.Option(help="Reward (raw_total) of at least this.", rich_help_panel=_WHICH)
]
MaxReward = Annotated[
    float | None, typer.Option(help="Reward (raw_total) of at most this.", rich_help_panel=_WHICH)
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="At most this many, the newest. Default: all.", rich_help_panel=_WHICH),
]

WORDS: dict[str, str] = {
    "time": "outside of the time",
    "agent": "of another agent",
    "domain": "of another domain",
    "model": "of another model",
    "session": "of another session",
    "task": "of another task",
    "outcome": "with another outcome",
    "unscored": "unscored",
    "reward": "with a reward outside of the bounds",
    "limit": "beyond --limit",
    "no_answer": "without an answer",
    "no_prompt": "without a prompt that ends with the user",
    "no_group": "without a group (task_context.group_id)",
    "alone": "without another attempt at the same task and prompt",
    "in_no_pair": "in no pair (equal, or beyond --per-task)",
    "beyond": "beyond the attempts that are compared for one task",
    "duplicate": "the same as another",
    "cut": "with a text that was cut",
    "unparsable": "with an answer that could not be read",
}
"""Reason why a trajectory is left out → its words, in the order of the report."""


def chosen(
    *,
    since: str | None = None,
    until: str | None = None,
    outcome: str | None = None,
    min_reward: float | None = None,
    max_reward: float | None = None,
    **equal: str | None,
) -> Chosen:
    """Builds the selection from the options. Raises ConfigError for values that cannot match."""
    clock = SystemClock()
    if outcome is not None and outcome not in OUTCOMES:
        raise ConfigError(f"There is no outcome {outcome[:40]!r}: give one of {', '.join(OUTCOMES)}.")
    for option, value in (("--min-reward", min_reward), ("--max-reward", max_reward)):
        if value is not None and not -1e6 <= value <= 1e6:
            raise ConfigError(f"{option} {value:g} is no reward: give a number such as 0.7.")
    if min_reward is not None and max_reward is not None and min_reward > max_reward:
        raise ConfigError(f"No reward is at least {min_reward:g} and at most {max_reward:g}: swap them.")
    begin = None if since is None else moment(since, "--since", clock)
    end = None if until is None else moment(until, "--until", clock)
    if begin is not None and end is not None and begin >= end:
        raise ConfigError("--since is not before --until, so nothing matches: swap them.")
    return Chosen(
        since=begin, until=end, outcome=outcome, min_reward=min_reward, max_reward=max_reward, **equal
    )


def told(left_out: Mapping[str, int]) -> str:
    """Formats counts as ``left out: 3 unscored, 2 of another agent``; empty when nothing was left out."""
    counts = [f"{left_out[reason]:,} {words}" for reason, words in WORDS.items() if left_out.get(reason)]
    return f"left out: {', '.join(counts)}" if counts else ""


def counted(count: int, word: str) -> str:
    """Formats a count with its word: ``1 pair``, ``1,200 pairs``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"
