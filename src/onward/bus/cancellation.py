"""Keeps a cancellation from getting lost inside the client.

Know before changing: until Python 3.12 ``asyncio.wait_for``, which ``nats-py`` awaits everywhere, returns
its result and forgets a cancellation that arrives in the same moment. A role would then never stop. So
loops and calls count the requests to stop before they wait on the client, and look again afterwards.
"""

from __future__ import annotations

import asyncio


def cancellations() -> int:
    """How often this task was asked to stop so far (clean-up after a cancellation starts at 1)."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def honour_cancellation(before: int) -> None:
    """Raise CancelledError when a request to stop came since ``before`` and was swallowed."""
    if cancellations() > before:
        raise asyncio.CancelledError
