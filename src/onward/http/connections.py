"""Connections of one port: their time limits, their greatest number, and which one makes room for another.

uvicorn has neither a limit on the time of a header nor one on connections that send none, and asyncio accepts
connections until the process has no file descriptor left. What a connection sends is read in ``requests.py``.

Invariants: a connection whose request is being answered is never closed to make room. All ports of a process
together leave it half of its descriptors, for the bus, the warehouse and the files.
"""

from __future__ import annotations

import asyncio
import errno
import json
import resource
import select
import socket
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from onward.http.requests import RequestReader
from onward.telemetry import logs

HEADER_SECONDS = 10.0
"""Time limit for the path and headers of a request, from the connection or from their first byte."""
KEEP_ALIVE_SECONDS = 60
"""Time for which an open connection may wait for its next request."""
READ_SECONDS = 60.0
"""Time after which a client that takes nothing of its answer is cut off."""
JOINED_BYTES = 64 << 10
"""Bytes of an answer that wait for the end of a step of the event loop."""
_SHARE = 4
"""The part of the process's descriptors that one port may use is one in this many."""
_AT_ONCE = 32
"""Connections accepted in one step of the event loop."""
_PAUSE_SECONDS = 0.1
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logs.get("http")


def most_connections(configured: int) -> int:
    """Returns the greatest number of connections to one port: ``configured``, within the port's share of the
    process's descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return configured if soft == resource.RLIM_INFINITY else max(8, min(configured, soft // _SHARE))


class Connection(RequestReader):
    """A connection with time limits for headers and for a client that does not read."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        *,
        on_open: Callable[[], None],
        on_free: Callable[[], None],
    ) -> None:
        super().__init__(config, state)
        self._on_open, self._on_free = on_open, on_free
        self._header_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        self.since = 0.0
        """Time of the loop since which it waits for a request, or for the rest of one."""

    @property
    def sends_header(self) -> bool:
        return self._header_timer is not None

    @property
    def sends_body(self) -> bool:
        return not self.is_idle and self.cycle.more_body

    def connection_made(self, transport: Any) -> None:
        self._joined = JoinedTransport(transport, self.loop)
        joined: Any = self._joined
        super().connection_made(joined)
        self._expect_header()
        self._on_open()

    def read(self) -> None:
        before = self.cycle
        super().read()
        if self.cycle is not before:
            self._end_header_timer()
            self.since = self.loop.time()
        elif self.is_idle and self._header_timer is None and not self.transport.is_closing():
            self._expect_header()

    def eof_received(self) -> None:
        self._joined.flush()  # the transport closes itself after this
        super().eof_received()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()
        self._on_free()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._read_timer is None:
            self._read_timer = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_read_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._end_header_timer()
        self._end_read_timer()
        self._on_free()

    def _expect_header(self) -> None:
        self.since = self.loop.time()
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self._header_is_late)

    def _header_is_late(self) -> None:
        self._header_timer = None
        if not self.has_unparsed:
            self.transport.close()
            return
        self.refuse(408, f"The request's header did not arrive within {HEADER_SECONDS:g} seconds.")

    def refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        if self.is_idle or not self.cycle.response_started:
            told = {"error": {"type": "invalid_request_error", "message": message, "param": None}}
            body = json.dumps(told)
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write((head + body).encode())
        self.transport.close()

    def _end_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _end_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None


class JoinedTransport:
    """A transport that sends what one step of the event loop writes with one system call: uvicorn writes the
    head and the body of an answer separately, and each call lets another thread take the interpreter."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size >= JOINED_BYTES:  # at once, so that the transport's flow control sees it
            self.flush()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self.flush()  # an answer that is complete leaves, if the client takes it at once
        self._transport.abort()

    def flush(self) -> None:
        parts, self._parts, self._size = self._parts, [], 0
        if parts and not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Acceptor:
    """Accepts connections of ``listener`` up to ``most``. At the limit the one that has waited longest for a
    header makes room, else one between two requests, else one that sends a body. If all are being answered,
    new ones wait in the kernel's queue until one of them is done."""

    def __init__(self, listener: socket.socket, config: Config, state: ServerState, most: int) -> None:
        self._listener, self._config, self._state, self.most = listener, config, state, most
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening: set[socket.socket] = set()
        """Accepted connections that are not among those of ``state`` yet."""
        self._leaving: set[Connection] = set()
        """Connections that were closed to make room and have not ended yet."""
        self._listens = self._told = False

    def start(self) -> None:
        self._resume()

    def stop(self) -> None:
        """Stops accepting and closes the listener."""
        self._pause()
        self._listener.close()
        for task in self._tasks:
            task.cancel()

    def _resume(self) -> None:
        if not self._listens and self._listener.fileno() >= 0:
            self._listens = True
            self._loop.add_reader(self._listener, self._accept)

    def _pause(self) -> None:
        if self._listens:
            self._listens = False
            self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if self._is_full and not _is_readable(self._listener):
                return  # no further one asks for a place
            if self._is_full and not self._make_room():
                self._pause()  # until a connection is open, ends, or its answer is complete
                return
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                _log.warning("no file descriptor is left for a connection", reason=error.strerror)
                self._make_room()
                self._pause()
                self._loop.call_later(_PAUSE_SECONDS, self._resume)
                return
            accepted.setblocking(False)
            self._opening.add(accepted)
            task = self._loop.create_task(self._open(accepted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _opened(self, accepted: socket.socket) -> None:
        """Goes on accepting: an open connection may make room, one that is being opened may not."""
        self._opening.discard(accepted)
        self._resume()

    async def _open(self, accepted: socket.socket) -> None:
        def connection() -> Connection:
            return Connection(
                self._config,
                self._state,
                on_open=partial(self._opened, accepted),
                on_free=self._resume,
            )

        try:
            await self._loop.connect_accepted_socket(connection, accepted)
        except OSError:  # the client is gone
            accepted.close()
        except BaseException:
            accepted.close()
            raise
        finally:
            self._opened(accepted)

    @property
    def _is_full(self) -> bool:
        self._leaving = {one for one in self._leaving if one in self._state.connections}
        return len(self._state.connections) - len(self._leaving) + len(self._opening) >= self.most

    def _make_room(self) -> bool:
        """Closes one connection that waits; returns whether there was one."""
        waiting = [
            (0 if one.sends_header else 1 if one.is_idle else 2, one.since, one)
            for one in self._state.connections
            if isinstance(one, Connection) and one not in self._leaving and (one.is_idle or one.sends_body)
        ]
        for _, _, oldest in sorted(waiting, key=lambda each: each[:2]):
            if _is_readable(oldest.transport.get_extra_info("socket")):
                continue  # maybe the rest of its request, which is read in a moment
            if not self._told:
                self._told = True
                _log.warning("connections that wait are closed to make room", limit=self.most)
            self._leaving.add(oldest)
            oldest.transport.abort()
            return True
        if waiting:
            self._loop.call_later(_PAUSE_SECONDS, self._resume)
        return False


def _is_readable(one: socket.socket) -> bool:
    """Returns whether something waits in the kernel: bytes, or for a listener a connection."""
    if one.fileno() < 0:
        return False
    poller = select.poll()
    poller.register(one, select.POLLIN)
    return bool(poller.poll(0))
