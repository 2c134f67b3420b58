"""What tests of the Agent Zero plugin share: events without a worker, and the worker's outbox."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_zero_host import Host

from onward.bus.outbox import Outbox
from onward.contracts import Trajectory, validate
from onward.integrations.agent_zero.worker.assembly import Assembly


class Collected:
    """Takes the place of the feed: collects the events, which are JSON already, and builds the documents."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.waiting = 0
        self.worker: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        self.reason = ""
        self.hangs: dict[str, Any] = {"count": 0, "at": None, "seconds": None}
        self.is_up = True
        self.on_settings: Callable[[dict[str, Any]], None] = lambda given: None

    def put(self, event: dict[str, Any], agent: Any = None) -> None:
        self.events.append(json.loads(json.dumps(event)))

    def ensure(self) -> None:
        pass

    def save_switches(self) -> None:
        pass

    def close(self, timeout: float) -> bool:
        return True

    def documents(self, **facts: Any) -> list[dict[str, Any]]:
        """Returns the trajectories in the order of their ends, each checked against the contract."""
        tasks: dict[str, Assembly] = {}
        made = []
        for event in self.events:
            if event["op"] == "open":
                tasks[event["t"]] = Assembly(event)
            elif event["op"] == "turn":
                tasks[event["t"]].add(event)
            elif event["op"] == "close":
                made.append(tasks.pop(event["t"]).document(event, facts)[0])
        for document in made:
            validate(document, Trajectory)
        return made


def collecting(host: Host) -> Collected:
    """Starts the plugin's runtime without a worker."""
    from usr.plugins.onward.helpers import runtime  # type: ignore

    feed = Collected()
    runtime.start(None, feed)
    return feed


def recorded(data: Path) -> list[dict[str, Any]]:
    """Returns the trajectories in the worker's outbox, in order."""
    box = Outbox(data / "outbox.db")
    found: list[dict[str, Any]] = []
    seen: set[int] = set()
    while batch := box.next_batch(seen):
        found += [json.loads(message.body) for message in batch]
        seen |= {message.seq for message in batch}
    box.close()
    return found


async def until(check: Callable[[], Any], seconds: float = 30.0) -> None:
    limit = time.monotonic() + seconds
    while not check():
        if time.monotonic() > limit:
            raise TimeoutError("the plugin did not come so far")
        await asyncio.sleep(0.02)
