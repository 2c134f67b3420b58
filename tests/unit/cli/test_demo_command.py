"""``onward demo`` before the demonstration itself begins."""

import os
from pathlib import Path

import pytest
from docs_blocks import run_command
from rich.console import Console

from onward.demo import run


def test_piped_lines_have_at_most_80_columns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Console] = []

    async def demonstrate(options: run.Options, console: Console) -> None:
        seen.append(console)
        console.print("word " * 60)

    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((200, 50)))
    monkeypatch.setattr(run, "demonstrate", demonstrate)
    code, output = run_command(f"onward demo --dir {tmp_path}")
    assert (code, [console.width for console in seen]) == (0, [80])
    assert max(map(len, output.splitlines())) <= 80
    assert "With --model smollm2" in output
