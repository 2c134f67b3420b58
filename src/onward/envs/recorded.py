"""Attempts at tasks in files, for playing them again: AgentGym's AgentTraj records, or chat messages.

Forms of a record: ``{"item_id": "textcraft_17", "conversations": [{"from", "loss", "value"}, …]}``, or
``{"item_id" or "task_id" or "task": …, "messages": [{"role", "content"}, …]}``. The number at the end of the
id is the task's index. A file holds one JSON array, or one record a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onward.errors import ConfigError

_INDEX = re.compile(r"(?:^|[_-])(\d+)$")
_NAMES = ("item_id", "task_id", "task")


def read(paths: Sequence[Path]) -> dict[int, list[str]]:
    """Returns the answers of the first attempt at each task, by the task's index. Raises ConfigError that
    names file and record."""
    attempts: dict[int, list[str]] = {}
    for path in paths:
        for number, record in enumerate(_records(path), 1):
            where = f"{path}, record {number}"
            index, answers = _index(record, where), _answers(record, where)
            if answers:
                attempts.setdefault(index, answers)
    if not attempts:
        raise ConfigError("The files have no attempt with an answer: give records of solved tasks.")
    return attempts


def _records(path: Path) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({type(error).__name__}): give a file of JSON.") from None
    try:
        whole = json.loads(text)
        return whole if isinstance(whole, list) else [whole]
    except ValueError:
        pass
    records = []
    for number, line in enumerate(text.split("\n"), 1):  # a text may hold other line separators
        if line.strip():
            try:
                records.append(json.loads(line))
            except ValueError:
                raise ConfigError(f"{path}, line {number} is not JSON: give one record a line.") from None
    return records


def _index(record: Any, where: str) -> int:
    told = (
        next((record[name] for name in _NAMES if name in record), None) if isinstance(record, dict) else None
    )
    found = _INDEX.search(str(told)) if isinstance(told, str | int) else None
    if found is None:
        raise ConfigError(
            f"{where} does not say which task it attempts: give item_id with the task's number at its end, "
            f"such as textcraft_17."
        )
    return int(found[1])


def _answers(record: Mapping[str, Any], where: str) -> list[str]:
    spoken, said = record.get("conversations"), record.get("messages")
    if isinstance(spoken, list) and all(isinstance(one, dict) for one in spoken):
        # The first answer only agrees to AgentGym's instructions, and is marked as not to be learned.
        answers = [
            one.get("value") for one in spoken if one.get("from") == "gpt" and one.get("loss") is not False
        ]
    elif isinstance(said, list) and all(isinstance(one, dict) for one in said):
        answers = [one.get("content") for one in said if one.get("role") == "assistant"]
    else:
        raise ConfigError(f"{where} has neither conversations nor messages: give one of them, as a list.")
    if not all(isinstance(answer, str) for answer in answers):
        raise ConfigError(f"{where} has an answer that is no text: give the answer of each turn as text.")
    return [answer for answer in answers if isinstance(answer, str)]
