"""Runs the warehouse child and restarts it when it dies. This process never imports chdb.

A dead child delays inserts and loses nothing: clients wait and retry, and acknowledged rows are on disk. The
child listens on a Unix socket in ``data_dir/run``, or on a loopback port if that path is longer than a socket
address may be.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from pathlib import Path

from onward.clock import Clock, SystemClock
from onward.errors import WarehouseError
from onward.files import write_secret_once
from onward.processes import child_environment
from onward.retry import Backoff
from onward.telemetry import logs
from onward.warehouse.client import TOKEN_FILE, Warehouse, read_address
from onward.warehouse.protocol import EXIT_IN_USE

_MAX_SOCKET_PATH = 100
"""Bytes; the kernel's limit is 108 with its terminator."""
_START_SECONDS = 90.0
_STOP_SECONDS = 40.0
_log = logs.get("warehouse")


class EmbeddedWarehouse:
    """chDB in a child of this process. ``start`` and ``stop`` are called once each."""

    def __init__(self, data_dir: Path, *, database: str = "rl", clock: Clock | None = None) -> None:
        self._run_dir = data_dir / "run"
        self.data_path = data_dir / "chdb"
        self._log_path = data_dir / "logs" / "warehouse.log"
        self._database = database
        self._clock: Clock = clock or SystemClock()
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._client: Warehouse | None = None
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """Process id of the current child."""
        return self._process.pid if self._process else None

    async def start(self) -> Warehouse:
        """Starts the child, creates the tables, and returns the client that ``stop`` will close.

        Raises WarehouseError if the engine cannot start or another process uses its files.
        """
        for folder in (self._run_dir, self._log_path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        os.chmod(self._run_dir, 0o700)
        token = _token(self._run_dir / TOKEN_FILE)
        self._process = await self._spawn()
        self._keeper = asyncio.create_task(self._keep(), name="warehouse-keeper")
        self._client = Warehouse(
            lambda: read_address(self._run_dir), password=token, database=self._database, clock=self._clock
        )
        await self._client.create_schema()
        return self._client

    async def stop(self) -> None:
        """Ends the child after its engine has closed cleanly; kills it after 40 s."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        if self._client is not None:
            await self._client.close()
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
            except TimeoutError:
                _log.error("warehouse did not stop, killing it")
                self._process.kill()
                await self._process.wait()

    async def _spawn(self) -> asyncio.subprocess.Process:
        socket_path = str((self._run_dir / "warehouse.sock").resolve())
        where = socket_path if len(os.fsencode(socket_path)) <= _MAX_SOCKET_PATH else self._old_port()
        with self._log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "onward.warehouse.child"),
                *(str(self.data_path.resolve()), str(self._run_dir.resolve()), where, self._database),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=child_environment(),
            )
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), _START_SECONDS)
        except BaseException as error:
            process.kill()
            await process.wait()
            if isinstance(error, TimeoutError):
                raise WarehouseError(f"The warehouse did not start in {_START_SECONDS:g} s.") from None
            raise
        if line.strip() != b"ready":
            raise WarehouseError(self._why(await process.wait()))
        return process

    async def _keep(self) -> None:
        """Waits for the child to die and starts another, more slowly each time it dies young."""
        backoff = Backoff(0.1, 10.0)
        while True:
            assert self._process is not None
            born = self._clock.monotonic()
            code = await self._process.wait()
            if self._clock.monotonic() - born > 30.0:
                backoff.reset()
            _log.error("warehouse died, starting it again", exit_code=code)
            await self._clock.sleep(backoff.next())
            while True:
                try:
                    self._process = await self._spawn()
                    break
                except (WarehouseError, OSError) as error:
                    _log.error("warehouse does not start", cause=str(error))
                    await self._clock.sleep(backoff.next())
            self.restarts += 1

    def _old_port(self) -> str:
        """Returns the last loopback port, so that clients in other processes find it again; else any."""
        try:
            return read_address(self._run_dir).url.rpartition(":")[2]
        except (OSError, ValueError, KeyError):
            return "0"

    def _why(self, code: int) -> str:
        if code == EXIT_IN_USE:
            return (
                f"Another process uses the warehouse in {self.data_path}: stop it or choose another data_dir."
            )
        return f"The warehouse did not start (exit code {code}): see {self._log_path}."


def _token(path: Path) -> str:
    """Returns the key of this data directory: created once, readable by its owner only."""
    if not path.exists():
        write_secret_once(path, secrets.token_urlsafe(32))
    return path.read_text(encoding="ascii").strip()
