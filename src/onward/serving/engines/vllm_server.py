"""A vLLM server on this machine, started and kept alive by the gateway that samples from it.

It may run from another environment (``vllm.command``), because vLLM pins a torch of its own. It listens on
loopback, with a key that is new at each start, and its output is in ``logs/``.

Invariants: the kernel's parent-death signal follows the thread that spawned the server, so ``start`` must be
called from the event loop's main thread. The port stays the same when the server is started again, unless
another process took it meanwhile; then the key is new as well, and ``on_move`` is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import httpx

from onward import children
from onward.clock import Clock
from onward.config import Settings, VllmSettings
from onward.errors import ConfigError, EngineError
from onward.files import OWNER_ALONE, write_whole
from onward.lm.devices import Dtype
from onward.processes import COMPUTING, birth, child_environment, ends_with_parent, left_of_session
from onward.telemetry import logs

_events = logs.get("vllm_server")
MODULE = "vllm.entrypoints.openai.api_server"
SERVED = "base"
"""Name under which the server serves the base model."""
HOST = "127.0.0.1"
MOST_RANK = 64
"""Largest rank of an adapter."""
RESIDENT = 4
"""Adapters at once: current, candidate, previous, and one that is being validated."""
POLL_SECONDS = 0.2
STOP_SECONDS = 10.0
_LARGEST_LOG = 1 << 24
"""Bytes of the log at which the next server begins a new one; the former is kept as ``.1``."""
_TAIL = 4096
"""Bytes of the log that are read for its last line."""
_PASSED = ("VLLM_*", *COMPUTING)


def command_of(vllm: VllmSettings) -> list[str]:
    """Returns the command that starts a server, without its options. Raises ConfigError if there is none."""
    if vllm.command:
        program = shutil.which(vllm.command[0])
        if program is None:
            raise ConfigError(
                f"vllm.command names {vllm.command[0]!r}, which is no program here: give the Python of the "
                f"environment with vLLM, then -m and {MODULE}."
            )
        return [program, *vllm.command[1:]]
    from importlib.util import find_spec

    if find_spec("vllm") is None:
        raise ConfigError(
            "model.engine is vllm, and vLLM is not installed beside Onward: set vllm.command to a command of "
            f"another environment ('/its/bin/python -m {MODULE}'), or vllm.url to the address of a server."
        )
    return [sys.executable, "-m", MODULE]


def dtype_of(vllm: VllmSettings) -> Dtype:
    """Returns the number format in ``vllm.options``; a server's own choice has two bytes a weight."""
    words = " ".join(vllm.options).replace("--dtype=", "--dtype ").split()
    given = [value for name, value in pairwise(words) if name == "--dtype"]
    return "float32" if given and given[-1] in ("float32", "float") else "bfloat16"


