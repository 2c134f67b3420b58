import asyncio
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import Response

from onward.http import connections
from onward.http.app import ApiKeys, make_app
from onward.http.connections import most_connections
from onward.http.server import Server

HALF = b"GET /health HTTP/1.1\r\nHost: lo"


def _app() -> FastAPI:
    return make_app("test", keys=ApiKeys({}), ready=dict)


@pytest.fixture
async def served():
    """Starts servers, with the greatest number of connections; stops them at the end."""
    servers: list[Server] = []

    async def start(most: int = 100, app: FastAPI | None = None) -> Server:
        server = Server(app or _app(), "127.0.0.1", 0, max_connections=most)
        await server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.stop()


async def _open(server: Server, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(sent)
    await writer.drain()
    return reader, writer


async def _ended(reader: asyncio.StreamReader) -> bytes:
    """Returns what the server sent until it closed the connection."""
    async with asyncio.timeout(20):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def _status(server: Server) -> int:
    async with httpx.AsyncClient() as client:
        return (await client.get(f"{server.url}/health", timeout=20)).status_code


def _sentence(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["message"]


async def test_a_header_without_an_end_is_answered_408_and_closed(served, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    server = await served()
    reader, writer = await _open(server, HALF)
    assert _sentence(await _ended(reader)) == (
        408, "The request's header did not arrive within 0.2 seconds."
    )  # fmt: skip
    writer.close()


async def test_the_time_of_a_header_does_not_begin_anew_with_each_byte(served, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
    server, loop = await served(), asyncio.get_running_loop()
    # A plain socket: after the server closed, a stream would forget an answer that was not read yet.
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.setblocking(False)
        await loop.sock_sendall(client, HALF)
        answer = asyncio.ensure_future(loop.sock_recv(client, 65536))
        async with asyncio.timeout(20):
            while not answer.done():
                with suppress(ConnectionError):
                    await loop.sock_sendall(client, b"x")
                await asyncio.sleep(0.05)
    assert b"408" in await answer


async def test_the_second_header_of_a_connection_has_the_same_limit(served, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    server = await served()
    reader, writer = await _open(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b" 200 " in await reader.readline()
    await reader.readuntil(b'"test"}')
    writer.write(HALF)
    assert b"408" in await _ended(reader)
    writer.close()


async def test_a_connection_that_sends_nothing_is_closed_without_an_answer(served, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    server = await served()
    reader, writer = await _open(server)
    assert await _ended(reader) == b""
    writer.close()


async def test_a_request_that_cannot_be_read_is_answered_in_the_usual_shape(served):
    server = await served()
    for sent in (
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * (66 << 10),
    ):
        reader, writer = await _open(server, sent)
        status, sentence = _sentence(await _ended(reader))
        assert status == 400 and sentence.startswith("This is not a readable HTTP request"), sent[:20]
        writer.close()


async def test_half_open_connections_make_room_for_a_request(served):
    server = await served(most=8)
    half = [await _open(server, HALF) for _ in range(40)]
    assert await _status(server) == 200
    ends = [asyncio.ensure_future(_ended(reader)) for reader, _ in half]
    async with asyncio.timeout(20):
        while sum(end.done() for end in ends) < 32:
            await asyncio.sleep(0.01)
    assert await _status(server) == 200
    for end in ends:
        end.cancel()
    for _, writer in half:
        writer.close()


async def test_half_open_connections_that_come_all_at_once_do_not_stop_the_port(served, monkeypatch):
    """They wait in the kernel's queue, more than the port takes, before the first one is accepted."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 1e6)
    server = await served(most=8)
    half = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    for one in half:
        one.sendall(HALF)
    assert await _status(server) == 200
    for one in half:
        one.close()


async def test_connections_that_are_being_opened_count_once(served):
    """Else one between two requests would be closed although there is room."""
    server = await served(most=30)
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=1)) as client:
        assert (await client.get(f"{server.url}/health")).status_code == 200
        (kept,) = server._server.server_state.connections  # type: ignore[union-attr]
        more = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(29)]
        async with asyncio.timeout(20):
            while len(server._server.server_state.connections) < 30:  # type: ignore[union-attr]
                await asyncio.sleep(0)
        assert kept in server._server.server_state.connections  # type: ignore[union-attr]
    for one in more:
        one.close()


async def test_a_whole_request_before_a_flood_of_half_ones_is_answered(served):
    """All of them wait in the kernel's queue when the port begins to accept."""
    server = await served(most=8)
    whole = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
    for one in whole:
        one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    half = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(60)]
    for one in half:
        one.sendall(HALF)
    for one in whole:
        reader, writer = await asyncio.open_connection(sock=one)
        assert b" 200 " in (await _ended(reader)).partition(b"\r\n")[0]
        writer.close()
    for one in half:
        one.close()


async def test_a_half_open_connection_goes_before_one_between_two_requests(served):
    server = await served(most=8)
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=1)) as client:
        assert (await client.get(f"{server.url}/health")).status_code == 200
        (kept,) = server._server.server_state.connections  # type: ignore[union-attr]
        half = [await _open(server, HALF) for _ in range(30)]
        assert (await client.get(f"{server.url}/health")).status_code == 200
        assert kept in server._server.server_state.connections  # type: ignore[union-attr]
    for _, writer in half:
        writer.close()


async def test_a_call_that_is_being_answered_is_never_closed_and_a_further_one_waits(served):
    app, go, running = _app(), asyncio.Event(), asyncio.Semaphore(0)

    @app.get("/wait")
    async def wait() -> dict[str, bool]:
        running.release()
        await go.wait()
        return {"done": True}

    server = await served(most=8, app=app)
    async with httpx.AsyncClient(timeout=20) as client:
        calls = [asyncio.ensure_future(client.get(f"{server.url}/wait")) for _ in range(8)]
        for _ in calls:
            await running.acquire()
        further = asyncio.ensure_future(_status(server))
        await asyncio.sleep(0.2)
        assert not further.done()
        go.set()
        assert [call.status_code for call in await asyncio.gather(*calls)] == [200] * 8
        assert await further == 200


async def test_a_body_that_does_not_come_makes_room_too(served):
    server = await served(most=8)
    post = b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc"
    slow = [await _open(server, post) for _ in range(20)]
    assert await _status(server) == 200
    for _, writer in slow:
        writer.close()


async def test_a_client_that_reads_nothing_of_its_answer_is_cut_off(served, monkeypatch):
    monkeypatch.setattr(connections, "READ_SECONDS", 0.2)
    app = _app()

    @app.get("/large")
    async def large() -> Response:
        return Response(b"x" * (64 << 20))

    server = await served(app=app)
    _, writer = await _open(server, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await asyncio.sleep(0.1)
    async with asyncio.timeout(20):
        while server._server.server_state.connections:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
    writer.close()


def test_one_port_takes_at_most_a_quarter_of_the_descriptors(monkeypatch):
    for soft, most in ((500, 125), (1024, 256), (1_000_000, 512), (16, 8)):
        monkeypatch.setattr(connections.resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert most_connections(512) == most
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _: (-1, -1))
    assert most_connections(512) == 512


_FEW_DESCRIPTORS = """
import asyncio, resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
import httpx
from onward.http.app import ApiKeys, make_app
from onward.http.server import Server

async def main():
    servers = [Server(make_app(name, keys=ApiKeys({}), ready=dict), "127.0.0.1", 0) for name in "ab"]
    for server in servers:
        await server.start()
    print(*(server.port for server in servers), flush=True)
    while True:
        await asyncio.sleep(1)
        with open(__import__("os").devnull): pass

asyncio.run(main())
"""


async def test_600_half_open_requests_stop_neither_port_of_a_process_with_200_descriptors():
    child = subprocess.Popen(
        [sys.executable, "-c", _FEW_DESCRIPTORS], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        assert child.stdout is not None
        ports = [int(port) for port in child.stdout.readline().split()]
        half = []
        for port in ports:
            for _ in range(300):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(HALF)
                half.append(writer)
        async with httpx.AsyncClient(timeout=20) as client:
            for port in ports:
                assert (await client.get(f"http://127.0.0.1:{port}/health")).status_code == 200
        assert child.poll() is None
        for writer in half:
            writer.close()
    finally:
        child.terminate()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


class Wire:
    """A transport that notes what it is asked for."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.done.append(f"{len(data)} bytes" if len(data) > 20 else data.decode())

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.done.append("close")
        self.closing = True

    def abort(self) -> None:
        self.done.append("abort")
        self.closing = True


async def test_what_one_step_writes_is_sent_at_once_and_in_its_order():
    wire = Wire()
    joined = connections.JoinedTransport(wire, asyncio.get_running_loop())
    joined.write(b"head ")
    joined.write(b"body")
    assert wire.done == []
    await asyncio.sleep(0)
    joined.write(b"next")
    await asyncio.sleep(0)
    assert wire.done == ["head body", "next"]


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_what_is_written_leaves_before_the_connection_ends_and_nothing_after(end):
    """A connection may be ended to make room in the same step in which its answer became complete."""
    wire = Wire()
    joined = connections.JoinedTransport(wire, asyncio.get_running_loop())
    joined.write(b"answer")
    getattr(joined, end)()
    joined.write(b"late")
    await asyncio.sleep(0)
    assert wire.done == ["answer", end]


async def test_an_answer_written_without_a_pause_meets_the_flow_control_of_its_transport():
    wire = Wire()
    joined = connections.JoinedTransport(wire, asyncio.get_running_loop())
    for _ in range(3):
        joined.write(b"x" * (40 << 10))
    assert wire.done == ["81920 bytes"]  # two pieces exceed 64 KiB
    await asyncio.sleep(0)
    assert wire.done == ["81920 bytes", "40960 bytes"]
