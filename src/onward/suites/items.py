"""A file of items as a suite: ``file:PATH``, one JSON object a line.

``{"item_id": …, "prompt": … or "messages": […], "expected": [...], "checks": […], "kind": …, "tools": […],
"calls": [{"name", "arguments", "result"}, …]}``. They are asked and judged like recorded tasks; an item needs
an expected answer or a check, unless a rubric judges.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onward.errors import ConfigError
from onward.suites.finding import Sources
from onward.suites.recorded.replay import ReplaySuite, load_rubric
from onward.suites.recorded.tasks import RecordedTask


def read(path: Path, *, judged_by_rule: bool = True) -> list[RecordedTask]:
    """Reads the items. Raises ConfigError that names the line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({type(error).__name__}): give a file of JSON lines."
        ) from None
    tasks = [_item(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    for task in tasks:
        if judged_by_rule and not task.expected and not task.checks:
            raise ConfigError(f"{path}, item {task.item_id!r} has neither 'expected' nor 'checks': give one.")
    if not tasks or len({task.item_id for task in tasks}) < len(tasks):
        raise ConfigError(f"{path} has no item, or one item_id twice: give each item an id of its own.")
    return tasks


def _item(path: Path, number: int, line: str) -> RecordedTask:
    try:
        given: dict[str, Any] = json.loads(line)
        prompt = given.pop("prompt", None)
        messages = given.pop("messages", None) or [{"role": "user", "content": prompt}]
        expected = given.pop("expected", [])
        made = RecordedTask.from_document(
            {
                "item_id": str(number),
                "kind": "item",
                "answers": 1 + len(given.get("calls", [])),
                **given,
                "messages": messages,
                "expected": [expected] if isinstance(expected, str) else expected,
            }
        )
    except (ValueError, TypeError, AttributeError):
        made = None
    if made is None or not all(
        isinstance(m, dict) and isinstance(m.get("content"), str) for m in made.messages
    ):
        raise ConfigError(
            f"{path}, line {number} is no item: expected an object with 'prompt' or 'messages', and with "
            f"'expected' or 'checks'."
        )
    return made


async def make(rest: str, sources: Sources) -> ReplaySuite:
    """Makes the suite ``file:PATH``. Raises ConfigError."""
    rubric = load_rubric(sources.rubric)
    return ReplaySuite(f"file:{rest}", read(Path(rest), judged_by_rule=rubric is None), rubric)
