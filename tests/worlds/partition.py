"""A TCP proxy in front of a server, which can be cut off: connections stay open, but nothing passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Partition:
    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.url = ""

    def cut(self) -> None:
        self._open.clear()

    def heal(self) -> None:
        """What was sent meanwhile arrives now, late."""
        self._open.set()

    async def pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def partition(url: str) -> AsyncIterator[Partition]:
    """Yields a proxy to ``url`` (``nats://host:port``) with an address of its own."""
    made, parts = Partition(), urlsplit(url)
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(parts.hostname, parts.port)
        for one in (made.pipe(reader, back), made.pipe(there, writer)):
            tasks.add(asyncio.ensure_future(one))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    made.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
