"""An Agent Zero in a process of its own, which a test kills in the middle of a task.

``python agent_zero_child.py FOLDER [fork]``: finishes one task, prints "hanging" in the middle of the second.
With ``fork`` it forks before, and prints the id of the process that has its open files, too.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from agent_zero_host import Agent, Host, say


async def main(root: Path) -> None:
    with Host(root) as host:
        assert await host.ask("First") == "done"

        async def hang(agent: Agent, args: dict[str, Any]) -> str:
            while host.runtime.status()["recorded"] < 1:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.3)  # the events of this task are on their way
            if "fork" in sys.argv:
                forked = os.fork()
                if not forked:
                    time.sleep(300)
                    os._exit(0)
                print(forked, flush=True)
            print("hanging", flush=True)
            await asyncio.sleep(600)
            return ""

        host.tools["hang"] = hang
        host.model = lambda agent, lines: say("hang")
        await host.ask("Second")


asyncio.run(main(Path(sys.argv[1])))
