"""The plugin's worker in a thread of the tests' process, in place of a process of its own.

A process needs most of a second for its imports. Tests of what the worker does with its events need none;
those of its start, its end and its failures take the real one.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onward.integrations.agent_zero.plugin.helpers.lines import line
from onward.integrations.agent_zero.worker.service import Worker

TICK_SECONDS = 0.1


class ThreadChild:
    """Has the methods of the plugin's ``Child``. Events and answers are JSON lines here, too."""

    pid = None
    code = None
    signs = 0

    def __init__(
        self, python: str, root: Path, data: Path, heard: Callable[[dict[str, Any] | None], None]
    ) -> None:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._to_plugin = heard
        self._thread = threading.Thread(
            target=self._run, args=(root, data), name="onward-worker", daemon=True
        )
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _heard(self, told: dict[str, Any] | None) -> None:
        self.signs += 1
        self._to_plugin(told)

    def write(self, written: bytes, look: Callable[[], None] = lambda: None) -> bool:
        self._lines.put(written)
        return self.is_running

    def leave(self, timeout: float, look: Callable[[], None] = lambda: None) -> None:
        self.write(line({"op": "leave"}))
        self.end(timeout)

    def end(self, timeout: float) -> None:
        self._lines.put(None)
        self._thread.join(max(timeout, 30.0))

    def _run(self, root: Path, data: Path) -> None:
        worker = Worker(root, data, lambda told: self._heard(json.loads(json.dumps(told, default=str))))
        while True:
            try:
                written = self._lines.get(timeout=TICK_SECONDS)
            except queue.Empty:
                written = b""
            if written is None:
                break
            if written:
                worker.take_line(written)
            if self._lines.empty():
                worker.tick()
        worker.end()
        self._heard(None)
