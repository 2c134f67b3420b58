"""Evaluation and comparison of writers on the splits that judge them, with what they cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from onward.rubrics.backends import Usage
from onward.rubrics.policy.evaluation import Judged, controls, difference, judged, reference_points
from onward.rubrics.policy.figures import Interval
from onward.rubrics.policy.splits import judging_tasks
from onward.rubrics.tasks import RubricTask
from onward.rubrics.writers import NamedWriter

Price = tuple[float, float]
"""Dollars of a million tokens of prompts, and of answers."""


@dataclass(frozen=True)
class Cost:
    """Cost of the episodes of a writer. Tokens of a trained policy are those that it drew."""

    seconds: float
    requests: int | None
    prompt_tokens: int | None
    completion_tokens: int
    dollars: float | None


def timed(
    writer: NamedWriter,
    tasks: Sequence[RubricTask],
    *,
    temperature: float = 0.0,
    seed: int = 0,
    price: Price | None = None,
) -> tuple[Judged, Cost]:
    """Returns the judged episodes of ``writer`` on ``tasks``, and their cost."""
    before = replace(writer.usage) if writer.usage is not None else None
    started = time.monotonic()
    found = judged(writer.player, tasks, temperature=temperature, seed=seed)
    seconds = time.monotonic() - started
    if before is None or writer.usage is None:
        drawn = sum(one.drawn for one in found.attempts)
        return found, Cost(seconds, None, None, drawn, None)
    now = writer.usage
    used = Usage(
        now.requests - before.requests,
        now.prompt_tokens - before.prompt_tokens,
        now.completion_tokens - before.completion_tokens,
    )
    return found, Cost(
        seconds, used.requests, used.prompt_tokens, used.completion_tokens, used.dollars(price)
    )


def evaluated(
    writer: NamedWriter,
    splits: Sequence[str],
    *,
    seeds: int,
    temperature: float = 0.0,
    seed: int = 0,
    price: Price | None = None,
    with_controls: bool = True,
) -> dict[str, Any]:
    """Returns split → figures, interval, cost, reference points; and the controls of the first split."""
    report: dict[str, Any] = {}
    for number, split in enumerate(splits):
        tasks = judging_tasks(split, seeds)
        found, cost = timed(writer, tasks, temperature=temperature, seed=seed, price=price)
        report[split] = {
            **found.report(),
            "cost": asdict(cost),
            "reference_points": reference_points(tasks),
        }
        if with_controls and number == 0:
            others = controls(writer.player, tasks, found, temperature=temperature, seed=seed)
            report[split]["controls"] = {
                name: {"skill": one.skill.mean, "interval": asdict(one.skill)} for name, one in others.items()
            }
    return report


@dataclass(frozen=True)
class Comparison:
    """Two writers on the same tasks."""

    a: Judged
    b: Judged
    cost_a: Cost
    cost_b: Cost
    difference: Interval
    """Skill of the first less that of the second, with its 95 % interval over families."""

    @property
    def verdict(self) -> str:
        """``a``, ``b``, or ``undecided`` if the interval has 0 in it."""
        if self.difference.low > 0:
            return "a"
        return "b" if self.difference.high < 0 else "undecided"


def compared(
    a: NamedWriter,
    b: NamedWriter,
    tasks: Sequence[RubricTask],
    *,
    temperature: float = 0.0,
    seed: int = 0,
    prices: tuple[Price | None, Price | None] = (None, None),
) -> Comparison:
    """Returns the comparison of two writers, paired by task."""
    first, cost_a = timed(a, tasks, temperature=temperature, seed=seed, price=prices[0])
    second, cost_b = timed(b, tasks, temperature=temperature, seed=seed, price=prices[1])
    return Comparison(first, second, cost_a, cost_b, difference([first], [second]))
