"""The saved state of a run: numbered folders, and a file that names the complete one.

Invariants: ``CURRENT`` is replaced last and atomically. Whenever the process dies, the folder that it names
is complete and of one moment. The folder before it is removed only afterwards.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onward.files import write_whole
from onward.telemetry.crashpoints import crashpoint

CURRENT = "CURRENT"
FACTS = "facts.json"


class StateFolder:
    """The saved states of one run; in ``save``, ``write(folder)`` writes tensors and ``facts`` are JSON."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def current(self) -> Path | None:
        """The folder to continue from, or None."""
        try:
            name = (self.folder / CURRENT).read_text(encoding="ascii").strip()
        except (FileNotFoundError, ValueError):
            return None
        found = self.folder / name
        return found if name.isdigit() and (found / FACTS).is_file() else None

    def facts(self) -> dict[str, Any]:
        """Returns the facts saved with the tensors; empty without a state. Raises ValueError."""
        current = self.current
        return {} if current is None else json.loads((current / FACTS).read_bytes())

    def save(self, write: Callable[[Path], bool], facts: dict[str, Any]) -> bool:
        """Saves a new state. If ``write`` returns False, the previous state stays and False is returned."""
        before = self.current
        number = 1 if before is None else int(before.name) + 1
        target = self.folder / str(number)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        if not write(target):
            shutil.rmtree(target)
            return False
        write_whole(target / FACTS, json.dumps(facts).encode())
        crashpoint("training.state_written")
        write_whole(self.folder / CURRENT, str(number).encode())
        crashpoint("training.state_saved")
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)
        return True

    def clear(self) -> None:
        """Deletes all states."""
        shutil.rmtree(self.folder, ignore_errors=True)
