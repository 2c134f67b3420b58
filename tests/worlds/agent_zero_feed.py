"""The plugin's feed with a stand-in for the worker's process, and the events of one task."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onward.integrations.agent_zero.plugin.helpers import feed as feeding

OPENED = {
    "op": "open", "t": "task-1", "root": "chat", "chat": "chat", "agent": 0, "at": 1.0,
    "content": {"user_message": "Count the poppies."},
}  # fmt: skip
TURN = {"op": "turn", "t": "task-1", "n": 1, "at": 1.5, "new": [], "calls": [], "response": "Three."}
CLOSED = {"op": "close", "t": "task-1", "at": 2.0, "status": "success", "result": "Three."}


class FakeChild:
    """Stands in for the worker's process. It shows progress until ``hang`` is called."""

    made: list[FakeChild]
    ends_when_killed: bool

    def __init__(self, python: str, root: Path, data: Path, heard: Callable[[Any], None]) -> None:
        self.lines: list[dict[str, Any]] = []
        self.is_running, self.is_killed, self.code, self.pid = True, False, None, 1
        self._data, self._heard = data, heard
        self._signs, self._hangs = 0, False
        self.made.append(self)

    @property
    def signs(self) -> int:
        self._signs += not self._hangs
        return self._signs

    def write(self, line: bytes, look: Callable[[], None] = lambda: None) -> bool:
        self.lines.append(json.loads(line))
        return True

    def hang(self, task: str) -> None:
        """Makes no progress any more, in the middle of ``task``."""
        (self._data / "working").write_text(task)
        self._hangs = True

    def goes_on(self) -> None:
        self._hangs = False
        self.say(op="figures")

    def kill(self) -> None:
        self.is_killed = True
        if self.ends_when_killed:
            self.die(-9)

    def die(self, code: int) -> None:
        self.code, self.is_running = code, False  # type: ignore[assignment]
        self._heard(None)

    def say(self, **told: Any) -> None:
        self._heard(told)

    def end(self, timeout: float) -> None:
        pass


@contextmanager
def feed_with_fakes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, hang_seconds: float = 60.0
) -> Iterator[feeding.Feed]:
    FakeChild.made, FakeChild.ends_when_killed = [], True
    monkeypatch.setattr(feeding, "Child", FakeChild)
    monkeypatch.setattr(feeding, "PAUSES", (0.01, 0.02))
    monkeypatch.setattr(feeding, "_TICK", 0.01)
    given = {"python": "", "hang_seconds": str(hang_seconds)}
    host = SimpleNamespace(data=folder, root=folder, project=lambda agent: "", version=lambda: "v1.7")
    settings: Any = SimpleNamespace(
        host=host, why_not=lambda agent, root: "", of_worker=lambda: given,
        switches=SimpleNamespace(is_opted_out=lambda project: False),
    )  # fmt: skip
    made = feeding.Feed(settings)
    try:
        yield made
    finally:
        made.close(0.1)


def until(check: Callable[[], Any]) -> None:
    limit = time.monotonic() + 30
    while not check():
        if time.monotonic() > limit:
            raise TimeoutError("the feed did not come so far")
        time.sleep(0.005)
