"""Output files and folders of an export, written completely or not at all.

An existing path is refused unless it may be replaced. It is replaced only once the new one is complete.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from onward.errors import ConfigError
from onward.export import columns
from onward.files import check_file, open_whole, sync_folder

Put = Callable[[Mapping[str, Any]], None]
ROWS_AT_ONCE = 512
BYTES_AT_ONCE = 16 << 20
_DATASET_FILES = ("dataset_info.json", "state.json")


def check(path: Path, *, force: bool, folder: bool = False) -> None:
    """Raises ConfigError if ``path`` exists or cannot be written. The check leaves nothing behind."""
    if path.exists() and not force:
        raise ConfigError(f"{path} exists already: give another --out, or --force to replace it.")
    if folder:
        if path.exists() and not all((path / name).is_file() for name in _DATASET_FILES):
            raise ConfigError(
                f"{path} is no folder of 'datasets', so --force does not replace it: give another --out."
            )
        check_file(path.with_name(f".{path.name}.tmp"))
    elif path.is_dir():
        raise ConfigError(f"{path} is a folder: give the name of a file.")
    else:
        check_file(path)


@contextmanager
def json_lines(path: Path) -> Iterator[Put]:
    """Writes one JSON document per line. Like the store, only its owner can read the file."""
    with open_whole(path, 0o600) as out:
        yield lambda document: _line(out, document)


@contextmanager
def parquet(path: Path, kinds: Mapping[str, str] = columns.COLUMNS) -> Iterator[Put]:
    """Writes rows with columns of these kinds (those of ``columns.row``), compressed with zstd."""
    import pyarrow
    import pyarrow.parquet

    schema = columns.arrow_schema(kinds)
    with (
        open_whole(path, 0o600) as out,
        pyarrow.parquet.ParquetWriter(out, schema, compression="zstd") as writer,
        _batches(lambda rows: writer.write_table(pyarrow.Table.from_pylist(rows, schema))) as put,
    ):
        yield put


@contextmanager
def dataset(path: Path, kinds: Mapping[str, str] | None = None) -> Iterator[Put]:
    """Writes rows with columns of these kinds (default: those of ``columns.trainable_row``) to a folder for
    ``datasets.load_from_disk``."""
    work = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    work.mkdir(mode=0o700)
    try:
        with json_lines(work / "rows.jsonl") as put:
            yield lambda row: put({**row, **{name: row[name].isoformat() for name in _moments(row)}})
        _save(work / "rows.jsonl", work / "made", work / "cache", kinds)
        _replace(path, work / "made", work / "replaced")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _replace(path: Path, made: Path, aside: Path) -> None:
    """Renames ``made`` to ``path``. An existing ``path`` is moved to ``aside``, and moved back on failure."""
    if path.exists():
        path.rename(aside)
    try:
        made.rename(path)
    except OSError:
        if aside.exists():
            aside.rename(path)
        raise
    sync_folder(path.parent)


def _save(lines: Path, folder: Path, cache: Path, kinds: Mapping[str, str] | None) -> None:
    import datasets
    from datasets.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

    shown = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        made = datasets.Dataset.from_generator(
            _rows, features=columns.features(kinds), cache_dir=str(cache), gen_kwargs={"lines": str(lines)}
        )
        made.save_to_disk(folder)
    finally:
        if shown:
            enable_progress_bar()


def _rows(lines: str) -> Iterator[dict[str, Any]]:
    from datetime import datetime

    with open(lines, "rb") as file:
        for line in file:
            row = json.loads(line)
            yield {**row, **{name: datetime.fromisoformat(row[name]) for name in _moments(row)}}


def _moments(row: Mapping[str, Any]) -> set[str]:
    return {"start", "end"} & row.keys()


@contextmanager
def _batches(write: Callable[[list[dict[str, Any]]], None]) -> Iterator[Put]:
    """Collects rows and passes them to ``write`` in batches of ``ROWS_AT_ONCE``, fewer if they are large."""
    rows: list[dict[str, Any]] = []
    size = 0

    def put(row: Mapping[str, Any]) -> None:
        nonlocal rows, size
        rows.append(dict(row))
        size += sum(len(value) for value in row.values() if isinstance(value, str))
        if len(rows) >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            write(rows)
            rows, size = [], 0

    yield put
    if rows:
        write(rows)


def _line(out: BinaryIO, document: Mapping[str, Any]) -> None:
    out.write(
        json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    )
