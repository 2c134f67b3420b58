"""A traceback in the log shows where, never what: local variables hold raw messages."""

import io
import logging

import pytest

from onward.telemetry import logs

SECRET = "ghp_" + "aB3dE5fG7hJ9" * 3


@pytest.mark.parametrize("as_json", [True, False])
def test_a_traceback_shows_no_local_variables(as_json, monkeypatch):
    stream = io.StringIO()
    handlers, level = logging.root.handlers[:], logging.root.level
    monkeypatch.setattr("sys.stderr", stream)
    try:
        logs.setup("info", json=as_json)
        raw = SECRET
        try:
            raise ValueError(f"{len(raw)} bytes")
        except ValueError:
            logs.get("test").exception("a handler failed")
    finally:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
    assert "40 bytes" in stream.getvalue().replace(str(len(SECRET)), "40")
    assert SECRET not in stream.getvalue()
