"""The parent's side of the analysis child: starts it at the first request, and again when it dies.

``submit`` may be called from any thread and returns at once. An answer is a plain dict, and a failure is an
answer too (``{"failed": reason}``). The child stores nothing between two pieces of code.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from onward.clock import Clock, SystemClock
from onward.files import OWNER_ALONE
from onward.processes import child_environment
from onward.telemetry import logs

_LENGTH = struct.Struct(">I")
_BOOT = """\
import importlib.util, json, sys
from importlib.machinery import PathFinder
folders = json.loads(sys.argv.pop(1))
found = PathFinder.find_spec("onward", folders[:1])  # this Onward, where another one is installed as well
onward = sys.modules["onward"] = importlib.util.module_from_spec(found)
found.loader.exec_module(onward)
sys.path.extend(folders)  # at the end: nothing there hides a module of Python
from onward.reward.code.child import main
main()
"""
_PATIENCE = 60.0
"""Seconds beyond the limit of a piece, for a start of the child on a busy machine."""
_PAUSE = 10.0
"""Seconds before a new start when a child ended before it was ready: a new one would only end again."""
_log = logs.get("rewarder")
_KEPT = ("ONWARD_PARENT_PID", "PATH", "LANG", "LC_ALL")


@dataclass(frozen=True)
class Limits:
    """Limits for one piece of code."""

    cpu_seconds: int = 5
    wall_seconds: float = 20.0
    memory_mib: int = 512
    """Added to the 100 to 160 MiB of the child itself, which forks share."""


def installed() -> tuple[str, ...]:
    """Returns the tools that this Python has; nothing is imported."""
    return tuple(name for name in ("pylint", "bandit") if find_spec(name) is not None)


class Sandbox:
    def __init__(
        self, limits: Limits | None = None, *, isolation_required: bool = False, clock: Clock | None = None
    ) -> None:
        """``isolation_required``: without Landlock no code is examined; else a warning is logged."""
        self._limits = limits or Limits()
        self._isolation_required = isolation_required
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: dict[str, tuple[subprocess.Popen[bytes], Future[dict[str, Any]]]] = {}
        self._count = 0
        self._open = True
        self._clock: Clock = clock or SystemClock()
        self._not_before = 0.0
        self._listener: threading.Thread | None = None
        self.starts = 0
        self.tools: dict[str, str] = {}
        """Tool → version, known once the child is ready."""
        self.network = "unknown"
        """Network isolation of the child: ``namespace`` or ``audit hook``."""
        self.files = "unknown"
        """Files that the child can read: ``landlock`` (the tools' own alone) or ``open``."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def open(self) -> None:
        """Allows requests again after ``close``."""
        self._open = True

    def examine(self, how: str, cells: Sequence[str]) -> dict[str, Any]:
        """Calls ``submit`` and waits. A child that is silent long after its own limit is killed."""
        try:
            return self.submit(how, cells).result(self._limits.wall_seconds + _PATIENCE)
        except TimeoutError:
            with self._lock:
                if self._process is not None:
                    self._process.kill()
            return {"failed": "child_died"}

    def submit(self, how: str, cells: Sequence[str]) -> Future[dict[str, Any]]:
        """Requests facts about a piece of code (``Lint.examine``), or ``{"failed": reason}``."""
        future: Future[dict[str, Any]] = Future()
        future.set_running_or_notify_cancel()  # so it cannot be cancelled under the listener
        with self._lock:
            if not self._open or self._clock.monotonic() < self._not_before:
                future.set_result({"failed": "stopped" if not self._open else "child_died"})
                return future
            self._count += 1
            name = str(self._count)
            process = self._running()
            self._pending[name] = process, future
            body = json.dumps({"id": name, "how": how, "cells": list(cells)}).encode()
            try:
                assert process.stdin is not None
                process.stdin.write(_LENGTH.pack(len(body)) + body)
                process.stdin.flush()
            except (OSError, ValueError):
                pass  # the child has ended: its listener fails this request and decides about the next start
        return future

    def close(self) -> None:
        """Ends the child; unanswered requests fail."""
        with self._lock:
            self._open = False
            process, self._process, listener = self._process, None, self._listener
        if process is not None:
            _end(process)
        if listener is not None:
            listener.join()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            folder = tempfile.mkdtemp(prefix="onward-code-")
            limits = self._limits
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-c", _BOOT, json.dumps(_library_folders()), folder),
                    *(str(limits.cpu_seconds), str(limits.wall_seconds), str(limits.memory_mib)),
                    *(["required"] if self._isolation_required else []),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: value for name, value in child_environment().items() if name in _KEPT}
                | {"PYLINTHOME": folder, "HOME": folder, "TMPDIR": folder},
                umask=OWNER_ALONE,
                start_new_session=True,
            )
            self.starts += 1
            self._listener = threading.Thread(
                target=self._listen, args=(self._process, folder), name="code-answers", daemon=True
            )
            self._listener.start()
        return self._process

    def _listen(self, process: subprocess.Popen[bytes], folder: str) -> None:
        """Receives the answers of one child until it ends; then its open requests fail."""
        assert process.stdout is not None
        ready = False
        while (answer := _read(process.stdout)) is not None:
            if "ready" in answer:
                ready = True
                self.tools, self.network, self.files = answer["ready"], answer["network"], answer["files"]
                self._say_isolation()
                continue
            with self._lock:
                _, future = self._pending.pop(answer.pop("id"))
            future.set_result(answer)
        with self._lock:
            lost = {name: future for name, (child, future) in self._pending.items() if child is process}
            for name in lost:
                del self._pending[name]
            if self._process is process:
                self._process = None
                self._not_before = 0.0 if ready else self._clock.monotonic() + _PAUSE
        _end(process)
        if lost:
            _log.error("the code analysis child died", exit_code=process.returncode, ready=ready)
        shutil.rmtree(folder, ignore_errors=True)
        for future in lost.values():
            future.set_result({"failed": "child_died"})

    def _say_isolation(self) -> None:
        if self.files != "open":
            return
        done = "it is not rated" if self._isolation_required else "it is rated with this machine's files open"
        _log.warning(
            f"code is analysed where the kernel has no Landlock: {done}", setting="reward.code_isolation"
        )


def _library_folders() -> list[str]:
    """Returns the folders where the child finds Onward and the tools: ``-I`` ignores the user's folder and
    PYTHONPATH."""
    folders: dict[str, None] = {}
    for name in ("onward", *installed()):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            folders[str(Path(spec.origin).parent.parent)] = None
    return list(folders)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the child by closing its input; kills it if it has not ended after 2 s."""
    if process.stdin is not None:
        try:
            process.stdin.close()
        except OSError:
            pass
    try:
        process.wait(2.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _read(stream: IO[bytes]) -> dict[str, Any] | None:
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    size = _LENGTH.unpack(head)[0]
    body = stream.read(size)
    return json.loads(body) if len(body) == size else None
