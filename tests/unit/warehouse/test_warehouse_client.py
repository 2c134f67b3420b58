"""The client against a server that answers as ClickHouse does over HTTP, and its encodings."""

import asyncio
import socket
from datetime import UTC, datetime
from urllib.parse import parse_qs

import pytest
import uvicorn

from onward.clock import SystemClock
from onward.config import load
from onward.errors import RefusedError, WarehouseError
from onward.warehouse import Warehouse, connect, protocol
from onward.warehouse.client import Address


class FakeServer:
    """Keeps what it was asked; answers from ``script`` (status, headers, body), then 200."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, str], dict[str, str], bytes]] = []
        self.script: list[tuple[int, list, bytes]] = []

    async def __call__(self, scope, receive, send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        query = {k: v[0] for k, v in parse_qs(scope["query_string"].decode(), keep_blank_values=True).items()}
        headers = {k.decode(): v.decode() for k, v in scope["headers"]}
        self.asked.append((query, headers, body))
        status, more, answer = self.script.pop(0) if self.script else (200, [], b'{"n":1}\n')
        await send({"type": "http.response.start", "status": status, "headers": more})
        await send({"type": "http.response.body", "body": answer})


@pytest.fixture
async def server():
    fake = FakeServer()
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    runner = uvicorn.Server(uvicorn.Config(fake, log_level="error", log_config=None, lifespan="off"))
    task = asyncio.create_task(runner.serve(sockets=[sock]))
    while not runner.started:
        await asyncio.sleep(0.01)
    fake.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    yield fake
    runner.should_exit = True
    await task


def refusal(code: int, text: bytes = b"Code: x. DB::Exception"):
    return (500, [(b"x-clickhouse-exception-code", str(code).encode())], text)


async def test_a_server_is_told_database_settings_user_and_key(server):
    settings = load(
        environ={},
        overrides={"warehouse": {"url": server.url, "user": "u", "password": "p", "database": "d"}},
    )
    warehouse = await connect(settings)
    created, first_table = server.asked[0], server.asked[1]
    assert created[2] == b"CREATE DATABASE IF NOT EXISTS d" and created[0]["database"] == "default"
    assert b"CREATE TABLE IF NOT EXISTS trajectories" in first_table[2] and first_table[0]["database"] == "d"
    assert await warehouse.query("SELECT {a:String}", a="tab\t") == [{"n": 1}]
    query, headers, body = server.asked[-1]
    assert query["param_a"] == "tab\\t" and body == b"SELECT {a:String}"
    assert query["default_format"] == "JSONEachRow" and query["wait_end_of_query"] == "1"
    assert query["date_time_input_format"] == "best_effort"
    assert (headers["x-clickhouse-user"], headers["x-clickhouse-key"]) == ("u", "p")
    await warehouse.insert("rewards", [{"a": 1}, {"a": 2}], token="t'1")
    query, _, body = server.asked[-1]
    assert query["query"] == (
        "INSERT INTO rewards SETTINGS insert_deduplication_token = 't\\'1' FORMAT JSONEachRow"
    )
    assert body == b'{"a":1}\n{"a":2}'
    await warehouse.close()


async def test_an_insert_waits_for_a_server_that_cannot_now_and_a_refusal_is_final(server):
    warehouse = Warehouse(lambda: Address(server.url))
    server.script = [refusal(252), (503, [], b"busy"), refusal(241)]
    await warehouse.insert("rewards", [{"a": 1}])
    assert len(server.asked) == 4
    server.script = [refusal(117, b"Code: 117. DB::Exception: Unknown field")]
    with pytest.raises(WarehouseError, match="Unknown field"):
        await warehouse.insert("rewards", [{"a": 1}])
    server.script = [(401, [], b"")]
    with pytest.raises(WarehouseError, match="user or password"):
        await warehouse.query("SELECT 1")
    await warehouse.insert("rewards", [])
    assert len(server.asked) == 6
    await warehouse.close()


async def test_patience_ends_in_one_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        warehouse = Warehouse(lambda: Address(url), query_patience=0.2, clock=SystemClock())
        with pytest.raises(WarehouseError, match="is away"):
            await warehouse.query("SELECT 1")
        with pytest.raises(WarehouseError, match="is away"):
            await warehouse.insert("rewards", [{"a": 1}], patience=0.1)
        with pytest.raises(WarehouseError) as raised:
            await warehouse.query("SELECT 1")
        assert not isinstance(raised.value, RefusedError)
        assert not await warehouse.ping()


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (refusal(62, b"Code: 62. DB::Exception: Syntax error"), True),
        (refusal(47, b"Code: 47. DB::Exception: Missing columns"), True),
        (refusal(40, b"Code: 40. DB::Exception: Checksum doesn't match"), True),
        (refusal(241, b"Code: 241. DB::Exception: Memory limit exceeded"), True),
        (refusal(159, b"Code: 159. DB::Exception: Timeout exceeded"), True),
        ((401, [], b""), True),
        ((503, [], b"busy"), False),
        (refusal(202, b"Code: 202. DB::Exception: Too many simultaneous queries"), False),
    ],
    ids=["syntax", "column", "damage", "memory", "time", "login", "busy", "queries"],
)
async def test_a_refusal_is_told_from_a_warehouse_that_is_away(server, answer, refused):
    warehouse = Warehouse(lambda: Address(server.url), query_patience=0.1)
    server.script = [answer] * 20
    with pytest.raises(WarehouseError) as raised:
        await warehouse.query("SELECT 1")
    assert isinstance(raised.value, RefusedError) is refused
    if refused:
        assert answer[2].decode() in str(raised.value)
    await warehouse.close()


async def test_attaching_where_nothing_was_started_is_one_sentence(tmp_path):
    with pytest.raises(WarehouseError, match="onward up"):
        await connect(load(environ={}, overrides={"data_dir": str(tmp_path)}))


@pytest.mark.parametrize(
    "value, text",
    [
        ("a\\b\n\t\r\0'", "a\\\\b\\n\\t\\r\\0'"),
        (None, "\\N"),
        (True, "1"),
        (3, "3"),
        (0.1, "0.1"),
        (datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), "2026-01-02 03:04:05.678"),
        (["a'b", "c\\"], "['a\\'b','c\\\\']"),
        ([1, 2.5], "[1,2.5]"),
        ([], "[]"),
    ],
)
def test_parameters_use_the_servers_escapes(value, text):
    assert protocol.parameter(value) == text


def test_rows_and_names():
    when = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    assert protocol.encode_rows([{"a": "é\n", "t": when}, {"a": None}]) == (
        '{"a":"é\\n","t":"2026-01-02T03:04:05.678Z"}\n{"a":null}'.encode()
    )
    assert protocol.decode_rows(b'{"a":"x\xc2\x85y"}\n\n{"a":2}\n') == [{"a": "x\x85y"}, {"a": 2}]
    for bad in ({"a": float("inf")}, {"a": b"x"}, {"a": "\udfff"}):
        with pytest.raises(WarehouseError, match="cannot be stored"):
            protocol.encode_rows([bad])
    for name in ("A", "a b", "a;b", "", "1a", "rl.x"):
        with pytest.raises(WarehouseError, match="not a name"):
            protocol.identifier(name, "Table")
