"""Decides which claims wait for their body, so that a flood of them holds up no other message. Pure."""

from __future__ import annotations

from onward.bus import Message
from onward.clock import Clock

CLAIM_TRIES = 5
"""Deliveries, about 15 s, before a claim without its body is a dead letter: a store may catch up."""
MAX_LATE = 200
"""Claims whose bodies are waited for at once. Further ones are dead letters, which can be sent again."""
LATE_SECONDS = 60.0
"""Time after which a waiting claim that did not come again belongs to another collector."""


class LateBodies:
    """Claims that wait for their body: few enough to leave room for other messages in the consumer, which has
    a limit of unacknowledged ones."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[int, float] = {}
        """Sequence → time after which another collector has the message."""

    def may_wait(self, message: Message) -> bool:
        """Returns whether a claim without its body comes again, or is a dead letter now."""
        now = self._clock.monotonic()
        self._waiting = {sequence: until for sequence, until in self._waiting.items() if until > now}
        known = self._waiting.pop(message.sequence, None) is not None
        if message.num_delivered >= CLAIM_TRIES or not (known or len(self._waiting) < MAX_LATE):
            return False
        self._waiting[message.sequence] = now + LATE_SECONDS
        return True
