"""Requests as raw bytes: what is read, what is refused and what waits."""

import asyncio
import json
import re
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from onward.http import connections
from onward.http.app import ApiKeys, make_app
from onward.http.server import Server

HOST = b"Host: localhost\r\n"
GET = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
BODY = b'{"a":1}'
CHUNKS = b"7\r\n" + BODY + b"\r\n0\r\n\r\n"


def post(headers: bytes = b"", body: bytes = b"", version: bytes = b"1.1") -> bytes:
    return b"POST /echo HTTP/" + version + b"\r\n" + HOST + headers + b"\r\n" + body


def get(line: bytes, headers: bytes = HOST) -> bytes:
    return line + b"\r\n" + headers + b"\r\n"


class Site:
    """An app that shows what reached it."""

    def __init__(self) -> None:
        self.go, self.running = asyncio.Event(), asyncio.Event()
        self.calls: list[str] = []
        self.app = make_app("test", keys=ApiKeys({}), ready=dict)
        self._add_paths(self.app)
        self.server = Server(self.app, "127.0.0.1", 0)

    def _add_paths(self, app: FastAPI) -> None:
        @app.post("/echo")
        async def echo(request: Request) -> dict[str, object]:
            self.calls.append("echo")
            body = await request.body()
            return {"body": body.decode(), "headers": dict(request.headers), "path": request.url.path}

        @app.get("/wait/{name}")
        async def wait(name: str) -> dict[str, str]:
            self.calls.append(name)
            self.running.set()
            await self.go.wait()
            return {"name": name}

        @app.get("/stream")
        async def stream() -> StreamingResponse:
            async def pieces():
                yield b"ab"
                yield b"cd"

            return StreamingResponse(pieces())


@pytest.fixture
async def site():
    made = Site()
    await made.server.start()
    yield made
    made.go.set()
    await made.server.stop()


