"""The worker's process, seen from Agent Zero: started with Onward's own interpreter, JSON lines both ways.

The worker ends when its input ends, so it records what is open when Agent Zero is killed. Nothing here is
called in a hook.
"""

from __future__ import annotations

import io
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import log
from .lines import line

MODULE = "onward.integrations.agent_zero.worker"
LOOK_SECONDS = 1.0
"""Pause between two looks at a worker that does not read."""


class Child:
    """One worker process. ``heard`` gets each of its messages, in a thread; None when it has ended."""

    def __init__(
        self, python: str, root: Path, data: Path, heard: Callable[[dict[str, Any] | None], None]
    ) -> None:
        """Raises OSError if it cannot be started."""
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        log.rotate(data)
        command = [python or sys.executable, "-m", MODULE, "--root", str(root), "--data", str(data)]
        with log.path_of(data).open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                bufsize=0,  # a writer with a buffer cannot be closed while another thread waits in it
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C and the end of a terminal are for Agent Zero alone
                cwd=data,
            )
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)
        self._heard = heard
        self.signs = 0
        """Number of messages from the worker."""
        self._ended = threading.Event()
        threading.Thread(target=self._listen, name="onward-worker-heard", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return not self._ended.is_set()

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.returncode

    def write(self, line: bytes, look: Callable[[], None] = lambda: None) -> bool:
        """Writes one message; False if the worker has ended. ``look`` is called once a second while the
        worker does not read."""
        pipe = self._process.stdin
        try:
            if pipe is None or self._ended.is_set():
                return False
            rest = memoryview(line)
            while rest:
                written = pipe.write(rest)
                if written is not None:  # else the pipe is full
                    rest = rest[written:]
                    continue
                waiting = select.poll()
                waiting.register(pipe, select.POLLOUT)
                if not waiting.poll(1000.0 * LOOK_SECONDS):
                    look()
        except (OSError, ValueError):
            return False
        return True

    def kill(self) -> None:
        """Ends the worker at once."""
        try:
            self._process.kill()
        except OSError:
            pass

    def leave(self, timeout: float, look: Callable[[], None] = lambda: None) -> None:
        """Ends the worker while the tasks go on: the next worker gets what this one has not confirmed."""
        self.write(line({"op": "leave"}), look)
        self.end(timeout)

    def end(self, timeout: float) -> None:
        """Closes the worker's input, after which it records what is open, and waits for its end."""
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            pass  # it goes on alone: what it has is safe with it

    def _listen(self) -> None:
        try:
            for written in io.BufferedReader(self._process.stdout) if self._process.stdout else ():  # type: ignore[arg-type]
                try:
                    told = json.loads(written)
                except ValueError:
                    continue
                if isinstance(told, dict):
                    self.signs += 1
                    if told.get("op") != "beat":
                        self._heard(told)
        finally:
            self._ended.set()
            self._process.wait()
            self._heard(None)
