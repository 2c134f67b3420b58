"""Child processes: started by spawning a fresh interpreter, and never outliving their parent.

A child that only polls its parent's pid misses a kill -9 for a while; one that only asks the kernel
for a signal (``PR_SET_PDEATHSIG``) is bound to the *thread* that started it. Both are used here.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # every child imports this module, few start processes of multiprocessing
    from multiprocessing.process import BaseProcess

_PR_SET_PDEATHSIG = 1
_STOPS = (signal.SIGINT, signal.SIGTERM)


def die_with_parent(poll_seconds: float = 1.0) -> None:
    """Called by a Python child at its start: end this process when the parent is gone.

    ``ONWARD_PARENT_PID`` names the parent; where it is unset the present parent is taken.
    """
    parent = int(os.environ.get("ONWARD_PARENT_PID") or os.getppid())

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(poll_seconds)
        os._exit(1)

    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def start_deaf(process: BaseProcess) -> None:
    """Start a process of multiprocessing that has ``stay_deaf`` as its first words.

    Ctrl-C and SIGTERM often go to a whole group of processes. Such a child is told by its parent, so it must
    not hear them, not even while it still imports: a blocked signal stays blocked in what is spawned.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stay_deaf() -> None:
    """Called by a child at its start: Ctrl-C and SIGTERM are for its parent."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)


def set_death_signal() -> None:
    """``preexec_fn`` of a child that is not Python: the kernel ends it with its parent thread."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def child_environment(**extra: str) -> dict[str, str]:
    """The environment for a child of this process.

    Threads of a parallel region sleep soon instead of spinning: where another process wants the core,
    spinning made two threads ten times slower than one (measured with the tiny model).
    """
    ours = {
        "ONWARD_PARENT_PID": str(os.getpid()),
        "PYTHONUNBUFFERED": "1",
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "5000"),
    }
    return {**os.environ, **ours, **extra}
