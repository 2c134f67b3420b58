"""The texts that a rubric writer reads and may answer: brief, questions to the stakeholder, and rubric.

A conversation is: the brief with its active checks, then answers of the model. Each of the first ones is a
question, ``{"ask": "accuracy"}``, or ``{"ask": "nothing"}``. The last one is the rubric. The model decides
when to stop asking, up to a limit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from onward.rubrics.check import Check
from onward.rubrics.tasks import Task

SYSTEM = (
    "You write the rubric by which a report is scored. First ask the stakeholder what matters, one topic "
    'at a time, as {"ask": topic}, or {"ask": "nothing"} when you know enough. Then write the rubric: three '
    "to seven of the checks, each with its argument and a weight from 1 to 5, in the order of the list."
)
ENOUGH = "nothing"
"""The topic that ends the questions."""
NOW = "Write the rubric."
CHECKS = "Checks:"

Message = dict[str, Any]


def opening(task: Task) -> list[Message]:
    """Returns the messages of a task before the first answer."""
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": brief_of(task.brief, task.active)},
    ]


def brief_of(brief: str, active: Sequence[Check]) -> str:
    """Returns a brief with the list of its active checks, in canonical order."""
    listed = "\n".join(f"{json.dumps(check.name)}: {json.dumps(check.arg)}" for check in sorted(active))
    return f"{brief}\n{CHECKS}\n{listed}"


def reply(answer: str | None, *, last: bool) -> str:
    """Returns the user's message after a question: the stakeholder's answer, and after the last one the call
    for the rubric."""
    parts = [answer] if answer else []
    return "\n".join([*parts, NOW] if last else parts or [NOW])


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
