"""Draws the pictures of the demonstration from its figures: ``python docs/images/make.py``.

The figures are written by

    onward demo --json docs/images/demo.json
    onward demo --model smollm2 --json docs/images/demo-smollm2.json

From the first come curves.png and demo.svg (the end of the terminal), from the second curves-smollm2.png;
each also on a dark background (NAME-dark). A test fails where demo.svg differs from its
figures. page.png is no drawing: it is a screenshot of the first page of a service during a release.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from onward import plotting
from onward.demo import picture, report
from onward.demo.result import Result

IMAGES = Path(__file__).parent
WIDTH = 80
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _theme(style: plotting.Style) -> TerminalTheme:
    """The colours of ``style`` as those of a terminal."""
    blue, red, green, purple, yellow, grey = map(_rgb, style.colours)
    text = _rgb(style.text)
    return TerminalTheme(
        _rgb(style.background), text, [_rgb(style.faint), red, green, yellow, blue, purple, blue, grey]
    )


def terminal(result: Result, style: plotting.Style, width: int = WIDTH) -> str:
    """The end of a demonstration as a terminal shows it, as SVG. The same figures give the same text."""
    console = Console(
        width=width, record=True, force_terminal=True, color_system="truecolor", file=io.StringIO()
    )
    model = "" if result.model == "tiny" else f" --model {result.model}"
    planted = " --sabotage" if any(cycle.sabotaged for cycle in result.cycles) else ""
    console.print(Text(f"$ onward demo{model}{planted}\n", style="bold"), highlight=False)
    report.show(result, console)
    drawn = console.export_svg(title="onward demo", theme=_theme(style), unique_id="onward-demo")
    drawn = re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # nothing is fetched to show it
    drawn = drawn.replace("rgba(255,255,255,0.35)", style.faint)
    return drawn.replace("Fira Code, monospace", _FONT).replace("font-family: arial", f"font-family: {_FONT}")


def make(folder: Path = IMAGES) -> list[Path]:
    """Draw all pictures whose figures are in ``folder``."""
    made = []
    for figures, curves in (("demo.json", "curves.png"), ("demo-smollm2.json", "curves-smollm2.png")):
        if (folder / figures).is_file():
            result = Result.model_validate_json((folder / figures).read_text(encoding="utf-8"))
            made += picture.draw(result, folder / curves)
            if figures == "demo.json":
                for path, style in terminals(folder):
                    path.write_text(terminal(result, style), encoding="utf-8")
                    made.append(path)
    return made


def terminals(folder: Path = IMAGES) -> list[tuple[Path, plotting.Style]]:
    """The pictures of the terminal and their colours."""
    light = folder / "demo.svg"
    return [(light, plotting.LIGHT), (plotting.dark_version(light), plotting.DARK)]


if __name__ == "__main__":
    for path in make():
        sys.stdout.write(f"{path}\n")
