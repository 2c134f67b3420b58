"""Runs an app inside our own event loop: binds, answers, stops, and reports clearly why it cannot listen.

Invariants: signals stay with the process that runs the roles, and the listening socket must name TCP, or
asyncio leaves Nagle's algorithm on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import json
import socket
from collections.abc import Iterable, Iterator, Mapping

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onward.errors import ConfigError, PortBusyError
from onward.http.connections import KEEP_ALIVE_SECONDS, Acceptor, most_connections

MAX_CONNECTIONS = 512
GRACE_SECONDS = 5.0
"""Seconds that a stopping server gives to running calls."""


class _EmbeddedServer(uvicorn.Server):
    """uvicorn inside our loop: signals stay with the process that runs the roles."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """Runs an app in the current event loop: ``await start()``, ``.port``, ``await stop()``."""

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        what: str = "The HTTP service",
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._app, self.host, self._asked, self._what = app, host, port, what
        self._most = most_connections(max_connections)
        self._acceptor: Acceptor | None = None
        self._listener: socket.socket | None = None
        self._server: _EmbeddedServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.port = 0

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.port}"

    def reserve(self) -> None:
        """Binds the port without answering yet, so that a busy one is known before slow work begins. Raises
        PortBusyError, ConfigError."""
        if self._listener is None:
            self._listener = self._bind()
            self.port = self._listener.getsockname()[1]

    async def start(self) -> None:
        """Binds and serves; returns when calls are answered. Raises PortBusyError, ConfigError."""
        self.reserve()
        listener, self._listener = self._listener, None
        assert listener is not None
        with self._one_sentence(listener):
            listener.listen(1024)
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(GRACE_SECONDS),
        )
        self._server = _EmbeddedServer(config)
        # No sockets: the acceptor has the listener, with a limit that uvicorn lacks.
        self._task = asyncio.create_task(self._server.serve(sockets=[]), name=f"http:{self.port}")
        while not self._server.started:
            if self._task.done():
                await self._task
                raise ConfigError(f"{self._what} did not start on {self.host}:{self._asked}.")
            await asyncio.sleep(0.005)
        self._acceptor = Acceptor(listener, config, self._server.server_state, self._most)
        self._acceptor.start()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the app; a call that our stop cuts off is no defect, and gets 503 if nothing was sent yet."""
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
            if not begun:
                await _cut_off(send)

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # Named TCP on purpose: asyncio sets TCP_NODELAY only then, without which each answer waits 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with self._one_sentence(listener):
            listener.bind((self.host, self._asked))
        listener.setblocking(False)
        return listener

    @contextlib.contextmanager
    def _one_sentence(self, listener: socket.socket) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                raise PortBusyError(self.host, self._asked, self._what) from None
            raise ConfigError(
                f"{self._what} cannot listen on {self.host}:{self._asked} ({error.strerror or error}): "
                f"give an address of this machine and a port above 1023."
            ) from None

    async def stop(self) -> None:
        """Stops accepting, lets running calls end (at most 5 s), returns when the port is free."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._acceptor is not None:
            self._acceptor.stop()
            self._acceptor = None
        if self._server is None or self._task is None:
            return
        self._is_stopping = True  # and stays True: a call that was cut off may end after the server
        self._server.should_exit = True
        await self._task
        self._server = self._task = None


async def _cut_off(send: Send) -> None:
    message = "The service is stopping and did not finish this call: send it again in a moment."
    said = {"type": "stopping", "message": message, "param": None}
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"5")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": said}).encode()})


async def check_free(host: str, port: int, what: str) -> None:
    """Checks that a later ``Server`` can bind. Raises PortBusyError, ConfigError."""
    probe = Server(FastAPI(), host, port, what=what)
    probe.reserve()
    await probe.stop()


def is_loopback(host: str) -> bool:
    """Returns whether ``host``, a name or an address, is this machine alone."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def check_exposure(host: str, keys: Mapping[str, Iterable[str]], auth: str = "keys") -> None:
    """Refuses to listen beyond this machine without a configured key, unless ``auth`` is ``none``. Raises
    ConfigError."""
    if is_loopback(host) or keys or auth == "none":
        return
    raise ConfigError(
        f"http.host is {host!r}, which other machines can reach, but http.keys is empty: configure at least "
        f"one API key, listen on 127.0.0.1, or write http.auth = 'none' where a network keeps others out."
    )
