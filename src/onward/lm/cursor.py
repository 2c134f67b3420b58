"""The position of a learner in its passes over the data of an update, and the learning rate at that position.

Every learner has one: it decides which rows a step takes, when an update ends, and where a restored one goes
on.

Invariants: the batches follow from the order of each pass and the number of completed steps alone, so an
update that is saved half-way and restored takes exactly the steps of an uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from onward.errors import TrainingError

Schedule = Literal["constant", "linear", "cosine"]
SCHEDULES: tuple[Schedule, ...] = ("constant", "linear", "cosine")


def rate_share(schedule: Schedule, step: int, total: int, warmup_steps: int = 0) -> float:
    """Returns the share of the learning rate that step ``step`` (from 0) of ``total`` is taken with.

    It rises in equal parts over ``warmup_steps``, the last of which has the whole rate. Then ``linear`` falls
    towards 0 in equal parts, and ``cosine`` along half a wave; the step after the last one would have 0.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    gone = (step - warmup_steps) / max(1, total - warmup_steps)
    return 1.0 - gone if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * gone))


class Cursor:
    """Counts the steps of an update: ``epochs`` passes over its items in batches of ``size``."""

    def __init__(
        self,
        size: int,
        epochs: int,
        *,
        schedule: Schedule = "constant",
        warmup_steps: int = 0,
        max_steps: int | None = None,
    ) -> None:
        """``max_steps`` ends an update earlier; the schedule then falls over that many steps."""
        self.size, self.epochs = size, epochs
        self.schedule: Schedule = schedule
        self.warmup_steps, self.max_steps = warmup_steps, max_steps
        self.done = 0
        """Completed steps of the current update."""
        self.total = 0
        """Steps of the current update, known once ``batches`` began."""

    def batches(self, count: int, order: Callable[[int], Sequence[int]]) -> Iterator[list[int]]:
        """Yields the items of each step that remains; ``order(epoch)`` lists all ``count`` items.

        The caller takes the step and calls ``advance`` before it hands control to anybody who may save. At
        the end of the update the cursor is back at its start.
        """
        per_epoch = -(-count // self.size)
        self.total = per_epoch * self.epochs
        if self.max_steps is not None:
            self.total = min(self.total, self.max_steps)
        current, listed = -1, list[int]()
        while self.done < self.total:
            epoch, batch = divmod(self.done, per_epoch)
            if epoch != current:
                current, listed = epoch, list(order(epoch))
            yield listed[batch * self.size : (batch + 1) * self.size]
        self.done = 0

    def advance(self) -> None:
        """Counts the step that was just taken."""
        self.done += 1

    @property
    def rate_share(self) -> float:
        """Share of the learning rate for the next step."""
        return rate_share(self.schedule, self.done, self.total, self.warmup_steps)

    def refuse_other_data(self, known: str | None, digest: str, what: str) -> None:
        """Raises TrainingError (DATA) in the middle of an update whose ``what`` had another digest. ``known``
        None: it was not recorded."""
        if self.done and known is not None and known != digest:
            raise TrainingError(
                "DATA",
                f"The {what} differ from those of the update that was restored: pass the same frozen "
                f"dataset.",
            )
