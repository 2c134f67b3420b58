"""The warehouse client that all other modules use: inserts rows and runs queries.

One client serves both kinds: a ClickHouse server and the embedded child speak the same HTTP subset
(``protocol.py``). ``insert`` is durable on return and waits forever for an unavailable warehouse: the backlog
stays in JetStream. It may store a row twice; the views show it once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from onward.clock import Clock, SystemClock
from onward.errors import WarehouseError, WarehouseRefusedError
from onward.files import read_secret
from onward.retry import Backoff
from onward.telemetry import logs
from onward.warehouse import protocol

if TYPE_CHECKING:
    from onward.config import Settings

_log = logs.get("warehouse")


@dataclass(frozen=True)
class Address:
    """Address of a warehouse. ``socket`` is a Unix domain socket; ``url`` then only names a host. An
    ``embedded`` one has the right settings and database from its start."""

    url: str
    socket: str | None = None
    embedded: bool = False


class _AwayError(Exception):
    """The warehouse did not answer, or reported that it cannot now. A retry makes sense."""


class _LimitError(_AwayError):
    """The statement needed more than the warehouse gives, now or always. A few retries make sense."""


class Warehouse:
    """Async client. ``locate`` is called again after a lost connection: an embedded child may move."""

    def __init__(
        self,
        locate: Callable[[], Address],
        *,
        user: str = "default",
        password: str = "",
        database: str = "rl",
        clock: Clock | None = None,
        query_patience: float = 10.0,
    ) -> None:
        self._locate = locate
        self._headers = {protocol.USER_HEADER: user, protocol.KEY_HEADER: password}
        self._database = protocol.identifier(database, "Database")
        self._clock: Clock = clock or SystemClock()
        self._query_patience = query_patience
        self._http: httpx.AsyncClient | None = None
        self._embedded = False
        self.found_damage = False
        """A statement failed at files that are damaged on the disk. The recovery puts them aside."""

    async def insert(
        self,
        table: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        token: str | None = None,
        patience: float | None = None,
    ) -> None:
        """Stores ``rows`` durably. Repeating it is harmless; with ``token`` an exact repeat costs nothing.

        Waits ``patience`` seconds (None: forever) for an unavailable warehouse. Raises WarehouseError if it
        refuses the rows or patience ends.
        """
        if not rows:
            return
        params = {"query": protocol.insert_statement(table, token)}
        await self._send(params, protocol.encode_rows(rows), patience)

    async def query(self, sql: str, **params: Any) -> list[dict[str, Any]]:
        """Returns rows as dicts. ``params`` bind ``{name:Type}``. Times are ISO 8601 text. Raises
        WarehouseError."""
        bound = {f"param_{name}": protocol.parameter(value) for name, value in params.items()}
        body = await self._send(bound, sql.encode(), self._query_patience)
        return protocol.decode_rows(body)

    async def command(self, sql: str, **params: Any) -> None:
        """Runs a statement without a result. Raises WarehouseError."""
        await self.query(sql, **params)

    async def ping(self) -> bool:
        """Returns whether the warehouse answers a query now. Never raises WarehouseError."""
        try:
            await self._send({}, b"SELECT 1", 0.0)
        except WarehouseError:
            return False
        return True

    async def check_alive(self) -> None:
        """Returns when the warehouse answers, even if it is busy with a long statement. Uses a connection of
        its own. Raises OSError or httpx.HTTPError otherwise."""
        async with self._open(self._locate()) as http:
            (await http.get(protocol.PING)).raise_for_status()

    async def create_schema(self) -> None:
        """Creates the missing database, tables and views. Safe to repeat."""
        script = Path(__file__).with_name("tables.sql").read_text(encoding="utf-8")
        await self._send({}, f"CREATE DATABASE IF NOT EXISTS {self._database}".encode(), 30.0, database="")
        for statement in script.split(";\n"):
            lines = [line for line in statement.splitlines() if not line.startswith("--")]
            if "".join(lines).strip():
                await self.command("\n".join(lines))

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def _send(
        self, params: Mapping[str, str], body: bytes, patience: float | None, database: str | None = None
    ) -> bytes:
        started = self._clock.monotonic()
        backoff, warned = Backoff(0.05, 5.0, jitter=0.5), False
        while True:
            try:
                return await self._once(params, body, self._database if database is None else database)
            except _AwayError as error:
                waited = self._clock.monotonic() - started
                if patience is not None and waited + backoff.pause > patience:
                    if isinstance(error, _LimitError):
                        raise WarehouseRefusedError(f"The warehouse refused a statement: {error}") from None
                    raise WarehouseError(
                        f"The warehouse is away ({error}): check that it runs and try again."
                    ) from None
                if not warned and waited > 1.0:
                    warned = True
                    _log.warning("warehouse away, waiting", cause=str(error))
            await self._clock.sleep(backoff.next())

    async def _once(self, params: Mapping[str, str], body: bytes, database: str) -> bytes:
        try:
            http = self._connected()
            fixed = {} if self._embedded else {**protocol.FIXED, "database": database or "default"}
            answer = await http.post("/", params={**fixed, **params}, content=body)
        except httpx.TransportError as error:
            await self.close()
            raise _AwayError(type(error).__name__) from error
        if answer.status_code == 200:
            return answer.content
        code = answer.headers.get(protocol.CODE_HEADER, "")
        if code in protocol.LIMIT_CODES:
            raise _LimitError(answer.text.strip()[:500] or f"code {code}")
        if answer.status_code in (502, 503, 504) or code in protocol.RETRYABLE_CODES:
            raise _AwayError(f"code {code or answer.status_code}")
        if answer.status_code in (401, 403):
            raise WarehouseRefusedError(
                "The warehouse refused the user or password: check [warehouse] of onward.toml."
            )
        if code in protocol.DAMAGE_CODES:
            self.found_damage = True
            raise WarehouseRefusedError(f"The warehouse met damaged files: {answer.text.strip()[:300]}")
        raise WarehouseRefusedError(f"The warehouse refused a statement: {answer.text.strip()[:500]}")

    def _connected(self) -> httpx.AsyncClient:
        if self._http is None:
            try:
                address = self._locate()
            except (OSError, ValueError, KeyError, TypeError) as error:  # not written yet, or damaged
                raise _AwayError(type(error).__name__) from error
            self._embedded = address.embedded
            self._http = self._open(address)
        return self._http

    def _open(self, address: Address) -> httpx.AsyncClient:
        # Without TLS there is nothing to verify, and reading the certificates takes 40 ms of each probe.
        verify = address.url.startswith("https")
        return httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=address.socket, verify=False) if address.socket else None,
            base_url=address.url,
            headers=self._headers,
            verify=verify,
            timeout=httpx.Timeout(120.0, connect=5.0),
            trust_env=False,
        )


async def connect(settings: Settings, *, clock: Clock | None = None) -> Warehouse:
    """Returns a client for the ClickHouse server of ``settings`` (missing tables are created), or for the
    embedded warehouse that another process has started in the same ``data_dir``.

    Raises WarehouseError if neither exists, or if the server is unavailable for 30 s.
    """
    options = settings.warehouse
    if options.url:
        address = Address(options.url)
        warehouse = Warehouse(
            lambda: address,
            user=options.user,
            password=options.password.get_secret_value(),
            database=options.database,
            clock=clock,
        )
        try:
            await warehouse.create_schema()
        except BaseException:
            await warehouse.close()
            raise
        return warehouse
    try:
        token = read_secret(
            settings.run_dir / protocol.TOKEN_FILE, "start 'onward up' again, which makes a new one"
        )
    except FileNotFoundError:
        raise WarehouseError(
            f"No warehouse has been started in {settings.data_dir}: run `onward up`, or set warehouse.url."
        ) from None
    return Warehouse(
        lambda: read_address(settings.run_dir), password=token, database=options.database, clock=clock
    )


def read_address(run_dir: Path) -> Address:
    """Reads the address of the embedded child. Raises OSError while the child has not published it, and
    ValueError, KeyError or TypeError for a damaged file, which the child writes at each start."""
    fields = json.loads((run_dir / protocol.ADDRESS_FILE).read_text(encoding="utf-8"))
    return Address(fields["url"], fields.get("socket"), embedded=True)
