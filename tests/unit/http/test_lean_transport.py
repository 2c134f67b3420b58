"""The lean transport of httpx beside a server that is written by hand, byte by byte."""

import asyncio
import gzip
from contextlib import asynccontextmanager

import httpx
import pytest

from onward.http.lean_transport import LeanTransport


class Said:
    """A server: for each request it got whole, the pieces of an answer; None closes the connection."""

    def __init__(self, *answers):
        self.answers, self.requests, self.connections, self.closed = list(answers), [], 0, 0

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                self.requests.append(head + await reader.readexactly(length))
                for piece in self.answers.pop(0):
                    if piece is None:
                        writer.close()
                        return
                    if isinstance(piece, asyncio.Event):
                        await piece.wait()
                    else:
                        writer.write(piece)
                        await asyncio.sleep(0)
        except asyncio.IncompleteReadError:
            self.closed += 1
        finally:
            writer.close()


@asynccontextmanager
async def client_of(said, **limits):
    server = await asyncio.start_server(said.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with httpx.AsyncClient(
        transport=LeanTransport(), base_url=url, timeout=httpx.Timeout(5, **limits)
    ) as one:
        yield one
    server.close()


ZIPPED = gzip.compress(b"hello")
CHUNK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\n\r\nhello"


async def test_a_connection_is_used_again_and_the_request_is_as_it_was_given():
    said = Said([SIZED], [SIZED[:20], SIZED[20:50], SIZED[50:]])
    async with client_of(said) as client:
        for body in ({"a": "ü"}, {"b": 1}):
            answer = await client.post("/v1/x?y=1", json=body, headers={"X-Key": "k"})
            assert (answer.status_code, answer.text, answer.headers["x-a"]) == (200, "hello", "1")
    assert said.connections == 1
    first = said.requests[0]
    assert first.startswith(b"POST /v1/x?y=1 HTTP/1.1\r\n") and b"\r\nX-Key: k\r\n" in first
    assert first.endswith('\r\n\r\n{"a":"ü"}'.encode()) and b"\r\nHost: 127.0.0.1:" in first


@pytest.mark.parametrize("answer", [
    [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n", b"3\r\nllo\r\n0\r\n\r\n"],
    [b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo", None],
    [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"],
    [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", SIZED],
    [b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", None],
    [b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(ZIPPED), ZIPPED],
])  # fmt: skip
async def test_every_form_of_a_body_is_read(answer):
    said = Said(answer, [SIZED])
    async with client_of(said) as client:
        for _ in range(2):
            found = await client.post("/", json={})
            assert (found.status_code, found.text) == (200, "hello")
    is_kept = (
        not any(mark in b"".join(filter(None, answer)) for mark in (b"close", b"1.0")) and None not in answer
    )
    assert said.connections == (1 if is_kept else 2)


async def test_a_stream_arrives_piece_by_piece_and_leaving_it_closes_the_connection():
    more = asyncio.Event()
    said = Said([CHUNK, more], [SIZED])
    async with client_of(said) as client:
        async with client.stream("POST", "/", json={}) as answer:
            assert await anext(answer.aiter_bytes()) == b"hello"
        more.set()
        assert (await client.post("/", json={})).text == "hello"
        assert said.connections == 2


@pytest.mark.parametrize(("answer", "error"), [
    ([None], httpx.RemoteProtocolError),
    ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", None], httpx.RemoteProtocolError),
    ([CHUNK, None], httpx.RemoteProtocolError),
    ([b"SSH-2.0-x\r\n\r\n"], httpx.RemoteProtocolError),
    ([asyncio.Event()], httpx.ReadTimeout),
])  # fmt: skip
async def test_faults_are_those_of_httpx(answer, error):
    said = Said(answer)
    async with client_of(said, read=0.2) as client:
        with pytest.raises(error):
            await client.post("/", json={})
        for piece in answer:
            if isinstance(piece, asyncio.Event):
                piece.set()


async def test_a_server_that_is_away_or_has_closed_an_idle_connection():
    async with httpx.AsyncClient(transport=LeanTransport()) as client:
        with pytest.raises(httpx.ConnectError):
            await client.post("http://127.0.0.1:9/", json={})
    said = Said([SIZED, None], [SIZED])
    async with client_of(said) as client:
        assert (await client.post("/", json={})).text == "hello"
        await asyncio.sleep(0.05)
        assert (await client.post("/", json={})).text == "hello"
    assert said.connections == 2


async def test_a_cancelled_call_closes_its_connection():
    said = Said([asyncio.Event()])
    async with client_of(said) as client:
        call = asyncio.create_task(client.post("/", json={}))
        while not said.requests:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert client._transport._idle.get(("http", "127.0.0.1", client.base_url.port), []) == []
        said.answers.append([])