class VllmServer:
    """One server for one base model. It ends with this process, and is started again if it dies or hangs."""

    def __init__(
        self,
        settings: Settings,
        model: Path,
        *,
        clock: Clock,
        name: str = "vllm",
        start_seconds: float,
        on_move: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """``on_move`` is called when the server was started again with another address and key."""
        self._settings, self._model, self._start_seconds = settings, model, start_seconds
        self._log = settings.data_dir / "logs" / f"{name}.log"
        self._on_move = on_move
        self._moved = False
        self._record = self._log.with_suffix(".pid")
        self._leader: int | None = None
        """Process id of the server whose group may still have processes."""
        self._port = 0
        self.key = ""
        """Key that the running server requires."""
        self.keeper = children.Keeper(
            "vllm",
            self._spawn,
            clock=clock,
            longest_pause=60.0,
            on_death=self._end_group,
            probe=self._check_health,
        )

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    async def start(self) -> None:
        """Starts the server and waits until it answers. Raises ConfigError (no such program), EngineError."""
        self._end_left_behind()
        self._take_address()
        await self.keeper.start()

    async def stop(self) -> None:
        """Ends the server and the processes that it started."""
        await self.keeper.stop(STOP_SECONDS)
        self._end_group()

    def options(self) -> list[str]:
        """Returns the options that Onward needs, then the user's own, which take precedence."""
        model = self._settings.model
        return [
            *("--model", str(self._model), "--served-model-name", SERVED),
            *("--host", HOST, "--port", str(self._port)),
            *("--enable-lora", "--max-lora-rank", str(MOST_RANK), "--max-loras", str(RESIDENT)),
            *("--logprobs-mode", "processed_logprobs"),
            *("--max-model-len", str(model.max_context), "--max-num-seqs", str(model.max_batch)),
            "--disable-uvicorn-access-log",  # a line for each call and each probe
            *self._settings.vllm.options,
        ]

    def _take_address(self) -> None:
        self._port, self.key = _free_port(), secrets.token_hex(32)

    async def _spawn(self) -> Process:
        """Starts a server and waits until it is healthy. Raises ConfigError, EngineError."""
        program, *words = command_of(self._settings.vllm)
        if not _is_free(self._port):
            self._take_address()
            self._moved = True
        environment = child_environment(
            *_PASSED,
            VLLM_ALLOW_RUNTIME_LORA_UPDATING="True",
            VLLM_API_KEY=self.key,  # all users can read a command line
            VLLM_NO_USAGE_STATS="1",
            HF_HUB_OFFLINE="1",
        )
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if self._log.stat().st_size > _LARGEST_LOG:
                self._log.replace(self._log.with_suffix(".log.1"))
        with self._log.open("ab") as log:
            child = await asyncio.create_subprocess_exec(
                *ends_with_parent(program, *words, *self.options()),
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                umask=OWNER_ALONE,
                start_new_session=True,  # it leads the group of its own processes, which end with it
            )
        self._leader = child.pid
        try:
            write_whole(self._record, f"{child.pid} {birth(child.pid)}".encode())
            async with asyncio.timeout(self._start_seconds):
                await self._until_ready(child)
        except BaseException as error:
            await children.end(child, STOP_SECONDS)
            self._end_group()
            if isinstance(error, TimeoutError):
                raise EngineError(
                    f"vLLM did not become ready within {self._start_seconds:g} s: see {self._log}."
                ) from None
            raise
        if self._moved and self._on_move is not None:
            await self._on_move()
        self._moved = False
        return child

    def _end_group(self) -> None:
        """Ends what a server that has ended left behind: its engine and workers hold the model's memory."""
        if self._leader is not None:
            children.kill_group(self._leader)
            self._leader = None
            self._record.unlink(missing_ok=True)

    def _end_left_behind(self) -> None:
        """Ends what the server of a killed gateway left behind: the kernel ended that server alone."""
        try:
            leader, born = self._record.read_text(encoding="utf-8").split()
            left = left_of_session(int(leader), born, self._log)
        except (OSError, ValueError):  # none, or cut off
            return
        for pid in left:
            _events.warning("process of a former vLLM server is ended", pid=pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._record.unlink(missing_ok=True)

    async def _until_ready(self, child: Process) -> None:
        while child.returncode is None:
            try:
                await self._check_ready()
                if child.returncode is None:
                    return
            except (httpx.HTTPError, EngineError):
                await asyncio.sleep(POLL_SECONDS)
        raise EngineError(
            f"vLLM ended at its start with code {child.returncode}: {_last_line(self._log)} See {self._log}."
        )

    async def _check_ready(self) -> None:
        """Returns when our server answers. Raises httpx.HTTPError, EngineError.

        Another process may have taken the port before vLLM did. It learns the key only if it asks for one.
        """
        await self._check_health()
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=children.PROBE_SECONDS) as client:
            models = f"{self.url}/v1/models"
            refused = await client.get(models)
            if refused.status_code != 401:
                raise EngineError(f"The server on port {self._port} does not require the key of our vLLM.")
            answer = await client.get(models, headers={"Authorization": f"Bearer {self.key}"})
        try:
            served = [card["id"] for card in answer.json()["data"]]
        except (ValueError, KeyError, TypeError):
            served = []
        if answer.status_code != 200 or SERVED not in served:
            raise EngineError(f"The server on port {self._port} is not our vLLM.")

    async def _check_health(self) -> None:
        """Returns when the server answers that it is healthy. Raises httpx.HTTPError, EngineError."""
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=children.PROBE_SECONDS) as client:
            answer = await client.get(f"{self.url}/health")
        if answer.status_code != 200:
            raise EngineError(f"vLLM is not healthy (HTTP {answer.status_code}).")


def _free_port() -> int:
    """Returns a port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _is_free(port: int) -> bool:
    """Returns whether a server could bind the port as vLLM does: ended connections do not matter."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return (lines[-1][:200].rstrip(".") + ".") if lines else "it printed nothing."
