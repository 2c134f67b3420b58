"""Keeps a cancellation from getting lost inside the client.

Until Python 3.12 ``asyncio.wait_for``, which ``nats-py`` awaits everywhere, returns its result and drops a
cancellation that arrives in the same moment. A role would then never stop. So loops and calls count the
cancellation requests before they wait on the client, and check again afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator


def cancellations() -> int:
    """Returns the number of cancellation requests to this task so far (clean-up after one starts at 1)."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def honour_cancellation(before: int) -> None:
    """Raises CancelledError if a cancellation request came since ``before`` and was swallowed."""
    if cancellations() > before:
        raise asyncio.CancelledError


def until_cancelled() -> Iterator[None]:
    """Yields once per round of a role's loop, forever. Raises CancelledError between two rounds if a
    cancellation request came since this call and was swallowed."""
    before = cancellations()

    def rounds() -> Iterator[None]:
        while True:
            honour_cancellation(before)
            yield

    return rounds()
