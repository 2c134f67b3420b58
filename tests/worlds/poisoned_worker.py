"""A worker of the plugin on which a task that says "poison" does harm, as long as a file exists.

``python poisoned_worker.py FILE HARM -m MODULE --root … --data …``: what follows HARM is as the plugin calls
it. HARM is ``kills``, ``hangs``, or ``slow``: the first steps of the redaction take a second each, and the
disk takes ``DISK_SECONDS`` for each task.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from onward.bus.outbox import Outbox
from onward.integrations.agent_zero.worker import __main__ as worker
from onward.integrations.agent_zero.worker.assembly import Assembly
from onward.redaction import scan

SLOW_STEPS = 7
DISK_SECONDS = 2.5


def interpreter(folder: Path, harm: str = "kills") -> tuple[Path, Path]:
    """Makes the program to be set as the plugin's interpreter; returns it and the file that poisons."""
    poison, program = folder / "poison", folder / "python"
    poison.touch()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {poison} {harm} "$@"\n')
    program.chmod(0o755)
    return program, poison


def main(poison: Path, harm: str) -> None:
    document = Assembly.document

    def harmed(self: Assembly, event: Any, facts: Any) -> Any:
        made = document(self, event, facts)
        if poison.exists() and "poison" in made[0]["task_context"]["instructions"]:
            if harm == "kills":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(3600)
        return made

    if harm == "slow":
        scan.step = partial(_late, scan.step, iter(range(SLOW_STEPS)))
        put = Outbox.put

        def put_late(*given: Any, **named: Any) -> None:
            time.sleep(DISK_SECONDS)
            put(*given, **named)

        Outbox.put = put_late  # type: ignore[method-assign]
    else:
        Assembly.document = harmed  # type: ignore[method-assign]
    worker.main()


def _late(step: Callable[[], None], left: Iterator[int]) -> None:
    if next(left, None) is not None:
        time.sleep(1.0)
    step()


if __name__ == "__main__":
    given = Path(sys.argv[1]), sys.argv[2]
    del sys.argv[1:5]
    main(*given)
