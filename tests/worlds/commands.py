"""``onward`` commands in this process, as a shell would run them: a start of Python for each costs seconds.

Every command keeps a test with a process of its own, where the process itself is what is tested: its signals,
its pipes, what it imports.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from onward.cli import main


def run_bytes(folder: Path, *words: str, given: bytes = b"", **environment: str) -> CompletedProcess[bytes]:
    """Runs ``onward words`` in ``folder`` with ``given`` on standard input. Returns what a process would."""
    streams = [io.TextIOWrapper(io.BytesIO(data), "utf-8") for data in (given, b"", b"")]
    code = 0
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        for name, value in environment.items():
            patch.setenv(name, value)
        before = os.umask(0o022)
        try:
            main(list(words))
        except SystemExit as end:
            assert end.code is None or isinstance(end.code, int), end.code
            code = end.code or 0
        finally:
            os.umask(before)
        written = []
        for stream in streams[1:]:
            stream.flush()
            assert isinstance(stream.buffer, io.BytesIO)
            written.append(stream.buffer.getvalue())
    return CompletedProcess(list(words), code, *written)


def run_text(folder: Path, *words: str, given: str = "", **environment: str) -> CompletedProcess[str]:
    """The same with text."""
    done = run_bytes(folder, *words, given=given.encode(), **environment)
    return CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
