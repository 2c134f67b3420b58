"""Checkpoints during a run: the policies after the last few save intervals, each a folder like the result.

The best policy by held-out figures is the result itself (``kept``). Needs no torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

FOLDER = "steps"


def found(folder: Path) -> list[tuple[int, Path]]:
    """Returns the whole checkpoints of the run in ``folder`` by their step, the oldest first."""
    at = folder / FOLDER
    names = [path.name for path in at.iterdir()] if at.is_dir() else []
    return [(step, at / str(step)) for step in sorted(int(name) for name in names if name.isdigit())]


def add(folder: Path, step: int, most: int, write: Callable[[Path], object]) -> None:
    """Adds the checkpoint that ``write`` makes in a folder, and removes all but the newest ``most``."""
    out = folder / FOLDER / str(step)
    partial = out.with_name(f".{step}")
    for old in (partial, out):  # of an attempt that was killed, or that repeats this step
        shutil.rmtree(old, ignore_errors=True)
    partial.mkdir(parents=True)
    write(partial)
    partial.rename(out)
    for _, old in found(folder)[:-most]:
        shutil.rmtree(old)


def start_at(folder: Path, step: int) -> None:
    """Removes the checkpoints after ``step``: the run repeats these steps."""
    for number, path in found(folder):
        if number > step:
            shutil.rmtree(path)
