"""The analysis child: imports the tools once, then forks one limited process for each piece of code.

The kernel ends the process of a piece at its limits of processor time, memory, file size and wall-clock time;
no supervisor is needed. The process has no network: its own network namespace where the kernel allows it, and
in any case an audit hook that refuses sockets and new processes. It has an empty folder, no environment, and
can read the code of Python and of the tools alone (``isolation``). A frame is a length of four bytes, then
JSON. Answers are sent as forks end, in any order.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import selectors
import shutil
import signal
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onward
from onward.reward.code.isolation import close_files, leave_network
from onward.reward.code.lint import Lint, Unusable

_REFUSED = (
    "socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.system", "os.spawn", "ctypes.",
)  # fmt: skip
_FILE_BYTES = 4 * 1024 * 1024
_SIGNALS = {signal.SIGXCPU: "cpu_time", signal.SIGKILL: "cpu_time", signal.SIGALRM: "wall_time"}
_LENGTH = struct.Struct(">I")


def main() -> None:
    """Runs the child. Arguments: empty folder, CPU and wall seconds, MiB of memory, and ``required`` if
    nothing may be examined with files open. Frames come on stdin."""
    folder, cpu, wall, memory = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    network = "namespace" if leave_network() else "audit hook"
    size = os.open("/proc/self/statm", os.O_RDONLY)
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.chdir(folder)
    os.nice(5)
    gc.disable()
    lint = Lint()
    files = "landlock" if close_files(_code_of(lint.tools), folder) else "open"
    _write(answers, {"ready": lint.tools, "network": network, "files": files})
    refused = files == "open" and sys.argv[5:] == ["required"]
    try:
        _Server(lint, folder, (requests, answers, size), (cpu, wall, memory), refused).serve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _code_of(tools: Iterable[str]) -> list[Path]:
    """Returns Onward's package, and the folder of installed packages that each of ``tools`` is in."""
    return [
        Path(onward.__file__).parent,
        *(Path(str(sys.modules[tool].__file__)).parents[1] for tool in tools),
    ]


class _Server:
    def __init__(
        self,
        lint: Lint,
        folder: Path,
        descriptors: tuple[int, int, int],
        limits: tuple[int, float, int],
        refused: bool,
    ) -> None:
        """``descriptors``: requests, answers, and the kernel's file with the size of this process."""
        self._lint, self._folder, self._limits, self._refused = lint, folder, limits, refused
        self._requests, self._answers, self._size = descriptors
        self._running: dict[int, tuple[int, str, bytearray]] = {}
        """Readable end of a fork's pipe → its pid, the request's id, the bytes received."""
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Serves until the parent closes its end, also by dying. Reads more modules while idle."""
        parent = int(os.environ.get("ONWARD_PARENT_PID") or os.getppid())
        self._selector.register(self._requests, selectors.EVENT_READ)
        warming: Iterator[None] | None = self._lint.warm_up(self._folder)
        while os.getppid() == parent:
            idle = warming is not None and not self._running
            events = self._selector.select(0.0 if idle else 1.0)
            for key, _ in events:
                if key.fd != self._requests:
                    self._receive(key.fd)
                elif (request := _read(self._requests)) is not None:
                    self._fork(request)
                else:
                    for pid, _, _ in self._running.values():
                        os.kill(pid, signal.SIGKILL)
                    return
            if idle and not events and warming is not None:
                warming = None if next(warming, self) is self else warming
                gc.freeze()

    def _fork(self, request: dict[str, Any]) -> None:
        """Forks a process for one request. A request that is invalid fails in the fork."""
        if self._refused:
            _write(self._answers, {"id": request["id"], "failed": "not_isolated"})
            return
        here, there = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(here)
                os.close(self._requests)
                os.close(self._answers)
                _write(there, self._examine(request))
            finally:
                os._exit(0)
        os.close(there)
        self._running[here] = pid, request["id"], bytearray()
        self._selector.register(here, selectors.EVENT_READ)

    def _examine(self, request: dict[str, Any]) -> dict[str, Any]:
        folder = self._folder / str(os.getpid())
        folder.mkdir()
        os.chdir(folder)
        _limit(*self._limits, pages=int(os.pread(self._size, 256, 0).split()[0]))
        try:
            return self._lint.examine(request["how"], request["cells"], folder)
        except Unusable as error:
            return {"failed": str(error)}
        except MemoryError:
            return {"failed": "memory"}
        except Exception as error:
            return {"failed": "crashed", "detail": type(error).__name__}

    def _receive(self, pipe: int) -> None:
        """Reads some bytes of a fork. When it has ended, for any reason, sends the answer to the parent."""
        pid, name, received = self._running[pipe]
        piece = os.read(pipe, 65536)
        if piece:
            received += piece
            return
        self._selector.unregister(pipe)
        os.close(pipe)
        del self._running[pipe]
        _, status = os.waitpid(pid, 0)
        shutil.rmtree(self._folder / str(pid), ignore_errors=True)
        body = bytes(received[_LENGTH.size :])
        whole = len(received) >= _LENGTH.size and _LENGTH.unpack_from(received)[0] == len(body)
        answer = json.loads(body) if whole else {"failed": _why(status)}
        _write(self._answers, {"id": name, **answer})


def _why(status: int) -> str:
    return _SIGNALS.get(os.WTERMSIG(status), "crashed") if os.WIFSIGNALED(status) else "crashed"  # type: ignore[call-overload]


def _limit(cpu: int, wall: float, memory: int, *, pages: int) -> None:
    """Sets the limits of this process. ``memory`` MiB are added to the child's present size, ``pages``."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    room = pages * resource.getpagesize() + memory * 1024 * 1024
    for kind, value in (
        (resource.RLIMIT_AS, room),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(kind, (value, value))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    signal.setitimer(signal.ITIMER_REAL, wall)
    sys.addaudithook(_refuse)


def _refuse(event: str, _: tuple[Any, ...]) -> None:
    if event.startswith(_REFUSED):
        raise PermissionError(event)


def _read(pipe: int) -> dict[str, Any] | None:
    head = _exactly(pipe, _LENGTH.size)
    body = None if head is None else _exactly(pipe, _LENGTH.unpack(head)[0])
    return None if body is None else json.loads(body)


def _exactly(pipe: int, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        piece = os.read(pipe, min(count, 1 << 20))
        if not piece:
            return None
        parts.append(piece)
        count -= len(piece)
    return b"".join(parts)


def _write(pipe: int, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    view = memoryview(_LENGTH.pack(len(body)) + body)
    while view:
        view = view[os.write(pipe, view) :]


if __name__ == "__main__":
    main()
