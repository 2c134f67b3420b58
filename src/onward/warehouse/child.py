"""The chDB child: one engine on one data path, behind the HTTP subset of ``protocol.py``.

Only this process imports chdb. chDB runs one statement at a time here, on one thread: its parameters are
state of the connection, and a second query on a busy handle can return nothing. chDB also installs its own
signal handlers, so ours are set after the engine is open, and the engine is closed before the interpreter
ends (an open one crashes at exit).

    python -m onward.warehouse.child DATA_PATH RUN_DIR SOCKET|PORT DATABASE
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hmac
import json
import os
import re
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import uvicorn

from onward.files import write_whole
from onward.processes import die_with_parent
from onward.warehouse import protocol

MAX_BODY = 256 << 20
LOCK_WAIT_SECONDS = 15.0
"""Time limit for a predecessor to end; one whose parent was killed ends within a second or two."""
LONGEST_STATEMENT_SECONDS = 1800.0
"""Seconds after which a statement counts as stuck. Its client has given up long before."""
_CODE = re.compile(r"Code: (\d+)")


class Engine:
    """chDB on its own thread, which opens, uses and closes it."""

    def __init__(self, path: Path, database: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chdb")
        self._session: Any = None
        self._since: float | None = None
        self._thread.submit(self._open, path, database).result()

    async def run(self, sql: str, params: dict[str, str]) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._query, sql, params)

    @property
    def stuck(self) -> bool:
        """True while a statement runs for so long that it will never end."""
        since = self._since
        return since is not None and time.monotonic() - since > LONGEST_STATEMENT_SECONDS

    def close(self) -> None:
        self._thread.submit(self._session.close).result()
        self._thread.shutdown()

    def _open(self, path: Path, database: str) -> None:
        from chdb import session

        self._session = session.Session(str(path))
        self._session.query(f"CREATE DATABASE IF NOT EXISTS {database}")
        self._session.query(f"USE {database}")
        for name, value in protocol.SETTINGS.items():
            self._session.query(f"SET {name} = '{value}'")

    def _query(self, sql: str, params: dict[str, str]) -> bytes:
        self._since = time.monotonic()
        try:
            return self._session.query(sql, "JSONEachRow", params=params or None).bytes()
        finally:
            self._since = None


class Application:
    """The ASGI application: authenticates, reads one statement, runs it, answers."""

    def __init__(self, engine: Engine, token: str) -> None:
        self._engine = engine
        self._token = token.encode()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"unexpected {scope['type']} connection")
        status, headers, body = await self._answer(scope, receive)
        head = [(b"content-length", str(len(body)).encode()), *headers]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: dict[str, Any], receive: Any) -> tuple[int, list[Any], bytes]:
        given = dict(scope["headers"]).get(protocol.KEY_HEADER.encode(), b"")
        if not hmac.compare_digest(given, self._token):
            return 401, [], b"wrong key"
        if scope["path"] == protocol.PING:  # answered beside a statement that runs
            return (503, [], b"a statement is stuck") if self._engine.stuck else (200, [], b"Ok.\n")
        if scope["method"] != "POST" or scope["path"] != "/":
            return 404, [], b"only POST / is served"
        body = await _read(receive)
        if body is None:
            return 413, [], b"the body is too large"
        fields = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
        params = {name[6:]: value for name, value in fields.items() if name.startswith("param_")}
        unknown = sorted(set(fields) - {"query"} - {f"param_{name}" for name in params})
        if unknown:
            return 400, [], f"unknown URL parameter {unknown[0][:60]!r}".encode()
        try:
            text = body.decode()
            sql = f"{fields['query']}\n{text}" if "query" in fields else text
            return 200, [], await self._engine.run(sql, params)
        except UnicodeDecodeError:
            return 400, [], b"the body is not UTF-8"
        except Exception as error:  # chDB raises its own class and RuntimeError for a refused statement
            message = str(error)
            found = _CODE.search(message)
            code = found.group(1) if found else "0"
            return 500, [(protocol.CODE_HEADER.encode(), code.encode())], message.encode()


async def _read(receive: Any) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY:
            return None
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Replaces uvicorn's handlers, which raise the signal again after the stop: the engine closes first.

        Ctrl-C reaches the whole terminal group. The parent then still stores its last batch, and ends this
        process by SIGTERM when it is done.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop)
        yield

    def _stop(self) -> None:
        self.should_exit = True


def listen(where: str) -> socket.socket:
    """Opens a Unix socket (mode 0600) for a path, a loopback socket for a port number (0: any)."""
    if where.isdigit():
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", int(where)))
        except OSError:
            sock.bind(("127.0.0.1", 0))
        return sock
    Path(where).unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        sock.bind(where)
    finally:
        os.umask(mask)
    return sock


def hold_lock(path: Path, wait: float) -> int | None:
    """Locks ``path`` for the life of this process, waiting for a dying predecessor. None: in use."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(handle)
                return None
            time.sleep(0.05)


def publish_address(run_dir: Path, sock: socket.socket) -> None:
    if sock.family == socket.AF_UNIX:
        fields = {"url": "http://warehouse", "socket": sock.getsockname()}
    else:
        fields = {"url": f"http://127.0.0.1:{sock.getsockname()[1]}"}
    write_whole(run_dir / protocol.ADDRESS_FILE, json.dumps(fields).encode())


def main() -> int:
    data_path, run_dir, where, database = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(0.2)
    token = (run_dir / protocol.TOKEN_FILE).read_text(encoding="ascii").strip()
    data_path.mkdir(parents=True, exist_ok=True)
    wait = float(os.environ.get("ONWARD_TEST_LOCK_WAIT", LOCK_WAIT_SECONDS))
    lock = hold_lock(data_path.with_name(data_path.name + ".lock"), wait)
    if lock is None:
        return protocol.EXIT_IN_USE
    engine = Engine(data_path, protocol.identifier(database, "Database"))
    sock = listen(where)
    config = uvicorn.Config(
        Application(engine, token),
        log_level="warning",
        access_log=False,
        lifespan="off",
        http="h11",  # httptools would have no limit
        h11_max_incomplete_event_size=4 << 20,
        timeout_keep_alive=600,
        timeout_graceful_shutdown=30,
    )
    sock.listen(128)
    publish_address(run_dir, sock)
    print("ready", flush=True)  # noqa: T201 - the parent waits for this line
    asyncio.run(_Server(config).serve(sockets=[sock]))
    engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
