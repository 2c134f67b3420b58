"""A transport of httpx for calls that pass through: HTTP/1.1 by asyncio's streams and httptools.

httpx's own transport takes half of the CPU time of a call through the gateway, partly because it looks at
every idle connection for each request. The client, its errors and its responses stay those of httpx.

A request's body is sent whole, with its length.

Invariants: a connection is used again only after a whole answer that allows it, and only if nothing more came
on it: such bytes belong to no request, and would be read as the answer to the next one. A cancelled call
closes its connection, which ends the work at the other side.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from functools import cached_property
from time import monotonic
from typing import Any

import httptools
import httpx

IDLE_SECONDS = 5.0
"""An idle connection is not used after this time: servers close theirs."""
MOST_IDLE = 64
MOST_HEAD = 100 << 10
"""Bytes until the end of an answer's headers."""
NEXT_ADDRESS_SECONDS = 0.25
"""A host's next address is tried after this time: the first may lead nowhere, as IPv6 in some networks."""
_PIECE = 1 << 16
_Origin = tuple[str, str, int]


class LeanTransport(httpx.AsyncBaseTransport):
    def __init__(self) -> None:
        self._idle: dict[_Origin, list[_Connection]] = {}
        self._is_closed = False

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = httpx.create_ssl_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends a request and returns its answer, whose body was not read. Raises httpx.TransportError."""
        url, limits = request.url, request.extensions.get("timeout") or {}
        host = url.raw_host.decode("ascii")
        origin = (url.scheme, host, url.port or (443 if url.scheme == "https" else 80))
        connection = self._take(origin) or await self._open(origin, limits.get("connect"))
        try:
            await connection.send(request, await request.aread(), limits.get("write"))
            await connection.read_head(limits.get("read"))
        except BaseException:
            connection.close()
            raise
        body = _Body(self, origin, connection, limits.get("read"))
        return httpx.Response(connection.status, headers=connection.headers, stream=body)

    async def aclose(self) -> None:
        self._is_closed = True
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def put_back(self, origin: _Origin, connection: _Connection) -> None:
        """Keeps a connection for the next request, or closes it."""
        idle = self._idle.setdefault(origin, [])
        now = monotonic()
        while idle and now - idle[0].idle_since >= IDLE_SECONDS:
            idle.pop(0).close()
        if connection.is_reusable and len(idle) < MOST_IDLE and not self._is_closed:
            connection.idle_since = now
            idle.append(connection)
        else:
            connection.close()

    def _take(self, origin: _Origin) -> _Connection | None:
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()  # the one that was used last: the others may grow old
            if connection.is_open and monotonic() - connection.idle_since < IDLE_SECONDS:
                return connection
            connection.close()
        return None

    async def _open(self, origin: _Origin, seconds: float | None) -> _Connection:
        scheme, host, port = origin
        secure: dict[str, Any] = {"ssl": self._tls, "server_hostname": host} if scheme == "https" else {}
        try:
            async with asyncio.timeout(seconds):
                return await _Connection.open(host, port, **secure)
        except TimeoutError:
            raise httpx.ConnectTimeout(f"no connection within {seconds} s") from None
        except OSError as error:
            raise httpx.ConnectError(str(error)) from None


class _Reader(asyncio.StreamReader):
    unread = 0
    """Bytes that came and were not read."""

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        self.unread += len(data)
        super().feed_data(data)


class _Connection:
    """One connection, and what was parsed of its present answer."""

    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._begin("")
        self.idle_since = 0.0

    @classmethod
    async def open(cls, host: str, port: int, **secure: Any) -> _Connection:
        loop = asyncio.get_running_loop()
        reader = _Reader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(
            lambda: protocol, host, port, happy_eyeballs_delay=NEXT_ADDRESS_SECONDS, **secure
        )
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    def _begin(self, method: str) -> None:
        self._method, self._head = method, 0
        self._parser = httptools.HttpResponseParser(self)
        self.status, self.headers = 0, list[tuple[bytes, bytes]]()
        self.parts: list[bytes] = []
        self.has_head = self.is_whole = self._is_sized = False
        self._keeps = False

    @property
    def is_open(self) -> bool:
        return not (self._reader.unread or self._reader.at_eof() or self._writer.is_closing())

    @property
    def is_reusable(self) -> bool:
        return self.is_whole and self._keeps and self.is_open

    def close(self) -> None:
        """Closes at once: what was not sent yet must not reach the server later."""
        self._writer.transport.abort()

    async def send(self, request: httpx.Request, body: bytes, seconds: float | None) -> None:
        self._begin(request.method)
        head = _head(request, len(body))
        try:
            self._writer.write(head + b"\r\n\r\n" + body)
            async with asyncio.timeout(seconds):
                await self._writer.drain()
        except TimeoutError:
            raise httpx.WriteTimeout(f"not sent within {seconds} s") from None
        except OSError as error:
            raise httpx.WriteError(str(error)) from None

    async def read_head(self, seconds: float | None) -> None:
        while not self.has_head:
            await self.read(seconds)

    async def read(self, seconds: float | None) -> None:
        """Reads and parses one piece. Raises httpx.TransportError."""
        try:
            async with asyncio.timeout(seconds):
                data = await self._reader.read(_PIECE)
        except TimeoutError:
            raise httpx.ReadTimeout(f"silent for {seconds} s") from None
        except OSError as error:
            raise httpx.ReadError(str(error)) from None
        if not data:
            if not self.has_head or self._is_sized:
                raise httpx.RemoteProtocolError("the connection ended before the answer was complete")
            self.is_whole = True  # an answer without a length ends with its connection
            return
        self._reader.unread -= len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.is_whole:
                raise httpx.RemoteProtocolError(str(error)) from None
            self._keeps = False
        if not self.has_head and (head := self._head + len(data)) > MOST_HEAD:
            raise httpx.RemoteProtocolError(f"no end of the headers within {head} bytes")
        self._head += len(data)

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.is_whole:  # what follows is no answer to a request
            self._keeps = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.has_head:  # a trailer, or of a further message
            return
        self.headers.append((name, value))
        self._is_sized |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        if self.has_head:
            return
        self.status = self._parser.get_status_code()
        if self.status < 200:  # such as 103: another head follows
            self.headers, self._is_sized = [], False
            return
        self.has_head, self._keeps = True, self._parser.should_keep_alive()
        if self._method == "HEAD":  # whose headers describe a body that is not sent
            self.is_whole, self._keeps = True, False

    def on_body(self, body: bytes) -> None:
        if not self.is_whole:
            self.parts.append(body)

    def on_message_complete(self) -> None:
        self.is_whole = self.has_head


def _head(request: httpx.Request, length: int) -> bytes:
    """Returns request line and headers. Raises LocalProtocolError for a header that would be two."""
    pairs = [pair for pair in request.headers.raw if pair[0].lower() != b"transfer-encoding"]
    if len(pairs) < len(request.headers.raw):
        pairs.append((b"Content-Length", b"%d" % length))
    lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    lines += [b"%s: %s" % pair for pair in pairs]
    head = b"\r\n".join(lines)
    if {head.count(b"\r"), head.count(b"\n")} != {len(pairs)} or b"\0" in head:
        raise httpx.LocalProtocolError("a header has a line break or a zero byte in it")
    return head


class _Body(httpx.AsyncByteStream):
    def __init__(
        self, transport: LeanTransport, origin: _Origin, connection: _Connection, seconds: float | None
    ) -> None:
        self._transport, self._origin, self._seconds = transport, origin, seconds
        self._connection: _Connection | None = connection

    async def __aiter__(self) -> AsyncIterator[bytes]:
        connection = self._connection
        while connection is not None:
            parts, connection.parts = connection.parts, []
            for part in parts:
                yield part
            if connection.is_whole:
                return
            await connection.read(self._seconds)

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._transport.put_back(self._origin, connection)
