"""A real ``onward up`` in a process group of its own, as a user starts it, and its children by name."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from onward import host


@dataclass
class Service:
    process: subprocess.Popen[bytes]
    endpoints: dict[str, Any]

    def kill(self) -> None:
        """SIGKILL of the whole process group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def child(self, words: str) -> psutil.Process | None:
        """The child whose command line holds ``words``; None while there is none."""
        for child in children(self.process.pid):
            try:
                if words in " ".join(child.cmdline()):
                    return child
            except psutil.Error:
                continue
        return None


def children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def start(folder: Path, seconds: float = 90) -> Service:
    """Starts the service on ``folder``, which holds an onward.toml, and waits until it is up."""
    endpoints = folder / "onward-data" / "run" / host.ENDPOINTS
    endpoints.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "onward.cli", "up", "--log-level", "warning"],
        cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    service = Service(process, {})
    try:
        deadline = time.monotonic() + seconds
        while not endpoints.exists():
            assert process.poll() is None, "onward up ended early"
            assert time.monotonic() < deadline, "onward up did not come up"
            time.sleep(0.1)
    except BaseException:
        service.kill()
        raise
    service.endpoints = json.loads(endpoints.read_text())
    return service


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
