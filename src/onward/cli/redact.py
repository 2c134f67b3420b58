"""``onward redact``: redacts a file or standard input, and prints the rules. Needs no service, no settings.

Only redacted bytes go to standard output. Counts, notes and reports go to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TextIO

import typer
from rich.console import Console

from onward.capture.file_redaction import KINDS, Kind, Piece, pieces
from onward.cli import app
from onward.cli.output import Table, number, print_json, print_text, say
from onward.errors import ConfigError
from onward.progress import Bars
from onward.redaction import POLICY_VERSION, Known, Redactor, read_rules, table
from onward.redaction.engine import check_tenant_key
from onward.redaction.known import read_secrets
from onward.redaction.own_rules import NO_RULES

PROGRESS_FROM = 4 << 20
"""File size in bytes from which a progress bar is shown in a terminal."""
_BROKEN_SHOWN = 5


@app.command()
def redact(
    source: Annotated[
        str, typer.Argument(metavar="FILE|-|rules", help="A file, '-' for standard input, or 'rules'.")
    ] = "-",
    kind: Annotated[
        str | None, typer.Option("--format", help="json, jsonl or text. Default: by name, else by content.")
    ] = None,
    known: Annotated[
        Path | None, typer.Option(help="File with secrets of your own, one a line; they are replaced too.")
    ] = None,
    optional: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Also this kind, which is off by default: WALLET, SEED_PHRASE, GPS, DATE_OF_BIRTH, "
            "PASSPORT. Repeatable.",
        ),
    ] = None,
    rules: Annotated[
        Path | None, typer.Option(help="TOML file with rules of your own and an allow list.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="On standard error: what was replaced where, never a value.")
    ] = False,
    report_to: Annotated[Path | None, typer.Option(help="The report goes to this file.")] = None,
    tenant_key: Annotated[
        Path | None,
        typer.Option(
            envvar="ONWARD_TENANT_KEY_FILE",
            help="File with a key of 16 bytes or more: the report gets tags that are equal for equal values.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With 'rules': as JSON.")] = False,
) -> None:
    """Print FILE without secrets and personal data. Each JSON line is redacted by itself.

    'onward redact rules' prints what is recognised (a file of that name: ./rules). Exit code 1: all was
    redacted, but a part that should have been JSON was not, and was redacted as text. Exit code 2: nothing,
    or nothing further, was written; a sentence gives the reason.

    onward redact trajectories.jsonl > clean.jsonl
    onward redact rules
    """
    if source == "rules":
        _print_rules(as_json)
        return
    if as_json:
        raise ConfigError("--json goes with 'onward redact rules'; a report is JSON anyway (--report).")
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"--format is {kind!r}: expected one of {', '.join(KINDS)}.")
    redactor = Redactor(
        Known(read_secrets(known) if known else ()),
        tuple(optional or ()),
        own=read_rules(rules) if rules else NO_RULES,
    )
    key = _bytes_of(tenant_key) if tenant_key else None
    if key is not None:
        check_tenant_key(key)
    with _opened(source) as (stream, name), _report(report, report_to) as out:
        found = _watched(pieces(stream, name, _kind(kind), redactor), stream, source)
        counts, broken = _run(found, out, key)
    if broken:
        shown = "; ".join(broken[:_BROKEN_SHOWN]) + ("; …" if len(broken) > _BROKEN_SHOWN else "")
        say(f"Redacted as text, since not usable as JSON: {len(broken)} ({shown}).", err=True)
    say(_summary(counts), err=True)
    if broken:
        raise typer.Exit(1)


def _run(found: Iterator[Piece], report: TextIO | None, key: bytes | None) -> tuple[Counter[str], list[str]]:
    """Writes every piece. Returns counts per kind, and the places and reasons of text that was not JSON."""
    counts: Counter[str] = Counter()
    broken: list[str] = []
    try:
        for piece in found:
            _write(piece.output)
            counts.update(piece.redacted.counts)
            if piece.broken:
                broken.append(piece.broken)
            if report is not None and piece.redacted.changed:
                report.write(json.dumps(_report_of(piece, key)) + "\n")
        _flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit must not fail
        raise typer.Exit(1) from None
    return counts, broken


def _summary(counts: Counter[str]) -> str:
    if not counts:
        return "Nothing was redacted."
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
    return f"{counts.total()} redacted: {kinds}."


def _report_of(piece: Piece, key: bytes | None) -> dict[str, Any]:
    leaves = [{"at": place, "kinds": kinds} for place, kinds in piece.leaves]
    return {"line": piece.number, **piece.redacted.report(key), "leaves": leaves}


def _print_rules(as_json: bool) -> None:
    rows = table()
    if as_json:
        names = ("kind", "layer", "what", "examples")
        rules = [dict(zip(names, row, strict=True)) for row in rows]
        print_json({"policy_version": POLICY_VERSION, "rules": rules})
        return
    title = f"Policy version {POLICY_VERSION}"
    shown = Table("kind", number("layer"), "recognised by", number("examples"), title=title)
    for row in rows:
        shown.add_row(*row)
    print_text(shown)


@contextlib.contextmanager
def _opened(source: str) -> Iterator[tuple[BinaryIO, str]]:
    if source == "-":
        if sys.stdin.isatty():
            say("Reading standard input; Ctrl-D ends it.", err=True)
        yield sys.stdin.buffer, "standard input"
        return
    path = Path(source)
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}.") from None
    with file:
        yield file, source


def _watched(found: Iterator[Piece], stream: BinaryIO, source: str) -> Iterator[Piece]:
    """Yields ``found``, with a progress bar for a large file in a terminal."""
    size = 0 if source == "-" else os.stat(source).st_size
    if size < PROGRESS_FROM or not sys.stderr.isatty():
        yield from found
        return
    with Bars(Console(stderr=True)) as bars:
        bar = bars.add_bar(Path(source).name, size)
        for piece in found:
            done = stream.tell()
            bar.update(done, note=f"{done >> 20:,} of {size >> 20:,} MiB")
            yield piece
        bar.finish()


@contextlib.contextmanager
def _report(wanted: bool, to: Path | None) -> Iterator[TextIO | None]:
    if to is None:
        yield sys.stderr if wanted else None
        return
    try:
        file = to.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{to} cannot be written: {error.strerror}.") from None
    with file:
        yield file


def _kind(given: str | None) -> Kind | None:
    return next((kind for kind in KINDS if kind == given), None)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None


def _write(data: bytes) -> None:
    binary = getattr(sys.stdout, "buffer", None)
    if binary is not None:
        binary.write(data)
    else:  # standard output was replaced by a text stream
        sys.stdout.write(data.decode("utf-8", "replace"))


def _flush() -> None:
    sys.stdout.flush()
