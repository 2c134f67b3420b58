"""Signs of life of the worker, sent between the steps of its work.

The plugin ends a worker that hangs. A worker whose Agent Zero has ended has no one to do so: the kernel's
alarm, which needs nothing of this process, ends it after twice the time. Waiting for a plugin that does not
read is no hang. A pause of the whole container can let the alarm ring, too; the plugin blames no task for it.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from onward.integrations.agent_zero.plugin.helpers import hang

EVERY_SECONDS = 1.0
ALARM = 2.0
"""Multiple of the limit after which the alarm ends this process."""


class Heartbeat:
    """Used by the worker's main thread."""

    def __init__(self, write: Callable[[dict[str, Any]], None], *, with_alarm: bool = False) -> None:
        """``write`` passes a message to the plugin. Only a process of its own may have an alarm."""
        self._write, self._with_alarm = write, with_alarm
        self._limit = max(hang.LIMIT, hang.START_SECONDS)
        self._latest = -math.inf
        self._works = False

    def limit(self, seconds: float) -> None:
        """Sets the time without progress after which the plugin ends the worker."""
        self._limit = seconds

    def say(self, message: dict[str, Any]) -> None:
        """Passes a message to the plugin; any message is a sign of life."""
        self._set_alarm(math.inf)
        self._write(message)
        self._latest = time.monotonic()
        if self._works:
            self._set_alarm(ALARM * self._limit)

    def beat(self) -> None:
        """A step is done: sends a sign, unless the last one is recent."""
        if time.monotonic() - self._latest >= EVERY_SECONDS:
            self.say({"op": "beat"})

    @contextmanager
    def work(self) -> Iterator[None]:
        """The alarm is on within the block."""
        self._works = True
        self._set_alarm(ALARM * self._limit)
        try:
            yield
        finally:
            self._works = False
            self._set_alarm(math.inf)

    def _set_alarm(self, seconds: float) -> None:
        if self._with_alarm:
            signal.setitimer(signal.ITIMER_REAL, seconds if seconds < math.inf else 0.0)
