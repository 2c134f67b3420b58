"""An OpenAI-compatible server that says what a script tells it: what client adapters are tested against."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """A body as it is: a JSON document, or the events of a stream. ``hold`` waits before the last piece."""

    documents: tuple[dict[str, Any], ...]
    hold: threading.Event | None = None
    status: int = 200


Script = Callable[[dict[str, Any]], dict[str, Any] | int | Reply]
"""From a request to the message that answers it, to an HTTP status, or to a whole body."""


def text(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def calls(*named: tuple[str, str, dict[str, Any]]) -> dict[str, Any]:
    """A message with tool calls: (id, name, arguments)."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": i, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for i, name, arguments in named
        ],
    }


class ChatServer:
    """``requests`` are the bodies that came, ``headers`` and ``paths`` theirs."""

    def __init__(self, script: Script, model: str = "scripted-1") -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.fetched: list[dict[str, Any] | int] = []
        """Documents, or HTTP statuses, that answer the next GET requests."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.requests.append(body)
                server.headers.append({k.lower(): v for k, v in self.headers.items()})
                server.paths.append(self.path)
                said = server.script(body)
                if isinstance(said, Reply):
                    self._reply(said, streams=bool(body.get("stream")))
                elif isinstance(said, int):
                    self._send(said, "application/json", b'{"error": {"message": "no"}}')
                elif body.get("stream"):
                    self._send(200, "text/event-stream", b"".join(_events(said)))
                else:
                    self._send(
                        200, "application/json", json.dumps(completion(said) | {"model": model}).encode()
                    )

            def _send(self, status: int, kind: str, data: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                document = server.fetched.pop(0)
                status = document if isinstance(document, int) else 200
                self._send(status, "application/json", json.dumps(document).encode())

            def _reply(self, reply: Reply, *, streams: bool) -> None:
                if not streams:
                    if reply.hold is not None:
                        reply.hold.wait(10)
                    with suppress(OSError):  # the client may have gone
                        body = json.dumps(reply.documents[0]).encode()
                        self._send(reply.status, "application/json", body)
                    return
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                for document in reply.documents[:-1]:
                    self.wfile.write(_event(document))
                self.wfile.flush()
                if reply.hold is not None:
                    reply.hold.wait(10)
                with suppress(OSError):
                    self.wfile.write(_event(reply.documents[-1]) + b"data: [DONE]\n\n")
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    @contextmanager
    def running(self) -> Iterator[ChatServer]:
        thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            self._http.server_close()


def completion(message: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted-1",
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(message)}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10},
    }


def _events(message: dict[str, Any]) -> Iterator[bytes]:
    """The message in small pieces, arguments of calls cut in the middle."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    words = message["content"] or ""
    deltas += [{"content": words[i : i + 3]} for i in range(0, len(words), 3)]
    for index, call in enumerate(message.get("tool_calls", ())):
        arguments = call["function"]["arguments"]
        middle = len(arguments) // 2
        named = {"name": call["function"]["name"], "arguments": ""}
        deltas.append(
            {"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": named}]}
        )
        for part in (arguments[:middle], arguments[middle:]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 0, "model": "scripted-1"}
    for delta in deltas:
        yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    end = {"index": 0, "delta": {}, "finish_reason": _finish(message)}
    yield _event({**head, "choices": [end], "usage": completion(message)["usage"]})
    yield b"data: [DONE]\n\n"


def _event(document: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()


def _finish(message: dict[str, Any]) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"
