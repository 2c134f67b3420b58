"""The process of one program: gives up files, network, capabilities and system calls, then runs the program.

Standard input has a JSON document with limits, source and the program's own input. Nothing of the program is
compiled before all is given up. If one piece cannot be given up, the process ends with ``CANNOT_CONFINE``.
"""

from __future__ import annotations

import ctypes
import gc
import io
import json
import os
import resource
import signal
import sys

from onward.reward.code.isolation import close_files, leave_network
from onward.reward.sandbox.filter import close_calls, supported

CANNOT_CONFINE = 77
LANDLOCK = 3
"""Least version (Linux 6.2): older ones let a readable file be emptied."""
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_LAST_CAPABILITY = 63
_CAPABILITY_VERSION = 0x20080522


def main() -> None:
    request = json.load(sys.stdin)
    missing = _confine(request["cpu_seconds"], request["memory_mib"])
    if missing:
        sys.stderr.write(missing)
        sys.stderr.flush()
        os._exit(CANNOT_CONFINE)
    sys.stdin = io.StringIO(request["stdin"])
    sys.argv = ["program"]
    code = compile(request["source"], "program", "exec")
    exec(code, {"__name__": "__main__"})


def _confine(cpu_seconds: int, memory_mib: int) -> str:
    """Gives up everything. Returns what could not be given up, or an empty text."""
    libc = ctypes.CDLL(None)
    if not supported():
        return "a list of system calls for this processor"
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(os.environ["ONWARD_PARENT_PID"]):
        os._exit(1)
    os.chdir("/")
    os.environ.clear()
    gc.collect()
    leave_network()  # in addition: no call that opens a socket is allowed below
    if not close_files((), None, least=LANDLOCK, packages=False):
        return f"Landlock of version {LANDLOCK} (Linux 6.2)"
    if not _drop_capabilities(libc):
        return "the capabilities of root"
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    for kind, value in (
        (resource.RLIMIT_AS, memory_mib << 20),
        (resource.RLIMIT_DATA, memory_mib << 20),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        resource.setrlimit(kind, (value, value))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    return "" if close_calls() else "seccomp"


def _drop_capabilities(libc: ctypes.CDLL) -> bool:
    """Drops every capability, which root has, and which a new user namespace gives."""
    for number in range(_LAST_CAPABILITY + 1):
        libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    return libc.capset(header, (ctypes.c_uint32 * 6)()) == 0


if __name__ == "__main__":
    main()
