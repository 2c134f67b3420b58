"""Runs the warehouse child and restarts it when it dies. This process never imports chdb.

A dead child delays inserts and loses nothing: clients wait and retry, and acknowledged rows are on disk. The
child listens on a Unix socket in ``data_dir/run``, or on a loopback port if that path is too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from onward import children
from onward.clock import SystemClock
from onward.config import Settings
from onward.errors import ConfigError, WarehouseError, ever_ran, folder_advice, nothing_runs
from onward.files import read_secret, write_whole
from onward.warehouse.client import Warehouse, connect, read_address
from onward.warehouse.protocol import EXIT_IN_USE, TOKEN_FILE

_MAX_SOCKET_PATH = 100
"""Bytes; the kernel's limit is 108 with its terminator."""
_START_SECONDS = 90.0
_STOP_SECONDS = 40.0


class EmbeddedWarehouse:
    """chDB in a child of this process. ``start`` and ``stop`` are called once each."""

    def __init__(self, data_dir: Path) -> None:
        self._run_dir = data_dir / "run"
        self.data_path = data_dir / "chdb"
        self._log_path = data_dir / "logs" / "warehouse.log"
        self.keeper = children.Keeper("warehouse", self._spawn, clock=SystemClock(), probe=self._answers)
        self._client: Warehouse | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the child, or None while none runs."""
        return self.keeper.pid

    async def start(self) -> Warehouse:
        """Starts the child, creates the tables, and returns the client that ``stop`` will close. Raises
        WarehouseError if the engine cannot start or another process uses its files."""
        self._run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        token = _token(self._run_dir / TOKEN_FILE)
        await self.keeper.start()
        self._client = Warehouse(lambda: read_address(self._run_dir), password=token)
        await self._client.create_schema()
        return self._client

    async def stop(self) -> None:
        """Ends the child after its engine has closed cleanly; kills it after 40 s."""
        if self._client is not None:
            await self._client.close()
        await self.keeper.stop(_STOP_SECONDS)

    async def _answers(self) -> None:
        """Returns when the child answers; a long query does not keep it from that."""
        if self._client is not None:
            await self._client.check_alive()

    async def _spawn(self) -> asyncio.subprocess.Process:
        """Starts a child and waits until its engine is open. Raises WarehouseError when it is not."""
        socket_path = str((self._run_dir / "warehouse.sock").resolve())
        where = socket_path if len(os.fsencode(socket_path)) <= _MAX_SOCKET_PATH else self._old_port()
        data, run = str(self.data_path.resolve()), str(self._run_dir.resolve())
        child = await children.start("onward.warehouse.child", data, run, where, "rl", log=self._log_path)
        assert child.stdout is not None
        try:
            line = await asyncio.wait_for(child.stdout.readline(), _START_SECONDS)
        except BaseException as error:
            await children.end(child)
            if isinstance(error, TimeoutError):
                raise WarehouseError(f"The warehouse did not start in {_START_SECONDS:g} s.") from None
            raise
        if line.strip() != b"ready":
            raise WarehouseError(self._why(await child.wait()))
        return child

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
        return (
            f"The warehouse did not start (exit code {code}): see {self._log_path}. If its files are "
            f"damaged, move {self.data_path} aside and start again: rows come back from the streams."
        )


def _token(path: Path) -> str:
    """Returns the key of this data directory, readable by its owner only. It is created anew if the file is
    missing or damaged: with an empty key the child would admit any caller."""
    advice = "delete it and a new one is made at the next start"
    with contextlib.suppress(FileNotFoundError, ConfigError):
        return read_secret(path, advice)
    write_whole(path, secrets.token_urlsafe(32).encode(), 0o600)
    return read_secret(path, advice)


@asynccontextmanager
async def reading(settings: Settings) -> AsyncIterator[Warehouse]:
    """Yields a client of the configured server, of the warehouse running on this folder, or of a new one.

    A new one runs for the time of the block, and only its views and logs are written; a service that starts
    meanwhile waits for it, 15 s at most. Raises ConfigError if nothing was ever stored, WarehouseError as
    ``connect`` and ``start`` do.
    """
    if settings.warehouse.url is not None or (settings.run_dir / TOKEN_FILE).exists():
        client = await connect(settings)
        try:
            if settings.warehouse.url is not None or await client.ping():
                yield client
                return
        finally:
            await client.close()
    embedded = EmbeddedWarehouse(settings.data_dir)
    if not embedded.data_path.is_dir():
        if not ever_ran(settings.data_dir):
            raise ConfigError(nothing_runs(settings.data_dir))
        raise ConfigError(
            f"Nothing is stored in {settings.data_dir}: start it with 'onward up', or "
            f"{folder_advice(settings.data_dir)}."
        )
    try:
        try:
            started = await embedded.start()
        except OSError as error:
            raise WarehouseError(
                f"The warehouse in {settings.data_dir} cannot be opened ({error.strerror}): run this as the "
                f"user who owns the folder."
            ) from error
        yield started
    finally:
        await embedded.stop()
