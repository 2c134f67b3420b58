"""A worker of the plugin that is killed in the middle of a task that says "poison", as long as a file exists.

``python poisoned_worker.py FILE -m MODULE --root … --data …``: what follows FILE is as the plugin calls it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from onward.integrations.agent_zero.worker import __main__ as worker
from onward.integrations.agent_zero.worker.assembly import Assembly


def interpreter(folder: Path) -> tuple[Path, Path]:
    """Makes the program to be set as the plugin's interpreter; returns it and the file that poisons."""
    poison, program = folder / "poison", folder / "python"
    poison.touch()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {poison} "$@"\n')
    program.chmod(0o755)
    return program, poison


def main(poison: Path) -> None:
    document = Assembly.document

    def killed(self: Assembly, event: Any, facts: Any) -> Any:
        made = document(self, event, facts)
        if poison.exists() and "poison" in made[0]["task_context"]["instructions"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    Assembly.document = killed  # type: ignore[method-assign]
    worker.main()


if __name__ == "__main__":
    file = Path(sys.argv[1])
    del sys.argv[1:4]
    main(file)
