"""A process that really stands still: a signal alone returns before the last thread has stopped."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def freeze(pid: int) -> None:
    """Stops all threads of ``pid``, and returns when each has stopped. SIGCONT lets them go on.

    ``kill`` only posts the signal: on a busy machine the process goes on for some milliseconds, long enough
    to answer a request.
    """
    os.kill(pid, signal.SIGSTOP)
    ends = time.monotonic() + 30.0
    while not _stands_still(pid):
        if time.monotonic() > ends:
            raise TimeoutError(f"process {pid} goes on 30 s after SIGSTOP")
        time.sleep(0.001)


def _stands_still(pid: int) -> bool:
    states = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            states.append((thread / "stat").read_text().rsplit(")", 1)[1].split()[0])
        except FileNotFoundError:  # this thread has ended
            continue
    return bool(states) and all(state in "TZX" for state in states)
