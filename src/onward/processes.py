"""Child processes: started by spawning a fresh interpreter, and never outliving their parent.

A child that only polls its parent's pid misses a kill -9 for a while. A child that only asks the kernel for a
signal (``PR_SET_PDEATHSIG``) is bound to the *thread* that started it. Both methods are used here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def end_first_for_memory() -> None:
    """Asks the kernel to choose this process first when memory runs out, before the parent and the servers.
    Has no effect where the kernel has no such file."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def own_output() -> Callable[..., None]:
    """Keeps standard output of this process for JSON lines, and returns the function that writes one of its
    arguments, from any thread. What libraries print goes to standard error from now on."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lock = threading.Lock()

    def write(**facts: Any) -> None:
        with lock:
            lines.write(json.dumps(facts) + "\n")
            lines.flush()

    return write


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


def ends_with_parent(program: str, *arguments: str) -> list[str]:
    """Returns the command of a child that is not Python. The kernel ends it with the thread that starts it.

    A small Python asks the kernel for that, then becomes the program: it keeps its pid and its open files.
    This process could ask for it only between fork and exec (``preexec_fn``), where a program with threads
    may deadlock.
    """
    return [sys.executable, "-ISc", _BECOME, str(os.getpid()), program, *arguments]


_BECOME = f"""\
import os, sys
if sys.platform.startswith("linux"):
    import ctypes
    ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)})
if os.getppid() == int(sys.argv[1]):  # the parent may have died before prctl
    os.execv(sys.argv[2], sys.argv[2:])
"""


def birth(pid: int) -> str | None:
    """Returns a mark that no other process with this id ever has: the boot and the tick of its start.

    None if no process has the id, or if the system has no ``/proc``.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{_stat(pid)[19]}"
    except (OSError, IndexError):
        return None


def left_of_session(leader: int, born: str, output: Path) -> list[int]:
    """Returns the processes that are left of the session that ``leader``, of birth ``born``, had started.

    An id may be in use again. A living leader must have the same birth. Without one, a process counts only
    if it also writes to ``output``, as the leader did.
    """
    now = birth(leader)
    if now not in (None, born) or born.partition(":")[0] != (birth(os.getpid()) or "").partition(":")[0]:
        return []
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if _stat(int(folder.name))[3] != str(leader):
                continue
            written = {os.readlink(folder / "fd" / number) for number in ("1", "2")}
        except (OSError, IndexError):  # it has ended, or is another user's
            continue
        if now == born or str(output.resolve()) in written:
            found.append(int(folder.name))
    return found


def _stat(pid: int) -> list[str]:
    """Returns the fields of ``/proc/PID/stat`` after the name, which may contain spaces and brackets."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


EVERY_CHILD = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TEMP", "TMP", "XDG_*"),
    *("PYTHON*", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_*", "MALLOC_*"),
    *("ONWARD_CACHE", "ONWARD_CRASHPOINT", "ONWARD_TEST_LOCK_WAIT"),
)
"""Names of variables, or their first letters and ``*``, that every child of Onward receives."""
COMPUTING = (
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "CUDA_*", "NVIDIA_*", "HIP_*", "ROCR_*", "NCCL_*"),
    *("TORCH*", "PYTORCH_*", "TRITON_*", "TOKENIZERS_PARALLELISM", "HF_HOME", "HF_HUB_OFFLINE"),
)
"""The same for a child that computes with PyTorch."""
CALLING = (
    *(
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
    ),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)
"""The same for a child that calls other machines."""
FURTHER = "ONWARD_CHILD_VARIABLES"
"""Variable of an operator: names, separated by commas, that every child receives as well. An environment of
one's own, which runs in the training job, may need some."""


def child_environment(*also: str, **extra: str) -> dict[str, str]:
    """Returns the environment for a child of this process: ``EVERY_CHILD``, ``also`` and ``extra`` alone.

    Keys of object stores and of the service are in this process's environment, and no child needs them.

    Threads of a parallel region sleep soon instead of spinning: when another process needs the core, spinning
    made two threads ten times slower than one (measured with the tiny model).
    """
    further = filter(None, map(str.strip, os.environ.get(FURTHER, "").split(",")))
    wanted = (*EVERY_CHILD, *also, *further)
    passed = {
        name: value for name, value in os.environ.items() if any(fnmatchcase(name, one) for one in wanted)
    }
    ours = {
        "ONWARD_PARENT_PID": str(os.getpid()),
        "PYTHONUNBUFFERED": "1",
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "5000"),
    }
    return {**passed, **ours, **extra}