async def _until_closed(site: Site, *parts: bytes) -> bytes:
    """Sends ``parts`` one by one; returns all that comes until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
    got = b""
    async with asyncio.timeout(20):
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.001 if len(parts) > 2 else 0)
        while piece := await reader.read(65536):
            got += piece
    writer.close()
    return got


async def _answers(site: Site, *parts: bytes) -> list[tuple[int, bytes]]:
    """Returns status and body of each answer. A last request closes the connection."""
    end = get(b"GET /health HTTP/1.1", HOST + b"Connection: close\r\n")
    return _read(await _until_closed(site, *parts, end))[:-1]


def _connection(site: Site) -> Any:
    (one,) = site.server._server.server_state.connections  # type: ignore[union-attr]
    return one


def _read(got: bytes) -> list[tuple[int, bytes]]:
    found = []
    while got:
        head, _, got = got.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if status != 100:
            match = re.search(rb"(?i)content-length: (\d+)", head)
            assert match is not None
            found.append((status, got[: int(match[1])]))
            got = got[int(match[1]) :]
    return found


async def _is_refused(site: Site, *parts: bytes, status: int = 400, what: object = "") -> None:
    got = _read(await _until_closed(site, *parts))
    assert [found for found, _ in got] == [status], what
    assert json.loads(got[0][1])["error"]["type"] == "invalid_request_error", what


SMUGGLED = {
    "length and chunks": post(CHUNKED + b"Content-Length: 3\r\n", CHUNKS),
    "chunks and length": post(b"Content-Length: 3\r\n" + CHUNKED, CHUNKS),
    "two lengths": post(b"Content-Length: 7\r\nContent-Length: 8\r\n", BODY),
    "one length twice": post(b"Content-Length: 7\r\n" * 2, BODY),
    "list of lengths": post(b"Content-Length: 7, 7\r\n", BODY),
    "length +7": post(b"Content-Length: +7\r\n", BODY),
    "length -7": post(b"Content-Length: -7\r\n", BODY),
    "length 0x7": post(b"Content-Length: 0x7\r\n", BODY),
    "length 0_7": post(b"Content-Length: 0_7\r\n", BODY),
    "length 7 8": post(b"Content-Length: 7 8\r\n", BODY),
    "length empty": post(b"Content-Length:\r\n", BODY),
    "length beyond 64 bits": post(b"Content-Length: 99999999999999999999999\r\n", BODY),
    "gzip": post(b"Transfer-Encoding: gzip\r\n", CHUNKS),
    "gzip, chunked": post(b"Transfer-Encoding: gzip, chunked\r\n", CHUNKS),
    "chunked, gzip": post(b"Transfer-Encoding: chunked, gzip\r\n", CHUNKS),
    "chunked twice": post(CHUNKED + CHUNKED, CHUNKS),
    "xchunked": post(b"Transfer-Encoding: xchunked\r\n", CHUNKS),
    "identity": post(b"Transfer-Encoding: identity\r\nContent-Length: 7\r\n", BODY),
    "no coding": post(b"Transfer-Encoding:\r\nContent-Length: 7\r\n", BODY),
    "vertical tab before chunked": post(b"Transfer-Encoding: \x0bchunked\r\n", CHUNKS),
    "space before the colon": post(b"Content-Length : 7\r\n", BODY),
    "space in a name": post(b"Content Length: 7\r\n", BODY),
    "no name": post(b": 7\r\n"),
    "no colon": post(b"x\r\n"),
    "name beyond ASCII": post(b"x\xff: y\r\n"),
    "NUL": post(b"x: a\0b\r\n"),
    "control character": post(b"x: a\x01b\r\n"),
    "bare LF throughout": GET.replace(b"\r\n", b"\n"),
    "bare LF in a header": get(b"GET /health HTTP/1.1", b"X: a\n" + HOST),
    "bare LF at the end": GET[:-2] + b"\n",
    "bare CR in a header": get(b"GET /health HTTP/1.1", b"X: a\rY: b\r\n" + HOST),
    "folded header": get(b"GET /health HTTP/1.1", HOST + b"X: a\r\n b\r\n"),
    "folded first header": get(b"GET /health HTTP/1.1", b" X: a\r\n" + HOST),
    "no host": get(b"GET /health HTTP/1.1", b""),
    "two hosts": get(b"GET /health HTTP/1.1", HOST + HOST),
    "bare LF in an upgrade": get(
        b"GET /health HTTP/1.1", HOST + b"Connection: upgrade\r\nUpgrade: h2c\nX: y\r\n"
    ),
}


async def test_a_header_that_two_servers_may_read_in_two_ways_is_refused(site):
    for name, sent in SMUGGLED.items():
        await _is_refused(site, sent, what=name)
    assert site.calls == []


LINES = [
    b"GET http://localhost/health HTTP/1.1",
    b"GET http://evil.example/health HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"CONNECT localhost:80 HTTP/1.1",
    b"CONNECT /health HTTP/1.1",
    b"GET health HTTP/1.1",
    b"GET ?health HTTP/1.1",
    b"GET /health#x HTTP/1.1",
    b"GET /he\talth HTTP/1.1",
    b"GET /he\x7falth HTTP/1.1",
    b"GET /\xff HTTP/1.1",
    b"GET  /health HTTP/1.1",
    b"GET /health  HTTP/1.1",
    b"GET /he alth HTTP/1.1",
    b" GET /health HTTP/1.1",
    b"\r\nGET /health HTTP/1.1",
    b"GET /health",
    b"GET /health HTTP/0.9",
    b"GET /health HTTP/1.2",
    b"GET /health HTTP/1.10",
    b"GET /health HTTP/2.0",
    b"PRI * HTTP/2.0",
    b"GET /health RTSP/1.0",
    b"SOURCE /health ICE/1.0",
    b"GET /health http/1.1",
    b"get /health HTTP/1.1",
    b"NONSENSE /health HTTP/1.1",
]


async def test_a_request_line_in_another_form_is_refused(site):
    for line in LINES:
        await _is_refused(site, get(line), what=line)


async def test_bytes_that_begin_no_header_are_refused_before_its_time_is_over(site, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 1e6)
    for sent in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET /health HTTP/1.1\nHost", b"\n"):
        await _is_refused(site, sent, what=sent)


BROKEN_SIZES = b"0x7|+7|-7|7 ||g|fffffffffffffffff|7;a\nb|7;a\rb|7 ;a".split(b"|")


async def test_a_chunk_with_another_size_is_refused(site):
    for size in (*(size + b"\r\n" for size in BROKEN_SIZES), b"7\n"):
        await _is_refused(site, post(CHUNKED, size + BODY + b"\r\n0\r\n\r\n"), what=size)


async def test_a_chunk_that_does_not_end_where_its_size_says_is_refused(site):
    for end in (b"\n0\r\n\r\n", b"xx0\r\n\r\n", b"8\r\n0\r\n\r\n"):
        await _is_refused(site, post(CHUNKED, b"7\r\n" + BODY + end), what=end)


async def test_a_trailer_that_no_header_could_be_is_refused(site):
    for trailer in (b"X : y\r\n", b"X: y\n", b" X: y\r\n", b"Content-Length: 3\r\n", CHUNKED):
        await _is_refused(site, post(CHUNKED, CHUNKS[:-2] + trailer + b"\r\n"), what=trailer)


async def test_a_trailer_changes_no_header(site):
    trailer = b"Authorization: Bearer x\r\nHost: evil.example\r\nX-New: 1\r\n"
    ((status, body),) = await _answers(site, post(CHUNKED + b"X: a\r\n", CHUNKS[:-2] + trailer + b"\r\n"))
    shown = json.loads(body)
    assert status == 200 and shown["body"] == BODY.decode()
    assert shown["headers"].items() >= {"host": "localhost", "x": "a"}.items()
    assert not {"authorization", "x-new"} & shown["headers"].keys()


ENDLESS = {
    "header": b"GET /health HTTP/1.1\r\nX: " + b"a" * (65 << 10),
    "target": b"GET /" + b"a" * (65 << 10),
    "whole header": get(b"GET /health HTTP/1.1", HOST + b"X: " + b"a" * (65 << 10) + b"\r\n"),
    "extension": post(CHUNKED, b"7;" + b"a" * (65 << 10)),
    "size": post(CHUNKED, b"0" * (65 << 10)),
    "trailer": post(CHUNKED, CHUNKS[:-2] + b"X: " + b"a" * (129 << 10)),
    "trailers": post(CHUNKED, CHUNKS[:-2] + b"X: a\r\n" * (26 << 10)),
}


async def test_what_has_no_end_is_refused_at_its_limit(site, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 1e6)
    for name, sent in ENDLESS.items():
        await _is_refused(site, sent, what=name)


async def test_a_header_that_arrives_in_pieces_has_the_same_limit(site, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 1e6)
    await _is_refused(site, b"GET /health HTTP/1.1\r\nX: ", *[b"a" * 8192] * 8)


async def test_200_headers_are_taken_and_more_are_refused(site):
    assert [
        each[0] for each in await _answers(site, get(b"GET /health HTTP/1.1", HOST + b"x: y\r\n" * 199))
    ] == [200]
    await _is_refused(site, get(b"GET /health HTTP/1.1", HOST + b"x: y\r\n" * 200), status=431)


WHOLE = [
    post(b"Content-Length: 7\r\n", BODY),
    post(b"content-length: 7 \t\r\n", BODY),
    post(CHUNKED, CHUNKS),
    post(b"transfer-encoding:CHUNKED \r\n", CHUNKS),
    post(CHUNKED, b'3;a=b;c="d;e"\r\n{"a\r\n04\r\n":1}\r\n000;x\r\n\r\n'),
]


async def test_a_body_is_read_to_its_end_however_it_arrives(site):
    for sent in WHOLE:
        for parts in ([sent], [sent[at : at + 1] for at in range(len(sent))]):
            found = await _answers(site, *parts)
            assert [(status, json.loads(body)["body"]) for status, body in found] == [(200, BODY.decode())]


async def test_a_chunked_body_may_contain_what_ends_one(site):
    content = b"a\r\n\r\n0\r\n\r\nGET /wait/x HTTP/1.1\r\n\r\n"
    sent = post(CHUNKED, b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content))
    for cut in range(0, len(sent), 4):
        ((status, body),) = await _answers(site, sent[:cut], sent[cut:])
        assert (status, json.loads(body)["body"]) == (200, content.decode())
    assert set(site.calls) == {"echo"}


async def test_requests_that_arrive_together_are_answered_in_their_order(site):
    for first in (GET, post(b"Content-Length: 7\r\n", BODY), post(CHUNKED, CHUNKS)):
        found = await _answers(site, first + post(b"Content-Length: 2\r\n", b"{}") + first)
        assert [status for status, _ in found] == [200, 200, 200]
        assert json.loads(found[1][1])["body"] == "{}"


async def test_a_further_request_is_not_begun_before_the_first_is_answered(site):
    first, second = (get(b"GET /wait/%b HTTP/1.1" % name) for name in (b"a", b"b"))
    task = asyncio.ensure_future(_answers(site, first + second + b"nonsense\r\n\r\n"))
    await site.running.wait()
    one = _connection(site)
    assert site.calls == ["a"] and not one.is_idle and not one.sends_body
    site.go.set()
    task.cancel()


async def test_what_follows_in_no_readable_form_is_refused_after_the_answer(site):
    site.go.set()
    found = _read(await _until_closed(site, get(b"GET /wait/a HTTP/1.1") + b"nonsense\r\n\r\n"))
    assert [status for status, _ in found] == [200, 400]
    assert json.loads(found[0][1]) == {"name": "a"}


async def test_a_flood_of_requests_that_follow_is_held_by_the_kernel(site):
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
    writer.write(get(b"GET /wait/a HTTP/1.1"))
    await site.running.wait()
    for _ in range(40):
        writer.write(GET * 2000)
    one = _connection(site)
    for _ in range(20):
        await asyncio.sleep(0.005)
    assert len(one._received) <= 1 << 19
    assert site.calls == ["a"]
    writer.transport.abort()
    del reader


async def test_a_connection_that_waits_holds_no_bytes_of_its_last_request(site):
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
    writer.write(post(b"Content-Length: 200000\r\n", b"x" * 200_000))
    await reader.readuntil(b"\r\n\r\n")
    one = _connection(site)
    assert len(one._received) < 4
    writer.close()


async def test_a_header_that_begins_behind_a_request_has_its_limit_too(site, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    found = _read(await _until_closed(site, GET + GET[:20]))
    assert [status for status, _ in found] == [200, 408]


async def test_the_rest_of_a_body_is_skipped_if_the_answer_came_before_it(site):
    """413 is known from the header; the connection is kept."""
    size = (1 << 20) + 1
    body = GET * (size // len(GET)) + b"x" * (size % len(GET))
    head = post(b"Content-Length: %d\r\n" % size)
    assert [each[0] for each in await _answers(site, head, body[:1000], body[1000:])] == [413]


UPGRADES = [
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n",
    b"UPGRADE: h2c\r\nCONNECTION: keep-alive, UPGRADE\r\n",
]


async def test_a_wish_for_another_protocol_is_ignored_and_the_body_is_read(site):
    """Java's client sends h2c with its first request. llhttp would skip the body, or read it as a request."""
    for headers in UPGRADES:
        for length, body in ((b"Content-Length: 7\r\n", BODY), (CHUNKED, CHUNKS)):
            found = await _answers(site, post(headers + length, body) + GET)
            assert [status for status, _ in found] == [200, 200], headers
            assert json.loads(found[0][1])["body"] == BODY.decode(), headers


