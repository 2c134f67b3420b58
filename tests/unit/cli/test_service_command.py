"""What ``onward up`` says when it is up."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onward.cli.output import print_text
from onward.cli.service import introduction
from onward.config import Settings

AT = {
    "gateway_url": "http://127.0.0.1:3000",
    "api_url": "http://127.0.0.1:8100",
    "nats_url": "nats://10.0.0.5:4222",
}


def said(capsys: pytest.CaptureFixture[str], settings: Settings) -> str:
    loop: Any = SimpleNamespace(endpoints=AT, ctx=SimpleNamespace(settings=settings))
    print_text(*introduction(loop))
    return capsys.readouterr().out


def test_one_block_says_what_is_where_and_what_to_do_next(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "onward").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [line.rstrip() for line in said(capsys, Settings()).splitlines()] == [
        "Onward is up. Ctrl-C stops it.",
        "gateway  http://127.0.0.1:3000/v1 (the base URL of any OpenAI client)",
        "api      http://127.0.0.1:8100 (open it in a browser: what is where)",
        "NATS     nats://10.0.0.5:4222",
        "key      in onward-data/run/api.key",
        "data     onward-data",
        "next     onward status",
        "",
    ]
    other = Settings.model_validate({"data_dir": "my data"})
    assert "next     onward status --dir 'my data'" in said(capsys, other)


def test_the_key_itself_is_never_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = Settings.model_validate({"data_dir": tmp_path})
    settings.run_dir.mkdir()
    (settings.run_dir / "api.key").write_text("ok-the-key-itself")
    output = said(capsys, settings)
    assert "ok-the-key-itself" not in output
