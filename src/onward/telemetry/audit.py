"""The audit stream: records the user of each action that is irreversible or changes the served model.

An entry is stored before the action, so every such action can be found again.
"""

from __future__ import annotations

import getpass
import json
import os
from typing import Any, Protocol

from onward.clock import Clock, utc_text
from onward.contracts import subjects
from onward.ids import new_id

PUBLISH_SECONDS = 10.0


class Publisher(Protocol):
    """The one method that the audit needs of the bus."""

    async def publish(
        self, subject: str, data: bytes, *, msg_id: str, deadline: float | None = ...
    ) -> Any: ...


async def record(bus: Publisher, clock: Clock, event: str, **facts: Any) -> None:
    """Stores one entry with the user of the operating system. Raises BusError if it cannot be stored."""
    entry = {"event": event, "by": current_user(), "timestamp": utc_text(clock.now()), **facts}
    data = json.dumps(entry, sort_keys=True).encode()
    await bus.publish(subjects.AUDIT, data, msg_id=new_id(), deadline=PUBLISH_SECONDS)


def current_user() -> str:
    """Returns the user of the operating system who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"  # a container's user without a name