async def test_a_client_that_waits_for_100_continue_gets_it_before_it_sends_its_body(site):
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
    async with asyncio.timeout(20):
        writer.write(post(b"Expect: 100-continue\r\nContent-Length: 7\r\n"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        assert b" 200 " in await reader.readline()
    writer.close()


async def test_old_clients_get_no_100_continue_no_chunks_and_a_closed_connection(site):
    """HTTP/1.0 has none of them."""
    for line in (b"GET /stream HTTP/1.0", b"GET /health HTTP/1.0"):
        got = await _until_closed(site, get(line, HOST + b"Connection: keep-alive\r\n"))
        head, _, body = got.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower() and b"connection: close" in head.lower()
        assert body == (b"abcd" if b"stream" in line else b'{"status":"ok","service":"test"}')
    got = await _until_closed(site, post(b"Expect: 100-continue\r\nContent-Length: 7\r\n", BODY, b"1.0"))
    assert [status for status, _ in _read(got)] == [200] and b" 100 " not in got.partition(b"\r\n")[0]


async def test_an_answer_without_a_length_has_chunks_for_a_current_client(site):
    got = await _until_closed(site, get(b"GET /stream HTTP/1.1", HOST + b"Connection: close\r\n"))
    head, _, body = got.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    assert body == b"2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n"


async def test_the_answer_to_head_has_no_body(site):
    @site.app.head("/health")
    async def head() -> dict[str, str]:
        return {"status": "ok"}

    sent = get(b"HEAD /health HTTP/1.1") + get(b"HEAD /health HTTP/1.1", HOST + b"Connection: close\r\n")
    got = await _until_closed(site, sent)
    assert got.count(b"HTTP/1.1 200 OK") == 2 and b"status" not in got.replace(b"HTTP/1.1 200 OK", b"")


async def test_nothing_is_read_behind_a_request_that_closes(site):
    for close in (b"close", b"x, Close"):
        sent = get(b"GET /health HTTP/1.1", HOST + b"Connection: " + close + b"\r\n")
        got = await _until_closed(site, sent + post(b"Content-Length: 7\r\n", BODY))
        assert [status for status, _ in _read(got)] == [200]
    assert site.calls == []


async def test_a_connection_that_its_client_has_closed_to_one_side_is_closed(site):
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
    writer.write(get(b"GET /wait/a HTTP/1.1"))
    await site.running.wait()
    writer.write_eof()
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    assert not site.server._server.server_state.connections  # type: ignore[union-attr]
    writer.close()
