"""Where a run goes on from: numbered folders, and a file that names the one that is whole.

Know before changing: ``CURRENT`` is replaced last and at once, so that whatever dies when, what it names is
complete and of one moment; the folder before it is removed only afterwards.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onward.wholefile import write_whole

CURRENT = "CURRENT"
FACTS = "facts.json"


class StateFolder:
    """``write(folder)`` writes tensors; ``facts`` are JSON."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def current(self) -> Path | None:
        """The folder to go on from, or None."""
        try:
            name = (self.folder / CURRENT).read_text(encoding="ascii").strip()
        except (FileNotFoundError, ValueError):
            return None
        found = self.folder / name
        return found if name.isdigit() and (found / FACTS).is_file() else None

    def facts(self) -> dict[str, Any]:
        """What was saved beside the tensors; empty where there is no state. Raises ValueError."""
        current = self.current
        return {} if current is None else json.loads((current / FACTS).read_bytes())

    def save(self, write: Callable[[Path], bool], facts: dict[str, Any]) -> bool:
        """False, and the state before stays, where ``write`` refuses."""
        before = self.current
        number = 1 if before is None else int(before.name) + 1
        target = self.folder / str(number)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        if not write(target):
            shutil.rmtree(target)
            return False
        write_whole(target / FACTS, json.dumps(facts).encode())
        write_whole(self.folder / CURRENT, str(number).encode())
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)
        return True

    def clear(self) -> None:
        """Forget everything."""
        shutil.rmtree(self.folder, ignore_errors=True)
