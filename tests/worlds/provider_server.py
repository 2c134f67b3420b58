"""A provider that says what a script tells it, with any status and headers, for tests of the proxy."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Said:
    """An answer: a JSON object, or the events of a stream; ``cut`` breaks the connection after them."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    hold: threading.Event | None = None


class ProviderServer:
    """``requests`` are (path, headers, body) as they came."""

    def __init__(self, script: Callable[[dict[str, Any]], Said]) -> None:
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                said = script(body)
                if said.hold is not None:
                    said.hold.wait(10)
                with suppress(OSError):
                    self._send(said)

            def _send(self, said: Said) -> None:
                is_stream = isinstance(said.body, list)
                data = b"".join(said.body) if is_stream else json.dumps(said.body).encode()
                self.send_response(said.status)
                for name, value in said.headers.items():
                    self.send_header(name, value)
                self.send_header("content-type", "text/event-stream" if is_stream else "application/json")
                self.send_header("content-length", str(len(data) + (100 if said.cut else 0)))
                self.end_headers()
                self.wfile.write(data)
                self.close_connection = said.cut

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[ProviderServer]:
        thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            self._http.server_close()


def chunks(*documents: dict[str, Any]) -> list[bytes]:
    """The events of OpenAI's API."""
    return [*(f"data: {json.dumps(one)}\n\n".encode() for one in documents), b"data: [DONE]\n\n"]


def events(*documents: dict[str, Any]) -> list[bytes]:
    """The events of Anthropic's API and of the responses API, named by their type."""
    return [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in documents]


def message(*content: dict[str, Any], reason: str = "end_turn") -> dict[str, Any]:
    """A message of Anthropic's API."""
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": list(content),
        "stop_reason": reason, "stop_sequence": None, "usage": {"input_tokens": 7, "output_tokens": 5},
    }  # fmt: skip


def message_events(text: str, use: dict[str, Any] | None = None) -> list[bytes]:
    """The stream of a message: its text, and a tool call whose arguments come in two pieces."""
    begun = message(reason="")
    documents: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**begun, "usage": {"input_tokens": 7, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
    ]
    if use is not None:
        arguments = json.dumps(use["input"])
        documents += [
            {"type": "content_block_start", "index": 1, "content_block": {**use, "input": {}}},
            *(
                {
                    "type": "content_block_delta",
                    "index": 1,
                    "delta": {"type": "input_json_delta", "partial_json": part},
                }
                for part in (arguments[:3], arguments[3:])
            ),
            {"type": "content_block_stop", "index": 1},
        ]
    reason = "end_turn" if use is None else "tool_use"
    documents += [
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 5},
        },
        {"type": "message_stop"},
    ]
    return events(*documents)
