"""Options that select stored trajectories, the same for every command that takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, get_type_hints

import typer

from onward.clock import SystemClock
from onward.errors import ConfigError
from onward.moments import parse_time
from onward.warehouse.trajectory_queries import OUTCOMES, TrajectorySelection

_WHICH = "Which trajectories"


def _option(help: str) -> Any:
    return typer.Option(help=help, rich_help_panel=_WHICH)


Limit = Annotated[
    int | None,
    typer.Option(min=1, help="At most this many, the newest. Default: all.", rich_help_panel=_WHICH),
]


@dataclass(frozen=True)
class Filters:
    """The options, one a field. ``filter_options`` makes them for a command."""

    since: Annotated[str | None, _option("Begun then or later: 7d, 24h, or 2026-01-31T12:00:00Z.")] = None
    until: Annotated[str | None, _option("Begun before then.")] = None
    agent: Annotated[str | None, _option("Of this agent.")] = None
    domain: Annotated[str | None, _option("Of this domain, such as coding.")] = None
    model: Annotated[str | None, _option("Of this model: its name or digest.")] = None
    session: Annotated[str | None, _option("Of this session.")] = None
    task: Annotated[str | None, _option("Of the task with this id.")] = None
    outcome: Annotated[str | None, _option(f"How it ended: {', '.join(OUTCOMES)}.")] = None
    min_reward: Annotated[float | None, _option("Reward (raw_total) of at least this.")] = None
    max_reward: Annotated[float | None, _option("Reward (raw_total) of at most this.")] = None

    def selection(self) -> TrajectorySelection:
        """Builds the selection. Raises ConfigError for values that cannot match."""
        clock = SystemClock()
        low, high = self.min_reward, self.max_reward
        if self.outcome is not None and self.outcome not in OUTCOMES:
            raise ConfigError(
                f"There is no outcome {self.outcome[:40]!r}: give one of {', '.join(OUTCOMES)}."
            )
        for option, value in (("--min-reward", low), ("--max-reward", high)):
            if value is not None and not -1e6 <= value <= 1e6:
                raise ConfigError(f"{option} {value:g} is no reward: give a number such as 0.7.")
        if low is not None and high is not None and low > high:
            raise ConfigError(f"No reward is at least {low:g} and at most {high:g}: swap them.")
        begin = None if self.since is None else parse_time(self.since, "--since", clock)
        end = None if self.until is None else parse_time(self.until, "--until", clock)
        if begin is not None and end is not None and begin >= end:
            raise ConfigError("--since is not before --until, so nothing matches: swap them.")
        return TrajectorySelection(**{**vars(self), "since": begin, "until": end})


def filter_options(*without: str) -> list[Parameter]:
    """Returns an option for each field of ``Filters``, except for those in ``without``."""
    hints = get_type_hints(Filters, include_extras=True)
    names = [name for name in hints if name not in without]
    return [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hints[name]) for name in names]


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


def left_out_sentence(left_out: Mapping[str, int]) -> str:
    """Formats counts as ``left out: 3 unscored, 2 of another agent``; empty when nothing was left out."""
    counts = [f"{left_out[reason]:,} {words}" for reason, words in WORDS.items() if left_out.get(reason)]
    return f"left out: {', '.join(counts)}" if counts else ""


def plural(count: int, word: str) -> str:
    """Formats a count with its word: ``1 pair``, ``1,200 pairs``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"
