"""``onward …`` with a scripted engine, in a process of its own: ``python benchmark_child.py WORSE WORDS…``.

Current solves the desk; the adapter WORSE has forgotten four of its ten tasks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from scripted_engine import ScriptedEngine

from onward.cli import main
from onward.envs import desk
from onward.release.validation import suite

TASKS = {task.instructions: task for task in desk.tasks("validation", 10)}
FORGOTTEN = set(list(TASKS)[:4])
worse, words = sys.argv[1], sys.argv[2:]


def answer(messages: Sequence[dict[str, Any]], adapter: str | None) -> str:
    task = TASKS.get(messages[1]["content"]) if len(messages) > 1 else None
    if task is None or (adapter == worse and task.instructions in FORGOTTEN):
        return "I forgot it"
    return desk.solve(task)[sum(message["role"] == "assistant" for message in messages)]


class Engine(ScriptedEngine):
    async def close(self) -> None:
        pass


suite.any_engine = lambda run_dir: Engine(answer)
main(words)
