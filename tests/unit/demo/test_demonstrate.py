"""The end of ``onward demo``: files first, the finding last."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from demo_results import cycle, rejected, result
from rich.console import Console

from onward.demo import run
from onward.demo.result import Result


async def test_pictures_and_figures_are_written_and_the_last_sentence_is_the_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = result(cycle(1), rejected(2))

    class Ready:
        settings = SimpleNamespace(data_dir=Path.cwd() / "out" / "tiny-seed0-001")

        def __init__(self, *_: Any) -> None: ...

        async def run(self) -> Result:
            return found

    monkeypatch.setattr(run, "Demonstration", Ready)
    figures = tmp_path / "figures.json"
    console = Console(width=80, file=io.StringIO(), color_system=None)
    options = run.Options(folder=tmp_path / "out", json_file=figures)
    assert await run.demonstrate(options, console) is found
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"curves.png", "curves-dark.png"}
    assert Result.model_validate_json(figures.read_text()) == found
    assert isinstance(console.file, io.StringIO)
    text = " ".join(console.file.getvalue().split())
    assert text.endswith("by reinforcement learning alone; 1 of 2 candidates was promoted.")
    assert "onward trajectories list --dir out/tiny-seed0-001" in text
    assert text.index("Picture:") < text.index("Figures:") < text.index("Success on held-out tasks rose")
