"""``python -m onward.integrations.agent_zero.worker --root FOLDER --data FOLDER``: started by the plugin."""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

from onward.files import OWNER_ALONE
from onward.integrations.agent_zero.plugin.helpers import log
from onward.processes import stay_deaf

TICK_SECONDS = 0.5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True, help="Folder of Agent Zero.")
    parser.add_argument("--data", type=Path, required=True, help="Folder of the plugin's data.")
    given = parser.parse_args()
    stay_deaf()  # it ends when its input ends
    os.umask(OWNER_ALONE)
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(told: dict[str, Any]) -> None:
        try:
            output.write(json.dumps(told, default=str).encode() + b"\n")
        except OSError:
            pass  # Agent Zero has ended; the work goes on to its end

    from onward.integrations.agent_zero.worker.heartbeat import Heartbeat
    from onward.integrations.agent_zero.worker.service import Worker

    heartbeat = Heartbeat(say, with_alarm=True)
    worker = Worker(given.root, given.data, say, heartbeat)
    lines: queue.Queue[bytes | None] = queue.Queue(1024)
    parent = os.getppid()
    threading.Thread(target=_read, args=(lines,), name="onward-input", daemon=True).start()
    told = 0.0
    while True:
        try:
            line = lines.get(timeout=TICK_SECONDS)
        except queue.Empty:
            # The input stays open after Agent Zero's end if a process that it forked has it, too.
            line = b"" if os.getppid() == parent else None
        if line is None:
            break
        with heartbeat.work():
            if line:
                worker.take_line(line)
            if time.monotonic() - told >= TICK_SECONDS:
                worker.tick()
                log.follow(given.data)
                told = time.monotonic()
    with heartbeat.work():
        worker.end()


def _read(lines: queue.Queue[bytes | None]) -> None:
    for line in sys.stdin.buffer:
        lines.put(line)
    lines.put(None)


if __name__ == "__main__":
    main()
