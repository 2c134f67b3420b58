"""Reads the warehouse of a data folder, whether Onward runs on it or not.

If no service runs, the engine is started for the time of the block, and only its views and logs are written.
A service that starts meanwhile waits for it, 15 s at most.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onward.config import Settings
from onward.errors import ConfigError, WarehouseError, folder_advice
from onward.warehouse.client import TOKEN_FILE, Warehouse, connect
from onward.warehouse.embedded import EmbeddedWarehouse


@asynccontextmanager
async def reading(settings: Settings) -> AsyncIterator[Warehouse]:
    """Yields a client of the configured server, of the warehouse running on this folder, or of a new one.
    Raises ConfigError if nothing was ever stored, WarehouseError as ``connect`` and ``start`` do."""
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
        raise ConfigError(
            f"Nothing is stored in {settings.data_dir}: start the service with 'onward up', or "
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
