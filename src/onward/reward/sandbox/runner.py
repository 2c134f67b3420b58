"""The parent's side of the sandbox: one fresh process for each program, ended at its limits.

Invariant: a program never runs unconfined. Where the kernel cannot confine, ``check`` and ``run`` raise.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from onward import children
from onward.errors import ConfigError
from onward.files import OWNER_ALONE
from onward.reward.sandbox.confined import CANNOT_CONFINE

_BOOT = """\
import sys, types
folder = sys.argv.pop(1)
for name in ("onward", "onward.reward", "onward.reward.code", "onward.reward.sandbox"):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [f"{folder}/{name.replace('.', '/')}"]
from onward.reward.sandbox.confined import main
main()
"""
"""Imports the three modules that the process needs, and not their packages, which import much more."""
_CHUNK = 1 << 14


@dataclass(frozen=True)
class Limits:
    """Limits of one program. It has no files to write to, no further process and no thread at all."""

    cpu_seconds: int = 5
    wall_seconds: float = 20.0
    memory_mib: int = 384
    """Address space of the whole process, of which Python itself needs about 60 MiB."""
    output_bytes: int = 1 << 16


@dataclass(frozen=True)
class Outcome:
    """The end of a program."""

    status: Literal["finished", "failed", "time", "output"]
    """``failed``: an exception, a signal or an exit code other than zero, of too much memory as well."""
    output: str
    errors: str
    """The end of standard error: the exception's last lines."""


class Sandbox:
    """Runs Python programs without network, files, processes or threads."""

    def __init__(self, limits: Limits | None = None, *, at_once: int = 2) -> None:
        self._limits = limits or Limits()
        self._at_once = at_once
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free = asyncio.Semaphore(at_once)
        self._checked = False

    async def check(self) -> None:
        """Raises ConfigError if this machine cannot confine a program."""
        if self._checked:
            return
        if not sys.platform.startswith("linux"):
            raise ConfigError("Programs of a policy are run on Linux alone: this system cannot confine them.")
        outcome, code = await self._once("print('confined')", "")
        if code == CANNOT_CONFINE:
            raise ConfigError(
                f"This machine cannot confine the programs of a policy: {outcome.errors} is missing. Use "
                f"Linux 6.2 or newer with Landlock and seccomp, or leave out what runs them."
            )
        if outcome.output != "confined\n":
            raise ConfigError(
                f"The sandbox does not start a program here: {outcome.errors or outcome.status}."
            )
        self._checked = True

    async def run(self, source: str, stdin: str = "") -> Outcome:
        """Runs a program to its end or to a limit. Raises ConfigError if it cannot be confined."""
        await self.check()
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # a semaphore belongs to one loop
            self._loop, self._free = loop, asyncio.Semaphore(self._at_once)
        async with self._free:
            return (await self._once(source, stdin))[0]

    async def _once(self, source: str, stdin: str) -> tuple[Outcome, int]:
        limits = self._limits
        request = {
            "source": source,
            "stdin": stdin,
            "cpu_seconds": limits.cpu_seconds,
            "memory_mib": limits.memory_mib,
        }
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-s", "-S", "-B", "-c", _BOOT, _source_folder()),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd="/",
            env={"ONWARD_PARENT_PID": str(os.getpid()), "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},
            umask=OWNER_ALONE,
            start_new_session=True,
        )
        try:
            return await self._follow(child, json.dumps(request).encode())
        finally:
            await children.end(child)

    async def _follow(self, child: Process, request: bytes) -> tuple[Outcome, int]:
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        most = self._limits.output_bytes
        reading = [asyncio.create_task(_read(stream, most, child)) for stream in (child.stdout, child.stderr)]
        timely = True
        try:
            async with asyncio.timeout(self._limits.wall_seconds):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    child.stdin.write(request)
                    await child.stdin.drain()
                    child.stdin.close()
                code = await child.wait()
        except TimeoutError:
            timely = False
            await children.end(child)
            code = child.returncode if child.returncode is not None else -9
        (output, output_cut), (errors, errors_cut) = await asyncio.gather(*reading)
        status: Literal["finished", "failed", "time", "output"] = "finished" if code == 0 else "failed"
        if output_cut or errors_cut:
            status = "output"
        elif not timely or code in (-24, -9):  # SIGXCPU, or SIGKILL one second of processor time later
            status = "time"
        return Outcome(status, output, errors[-2000:].strip()), code


async def _read(stream: asyncio.StreamReader, most: int, child: Process) -> tuple[str, bool]:
    """Reads ``most`` bytes; kills the child if it writes more. Returns (text, whether it was cut).

    What comes after the cut is still read: asyncio reports no end of a process whose pipe is full.
    """
    received, cut = bytearray(), False
    while piece := await stream.read(_CHUNK):
        if len(received) < most:
            received += piece[: most - len(received)]
        if not cut and len(received) >= most:
            cut = True
            children.send(child, signal.SIGKILL)
    return received.decode(errors="replace"), cut


def _source_folder() -> str:
    """Returns the folder that this Onward is imported from."""
    spec = find_spec("onward")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "The folder of Onward's package is unknown: install Onward from a wheel or a folder."
        )
    return str(Path(spec.origin).parents[1])
