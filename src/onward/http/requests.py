"""Requests of one connection, given to httptools one at a time.

uvicorn's httptools protocol parses whatever arrives. Requests that follow would then be parsed before the
first one is answered, trailers would be added to the headers, and a header could grow without a limit.

Invariants: a byte that follows a request is not parsed before that request is answered. What llhttp is
lenient about and h11 refused (the request line, Host, transfer codings) is refused here.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Never

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

MAX_INCOMPLETE = 64 << 10
"""Bytes of a header, and of what a chunked body has between two pieces of content, or behind the last."""
MAX_HEADERS = 200
_END = b"\r\n\r\n"
"""The end of a header. A chunked body ends with it too, but may contain it."""
_REQUEST_LINE = re.compile(rb'[A-Z-]+ /[!"$-~]* HTTP/1\.[01]\r\n')
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*(?=\r\n)", re.IGNORECASE)
_BARE_LF = re.compile(rb"(?<!\r)\n")


class RequestReader(HttpToolsProtocol):
    """uvicorn's connection with limits, which stops reading behind a request until that one is answered."""

    parser: Any
    """httptools.HttpRequestParser; None once the connection is lost."""

    def __init__(self, config: Config, state: ServerState) -> None:
        super().__init__(config, state, {})
        self.parser.set_dangerous_leniencies(lenient_data_after_close=False)
        self._received = b""
        self._parsed = 0
        """Bytes of ``_received`` that were parsed."""
        self._searched = 0
        """Bytes after those that contain no end of a header."""
        self._reads_body = False
        self._body_left: int | None = 0
        """Bytes of the body that have not arrived; None for a chunked body."""
        self._without_body = 0
        """Bytes of a chunked body since the last piece of content."""

    @property
    def is_idle(self) -> bool:
        """True between two requests, and before the first."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def has_unparsed(self) -> bool:
        return self._parsed < len(self._received)

    def refuse(self, status: int, message: str) -> None:
        """Answers with an error if the answer has not begun, and closes the connection."""
        raise NotImplementedError

    def send_400_response(self, msg: str = "") -> None:
        """Refuses a request that cannot be read. uvicorn's own answer has no JSON."""
        self.refuse(400, "This is not a readable HTTP request, or its header has no end: send less.")

    # Bytes.

    def data_received(self, data: bytes) -> None:
        kept = min(self._parsed, len(_END) - 1)  # the end of a chunked body may have begun there
        self._received = self._received[self._parsed - kept :] + data
        self._parsed = kept
        self.read()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.has_unparsed and not self.transport.is_closing():
            self.read()

    def read(self) -> None:
        """Parses what has arrived, up to the end of the request that is not answered yet."""
        self._unset_keepalive_if_required()
        while self.has_unparsed and not self.transport.is_closing():
            if self._reads_body:
                self._parse(self._end_of_body())
            elif not self.is_idle:
                self.flow.pause_reading()
                return
            else:
                end = self._end_of_header()
                if end is None:
                    return
                self._parse(end, _UPGRADE)
        if not self.has_unparsed:  # a connection that waits holds no memory
            self._received = self._received[1 - len(_END) :]
            self._parsed = len(self._received)

    def _parse(self, end: int, dropped: re.Pattern[bytes] | None = None) -> None:
        piece = self._received[self._parsed : end]
        if dropped is not None:
            piece = dropped.sub(b"", piece)
        self._parsed = end
        self._without_body += len(piece)
        try:
            self.parser.feed_data(piece)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):  # the latter: CONNECT
            self.send_400_response()
        else:
            if self._without_body > MAX_INCOMPLETE and self._reads_body:
                self.send_400_response()

    def _end_of_header(self) -> int | None:
        """Returns the position behind a header that is complete. Refuses one that can be none."""
        fresh = self._parsed + self._searched
        found = self._received.find(_END, max(self._parsed, fresh - len(_END) + 1))
        end = len(self._received) if found < 0 else found + len(_END)
        if (
            end - self._parsed > MAX_INCOMPLETE
            or self._received[self._parsed] <= 0x20  # as of TLS, which sends no line
            or (found < 0 and _BARE_LF.search(self._received, fresh))
        ):
            self.send_400_response()
            return None
        self._searched = end - self._parsed if found < 0 else 0
        if found < 0:
            return None
        if self._received.count(b"\r\n", self._parsed, end) > MAX_HEADERS + 2:
            self.refuse(431, f"The request has more than {MAX_HEADERS} headers: send fewer.")
            return None
        if not _REQUEST_LINE.match(self._received, self._parsed):
            self.send_400_response()
            return None
        return end

    def _end_of_body(self) -> int:
        """Returns a position up to which everything belongs to this body."""
        if self._body_left is not None:
            end = min(len(self._received), self._parsed + self._body_left)
            self._body_left -= end - self._parsed
            return end
        found = self._received.find(_END, max(0, self._parsed - len(_END) + 1))
        end = len(self._received) if found < 0 else found + len(_END)
        return min(end, self._parsed + MAX_INCOMPLETE)

    # What the parser finds.

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reads_body:
            return  # a trailer, which may not change a request that was begun
        super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        is_old = self.parser.get_http_version() == "1.0"
        hosts = 0
        self._body_left = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                self._body_left = int(value)
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked":
                    _refuse_header("Transfer-Encoding")
                self._body_left = None
        if hosts > 1 or (hosts == 0 and not is_old):
            _refuse_header("Host")
        if is_old:
            self.expect_100_continue = False
        super().on_headers_complete()
        self._reads_body = True
        self._without_body = 0

    def on_body(self, body: bytes) -> None:
        self._without_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._reads_body = False
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = partial(_answer_without_chunks, app, cycle)
        super()._start_asgi_task(cycle, app)


def _refuse_header(name: str) -> Never:
    raise httptools.HttpParserError(f"{name} is missing, doubled or unknown")


async def _answer_without_chunks(
    app: ASGIApp, cycle: RequestResponseCycle, scope: Scope, receive: Receive, send: Send
) -> None:
    """Runs ``app`` for a client of HTTP/1.0, which knows no chunks: the connection ends an answer whose
    length is not announced."""
    is_announced = False

    async def whole(message: Message) -> None:
        nonlocal is_announced
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", [])}
            is_announced = b"content-length" in names
            if not is_announced:
                cycle.chunked_encoding = False
        elif message["type"] == "http.response.body" and not is_announced:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, whole)
