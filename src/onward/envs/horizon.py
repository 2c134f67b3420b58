"""Turn limit by stage of training: short episodes first, longer ones later.

It follows ScalingInter-RL (AgentGym-RL, arXiv 2509.08755): training with long episodes from the start
collapses, and training with short ones alone stops improving.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from onward.errors import ConfigError

_TEXT = re.compile(r"\d+(,\d+)*(/\d+)?")


@dataclass(frozen=True)
class HorizonSchedule:
    """Turn limit ``turns[k]`` from step ``k * every`` on, the last one forever."""

    turns: tuple[int, ...]
    every: int = 100

    def __post_init__(self) -> None:
        """Raises ConfigError for limits that do not rise, or numbers below 1."""
        rising = all(a < b for a, b in zip(self.turns, self.turns[1:], strict=False))
        if not self.turns or not rising or self.turns[0] < 1 or self.every < 1:
            raise ConfigError(
                f"The horizon schedule has the turns {list(self.turns)} every {self.every} steps: "
                f"give rising numbers from 1 on, such as 6,13,20/100."
            )

    @classmethod
    def parse(cls, text: str) -> HorizonSchedule:
        """Parses ``6,13,20/100``: 6 turns, 13 from step 100 on, 20 from step 200 on. Raises ConfigError."""
        if not _TEXT.fullmatch(text):
            raise ConfigError(
                f"The horizon schedule is {text[:40]!r}: give turn limits and the steps of a stage, "
                f"such as 6,13,20/100."
            )
        turns, _, every = text.partition("/")
        return cls(tuple(int(part) for part in turns.split(",")), int(every) if every else 100)

    def turns_at(self, step: int) -> int:
        """Returns the turn limit at a training step, counted from 0."""
        return self.turns[min(max(step, 0) // self.every, len(self.turns) - 1)]
