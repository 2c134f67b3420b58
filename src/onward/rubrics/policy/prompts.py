"""The texts that a rubric writer reads and may answer: brief, questions to the stakeholder, and rubric.

A conversation is: the brief with its active checks, then answers of the model. Each of the first ones is a
question, ``{"ask": "accuracy"}``, or ``{"ask": "nothing"}``. The model decides when to stop asking, up to a
limit. Then come its notes on what matters, ``{"accuracy": "decisive", …}``. The last answer is the rubric.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from onward.rubrics.check import Check
from onward.rubrics.tasks import DIMENSIONS, RubricTask

SYSTEM = (
    "You write the rubric by which a report is scored. First ask the stakeholder what matters, one topic "
    'at a time, as {"ask": topic}, or {"ask": "nothing"} when you know enough. Then write the rubric: three '
    "to seven of the checks, each with its argument and a weight from 1 to 5, in the order of the list."
)
ENOUGH = "nothing"
"""The topic that ends the questions."""
NOTE = "Note what matters."
NOW = "Write the rubric."
CHECKS = "Checks:"
UNKNOWN = "unknown"
IMPORTANCE: Mapping[int | None, str] = {3: "decisive", 1: "helps", 0: "none", None: UNKNOWN}
"""Level of a dimension → its word in the notes; None: neither brief nor stakeholder states it."""

Message = dict[str, Any]


def opening(task: RubricTask) -> list[Message]:
    """Returns the messages of a task before the first answer."""
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": brief_of(task.brief, task.active)},
    ]


def brief_of(brief: str, active: Sequence[Check]) -> str:
    """Returns the list of the active checks, in canonical order, and then the brief."""
    listed = "\n".join(f"{json.dumps(check.name)}: {json.dumps(check.arg)}" for check in sorted(active))
    return f"{CHECKS}\n{listed}\n{brief}" if active else brief


def answered(topic: str, answer: str) -> str:
    """Returns an answer of the stakeholder with its topic, as the conversation has it."""
    return f"{topic}: {answer}"


def reply(answer: str | None, then: str | None) -> str:
    """Returns the user's message after an answer: what the stakeholder says, and what to write ``then``; None
    while the questions go on."""
    return "\n".join(part for part in (answer, then) if part)


def notes(levels: Mapping[str, int | None]) -> str:
    """Returns notes as the model writes them. A dimension without an entry is unknown."""
    return json.dumps({name: IMPORTANCE[levels.get(name)] for name in DIMENSIONS})


def notes_schema() -> dict[str, Any]:
    """Returns the JSON schema of notes: every dimension, with one of four words."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(DIMENSIONS),
        "properties": {name: {"enum": list(IMPORTANCE.values())} for name in DIMENSIONS},
    }


def known_levels(task: RubricTask, topics: Sequence[str]) -> dict[str, int | None]:
    """Returns the levels that the brief and the answers about ``topics`` state; None for the others."""
    return {
        name: task.levels[name] if name not in task.hidden or name in topics else None for name in DIMENSIONS
    }


def levels_of(text: str) -> dict[str, int | None]:
    """Returns the levels that notes state; an empty mapping if the text is none."""
    words = {word: level for level, word in IMPORTANCE.items()}
    try:
        return {name: words[word] for name, word in json.loads(text).items() if name in DIMENSIONS}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def question_schema(topics: Sequence[str]) -> dict[str, Any]:
    """Returns the JSON schema of a question about one of ``topics``, or of none."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["ask"],
        "properties": {"ask": {"enum": [*topics, ENOUGH]}},
    }


def question(topic: str | None) -> str:
    """Returns the model's answer that asks about ``topic``; None ends the questions."""
    return json.dumps({"ask": topic or ENOUGH})


def topic_of(text: str) -> str | None:
    """Returns the topic that an answer asks about; None for no more questions, and for no question at all."""
    try:
        topic = json.loads(text)["ask"]
    except (ValueError, KeyError, TypeError):
        return None
    return topic if isinstance(topic, str) and topic != ENOUGH else None
