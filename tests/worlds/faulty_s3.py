"""An S3 server in memory that fails as it is told: 503, slow, an answer that is lost, a list that lags."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

Fault = Callable[[str, str, int], str | None]
"""(method, key with its query, requests of the same before) → "503", "403", "slow", "lost" or None."""


class FaultyS3:
    """``objects`` is what is really stored. ``fault`` decides on each request."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.fault: Fault = lambda method, key, before: None
        self.asked: Counter[tuple[str, str]] = Counter()
        self.hidden: set[str] = set()
        """Keys that lists do not show yet."""
        self.lock = threading.Lock()
        self.url = ""

    def handle(
        self, method: str, target: str, headers: Any, body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        """Carries out one request on what is stored; returns status, body and headers."""
        parts = urlsplit(target)
        query = parse_qs(parts.query, keep_blank_values=True)
        key = unquote(parts.path).removeprefix("/bucket").lstrip("/")
        with self.lock:
            if method == "GET" and "list-type" in query:
                return 200, self._list(query.get("prefix", [""])[0]), {}
            if method == "POST" and "uploads" in query:
                upload = f"u{len(self.parts)}"
                self.parts[upload] = {}
                return 200, f"<R><UploadId>{upload}</UploadId></R>".encode(), {}
            if "uploadId" in query:
                return self._multipart(method, key, query, body)
            if method == "PUT":
                if headers.get("If-None-Match") == "*" and key in self.objects:
                    return 412, b"", {}
                self.objects[key] = body
                return 200, b"", {"ETag": _tag(body)}
            if method == "DELETE":
                self.objects.pop(key, None)
                return 204, b"", {}
            if key not in self.objects:
                return 404, b"", {}
            found = self.objects[key]
            stamp = {"ETag": _tag(found), "Last-Modified": "Mon, 05 Jan 2026 09:00:00 GMT"}
            return 200, found, stamp

    def _multipart(self, method: str, key: str, query: Any, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        upload = query["uploadId"][0]
        if method == "PUT":
            self.parts[upload][int(query["partNumber"][0])] = body
            return 200, b"", {"ETag": _tag(body)}
        if method == "DELETE":
            self.parts.pop(upload, None)
            return 204, b"", {}
        whole = self.parts.pop(upload)
        self.objects[key] = b"".join(whole[number] for number in sorted(whole))
        return 200, f"<R><ETag>{escape(_tag(self.objects[key]))}</ETag></R>".encode(), {}

    def _list(self, prefix: str) -> bytes:
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-05T09:00:00.000Z</LastModified>"
            f"<ETag>{escape(_tag(body))}</ETag><Size>{len(body)}</Size></Contents>"
            for key, body in sorted(self.objects.items())
            if key.startswith(prefix) and key not in self.hidden
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()


def _tag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


@contextmanager
def faulty_s3() -> Iterator[FaultyS3]:
    store = FaultyS3()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            key = unquote(self.path).removeprefix("/bucket/")
            before = store.asked[self.command, key]
            store.asked[self.command, key] += 1
            fault = store.fault(self.command, key, before)
            if fault == "slow":
                time.sleep(0.5)
            if fault in ("503", "403"):
                return self._send(int(fault), b"<Error><Code>SlowDown</Code></Error>", {})
            status, answer, headers = store.handle(self.command, self.path, self.headers, body)
            if fault == "lost":
                self.close_connection = True
                return self.connection.close()
            self._send(status, answer, headers)

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _answer

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    store.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
