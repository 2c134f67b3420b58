"""Errors and log lines show where something is, and never with which login."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from onward import errors
from onward.errors import ConfigError, MissingExtraError, hide_login
from onward.telemetry import logs


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
        ("tls://token@nats.example.org:4222", "tls://nats.example.org:4222"),
        ("nats://a:b@c@host:1", "nats://host:1"),
        ("nats://ann:pa/ss@host:1", "nats://host:1"),
        ("nats://ann:it's@host:1", "nats://host:1"),
        ("nats://a:b@h1:1,nats://c:d@h2:2", "nats://h1:1,nats://h2:2"),
        ("s3://key:secret@bucket/folder/file.json", "s3://bucket/folder/file.json"),
        ("az://box/folder?sig=abc&se=2", "az://box/folder?…"),
        ("at 'http://u:p@proxy:3128', then b@c.org", "at 'http://proxy:3128', then b@c.org"),
        ('{"url": "http://u:p@h:1", "who": "b@c.org"}', '{"url": "http://h:1", "who": "b@c.org"}'),
        ("is it s3://bucket?", "is it s3://bucket?"),
        ("mail ann@example.org // or not", "mail ann@example.org // or not"),
    ],
)
def test_an_address_is_shown_without_its_login(text: str, shown: str) -> None:
    assert hide_login(text) == shown
    assert str(ConfigError(f"{text} cannot be used.")) == f"{shown} cannot be used."


def test_an_error_with_a_message_of_its_own_keeps_it() -> None:
    command = errors.install_command("[lm]")
    assert str(MissingExtraError("lm", "This")).endswith(f"run {command}.")


@pytest.mark.parametrize("json", [True, False])
def test_a_log_line_shows_no_login_also_in_an_exception_of_a_library(
    monkeypatch: pytest.MonkeyPatch, json: bool
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    logs.setup("info", json=json)
    logs.get("test").info(
        "connecting", to="nats://ann:mysecretword@host:4222", also=["http://u:mysecretword@p"]
    )
    try:
        raise OSError("no route to nats://ann:mysecretword@host:4222")
    except OSError:
        logs.get("test").exception("broken")
        logging.getLogger("library").exception("broken at %s", "nats://ann:mysecretword@host:4222")
    text = out.getvalue()
    assert "mysecretword" not in text
    assert text.count("host:4222") >= 4


def test_a_log_line_in_a_program_of_the_user_shows_no_login(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logs.get("test").info("connecting", to="nats://ann:mysecretword@host:4222")
    assert "mysecretword" not in caplog.text and "nats://host:4222" in caplog.text
