"""The lean transport of httpx beside a server that is written by hand, byte by byte."""

import asyncio
import gzip
import socket
import ssl
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

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


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def keeps_none_open(client):
    """Whether every idle connection is known to be unusable."""
    return not any(one.is_open for idle in client._transport._idle.values() for one in idle)


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
    ([b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc"], httpx.RemoteProtocolError),
    ([b"HTTP/1.1 200 OK\r\nX-A: ", *[b"a" * 30_000] * 5], httpx.RemoteProtocolError),
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
        await until(lambda: keeps_none_open(client))
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


@pytest.mark.parametrize("stray", [
    b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", b"xx", SIZED,
])  # fmt: skip
@pytest.mark.parametrize("is_at_once", [True, False])
async def test_what_comes_after_an_answer_is_not_read_as_the_next_one(stray, is_at_once):
    first = [SIZED + stray] if is_at_once else [SIZED, asyncio.Event(), stray]
    said = Said([*first, None], [b"HTTP/1.1 201 OK\r\nContent-Length: 0\r\n\r\n"])
    async with client_of(said) as client:
        answer = await client.post("/", json={})
        assert (answer.status_code, answer.text, answer.headers.get_list("x-a")) == (200, "hello", ["1"])
        if not is_at_once:
            first[1].set()
        await until(lambda: keeps_none_open(client))
        assert (await client.post("/", json={})).status_code == 201
    assert said.connections == 2


async def test_a_request_that_timed_out_does_not_reach_the_server_later():
    got = asyncio.Queue()

    async def slow(reader, writer):
        await asyncio.sleep(0.4)
        size = 0
        try:
            while data := await reader.read(1 << 20):
                size += len(data)
        except ConnectionError:
            pass
        got.put_nowait(size)
        writer.close()

    server = await asyncio.start_server(slow, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    body = b"x" * (64 << 20)
    async with httpx.AsyncClient(transport=LeanTransport(), timeout=httpx.Timeout(5, write=0.2)) as client:
        with pytest.raises(httpx.WriteTimeout):
            await client.post(url, content=body)
    assert await asyncio.wait_for(got.get(), 10) < len(body)
    server.close()


async def test_a_body_of_unknown_length_is_sent_with_its_length():
    async def pieces():
        yield b"ab"
        yield b"c"

    said = Said([SIZED])
    async with client_of(said) as client:
        await client.post("/", content=pieces())
    head, _, body = said.requests[0].partition(b"\r\n\r\n")
    assert body == b"abc" and b"\r\nContent-Length: 3" in head and b"transfer-encoding" not in head.lower()


@pytest.mark.parametrize("value", ["a\r\nX-B: 1", "a\nX-B: 1", "a\rb", "a\0b"])
async def test_a_header_cannot_become_two(value):
    said = Said([SIZED])
    async with client_of(said) as client:
        with pytest.raises(httpx.LocalProtocolError):
            await client.post("/", json={}, headers={"X-A": value})
    assert said.requests == []


async def test_an_answer_to_head_has_no_body():
    said = Said([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"], [SIZED])
    async with client_of(said) as client:
        answer = await client.head("/")
        assert (answer.headers["content-length"], answer.content) == ("5", b"")
        assert (await client.post("/", json={})).text == "hello"


async def test_old_idle_connections_are_closed(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("onward.http.lean_transport.monotonic", lambda: now[0])
    more = asyncio.Event()
    said = Said([more, SIZED], [more, SIZED], [SIZED])
    async with client_of(said) as client:
        both = [asyncio.create_task(client.post("/", json={})) for _ in range(2)]
        while len(said.requests) < 2:
            await asyncio.sleep(0.01)
        more.set()
        await asyncio.gather(*both)
        now[0] = 4.0
        await client.post("/", json={})  # takes one of the two
        assert said.connections == 2
        now[0] = 6.0
        said.answers.append([SIZED])
        await client.post("/", json={})
        await until(lambda: said.closed)
        assert (said.connections, said.closed) == (2, 1)


async def test_an_address_that_leads_nowhere_does_not_hold_up_the_next(monkeypatch):
    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting = [socket.socket() for _ in range(4)]
    for one in waiting:  # its queue is full: further connections wait
        one.setblocking(False)
        one.connect_ex(full.getsockname())
    said = Said([SIZED])
    async with client_of(said, connect=2.0) as client:
        good = ("127.0.0.1", client.base_url.port)

        async def both(*_, **__):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", at) for at in (full.getsockname(), good)]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
        assert (await client.post("http://two.example/", json={})).text == "hello"
    for one in (full, *waiting):
        one.close()


def certificate(folder, name):
    """Returns the file of a certificate for ``name`` that no authority has signed, with its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    own = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder(own, own, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, SHA256())
    )
    file = folder / f"{name}.pem"
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(secret + made.public_bytes(Encoding.PEM))
    return file


async def test_a_server_proves_its_name(tmp_path):
    """A stranger's key must not get the provider's key: neither unsigned, nor signed for another name."""
    transport, said = LeanTransport(), Said([SIZED], [SIZED])
    url = {}
    for name in ("localhost", "other.example"):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate(tmp_path, name))
        server = await asyncio.start_server(said.serve, "127.0.0.1", 0, ssl=context)
        url[name] = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(httpx.ConnectError, match="certificate"):
            await client.post(url["localhost"], json={})
        for name in url:
            transport._tls.load_verify_locations(tmp_path / f"{name}.pem")
        with pytest.raises(httpx.ConnectError, match="Hostname mismatch"):
            await client.post(url["other.example"], json={})
        assert said.requests == []
        for _ in range(2):
            assert (await client.post(url["localhost"], json={})).text == "hello"
    assert len(said.requests) == 2
