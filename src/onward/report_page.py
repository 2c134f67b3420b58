"""Reports as one HTML file that needs nothing else: its style, its pictures, its frame."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from onward import plotting
from onward.files import write_whole

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3rem .6rem;"
    "border-bottom:1px solid #8884;vertical-align:top}img{max-width:100%}"
    "pre{white-space:pre-wrap;font-size:13px}.wide{overflow-x:auto}"
    "@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}}"
)


def write_page(path: Path, title: str, parts: Iterable[str]) -> None:
    """Writes a page with a heading and ``parts``, which are HTML."""
    head = "<!doctype html><html lang=en><meta charset=utf-8>"
    head += f"<meta name=viewport content='width=device-width,initial-scale=1'><title>{escape(title)}</title>"
    body = f"<h1>{escape(title)}</h1>{''.join(parts)}"
    write_whole(path, f"{head}<style>{STYLE}</style>{body}</html>\n".encode())


def picture(paint: Callable[[plotting.Style], Any], words: str) -> str:
    """Returns a figure for light and dark screens as HTML; ``words`` say what it shows. Raises ImportError
    without matplotlib."""
    with tempfile.TemporaryDirectory() as folder:
        light, dark = plotting.save(paint, Path(folder) / "picture.png")
        images = [base64.b64encode(path.read_bytes()).decode() for path in (light, dark)]
    source = f'<source media="(prefers-color-scheme:dark)" srcset="data:image/png;base64,{images[1]}">'
    return f'<picture>{source}<img alt="{escape(words)}" src="data:image/png;base64,{images[0]}"></picture>'


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table, which scrolls by itself in a narrow window; every cell is text, and is escaped."""
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    head = "".join(f"<th>{escape(title)}" for title in titles)
    return f"<div class=wide><table><tr>{head}</tr>{lines}</table></div>"
