"""The subset of ClickHouse's HTTP interface that Onward uses, shared by the client and the child.

A request is ``POST /`` with the statement in the URL parameter ``query`` and the rows in the body, or with
the statement in the body; ``param_<name>`` binds ``{name:Type}``; the key is in the header
``X-ClickHouse-Key``. Errors carry ``X-ClickHouse-Exception-Code``. Values of parameters use ClickHouse's
tab-separated escapes, because both the server and chDB parse them that way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from onward.errors import WarehouseRefusedError

KEY_HEADER = "x-clickhouse-key"
PING = "/ping"
"""Path that answers while the engine is busy. Any other answer than 200 means that it will not recover."""
USER_HEADER = "x-clickhouse-user"
CODE_HEADER = "x-clickhouse-exception-code"

SETTINGS: dict[str, str] = {
    "date_time_input_format": "best_effort",
    "date_time_output_format": "iso",
    "output_format_json_quote_64bit_integers": "0",
    "input_format_skip_unknown_fields": "0",
    "max_partitions_per_insert_block": "0",
    "prefer_column_name_to_alias": "1",
}
"""Settings sent with every request to a server, and set once on the embedded engine. Partitions: a batch of
imported trajectories may span more than the default 100 days. Aliases: ``avg(x) AS x`` means the column."""

FIXED: dict[str, str] = {"default_format": "JSONEachRow", "wait_end_of_query": "1", **SETTINGS}
"""URL parameters for a server. Without ``wait_end_of_query`` a late error comes with status 200."""

RETRYABLE_CODES = frozenset({"159", "202", "209", "210", "241", "242", "243", "252", "425", "999"})
"""Errors worth a retry: timeout, queries, network, memory, read-only, space, parts, system, keeper."""

LIMIT_CODES = frozenset({"159", "241"})
"""Those of them that may mean the statement itself: it needs more time or memory than the server gives. One
that still fails so after all retries is refused."""

DAMAGE_CODES = frozenset({"32", "33", "40", "226", "228", "246", "271", "277"})
"""Errors of files that are damaged on the disk: ends too early, cannot be read, wrong checksum, a missing or
wrong file of a part, corrupted data, cannot be decompressed."""

ADDRESS_FILE = "warehouse.json"
TOKEN_FILE = "warehouse.token"
"""Files of the run folder, which the child writes and its clients read."""

EXIT_IN_USE = 3
"""Exit code of a child whose files another process uses."""

_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]{0,63}")


def identifier(name: str, what: str) -> str:
    """Returns ``name`` if it is a plain lower-case name, as all in SQL must be; else WarehouseError."""
    if not _IDENTIFIER.fullmatch(name):
        raise WarehouseRefusedError(
            f"{what} {name[:60]!r} is not a name: give lower-case letters, digits or '_'."
        )
    return name


def insert_statement(table: str, token: str | None) -> str:
    """Returns ``INSERT … FORMAT JSONEachRow``. A token makes an immediate repeat of the block a no-op."""
    identifier(table, "Table")
    settings = f" SETTINGS insert_deduplication_token = {_quoted(token)}" if token else ""
    return f"INSERT INTO {table}{settings} FORMAT JSONEachRow"


def encode_rows(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Encodes rows as JSON lines. Times become ISO 8601 in UTC with milliseconds. Raises WarehouseError for a
    value that JSON cannot carry (NaN, infinities, lone surrogates)."""
    try:
        return b"\n".join(
            json.dumps(
                row, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain
            ).encode()
            for row in rows
        )
    except (ValueError, TypeError) as error:
        raise WarehouseRefusedError(
            f"A row cannot be stored: {error}. Give finite numbers, text and times."
        ) from error


def decode_rows(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in body.split(b"\n") if line]


def parameter(value: Any) -> str:
    """Formats a bound value as ClickHouse parses it. Raises WarehouseError for unsupported types."""
    if isinstance(value, str):
        return _escaped(value)
    if value is None:
        return "\\N"
    if isinstance(value, (list, tuple, set, frozenset)):
        return "[" + ",".join(_element(item) for item in value) + "]"
    return _scalar(value)


def _element(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, datetime):
        return f"'{_scalar(value)}'"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{value.microsecond // 1000:03d}"
    raise WarehouseRefusedError(f"A query parameter of type {type(value).__name__} is not supported.")


_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\0": "\\0"})


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)


def _quoted(text: str) -> str:
    return "'" + _escaped(text).replace("'", "\\'") + "'"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    raise TypeError(f"a value of type {type(value).__name__} has no column form")
