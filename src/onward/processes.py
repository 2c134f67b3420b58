"""Child processes: started by spawning a fresh interpreter, and never outliving their parent.

A child that only polls its parent's pid misses a kill -9 for a while. A child that only asks the kernel for a
signal (``PR_SET_PDEATHSIG``) is bound to the *thread* that started it. Both methods are used here.
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
    """Ends this process when its parent is gone. A Python child calls it at its start.

    ``ONWARD_PARENT_PID`` names the parent; if it is unset, the present parent is used.
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
    """Starts a process of multiprocessing whose first call is ``stay_deaf``.

    Ctrl-C and SIGTERM often go to a whole group of processes. The parent stops such a child itself, so the
    child must ignore both signals, even while it still imports: a blocked signal stays blocked in a spawned
    process.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stay_deaf() -> None:
    """Ignores Ctrl-C and SIGTERM in a child, which calls this at its start: they are for its parent."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)


def set_death_signal(parent: int) -> None:
    """Makes the kernel end this process with the thread of ``parent`` that started it.

    A child that is not Python gets it as its ``preexec_fn``.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died between fork and prctl
        os.kill(os.getpid(), signal.SIGKILL)


def child_environment(**extra: str) -> dict[str, str]:
    """Returns the environment for a child of this process.

    Threads of a parallel region sleep soon instead of spinning: when another process needs the core, spinning
    made two threads ten times slower than one (measured with the tiny model).
    """
    ours = {
        "ONWARD_PARENT_PID": str(os.getpid()),
        "PYTHONUNBUFFERED": "1",
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "5000"),
    }
    return {**os.environ, **ours, **extra}
