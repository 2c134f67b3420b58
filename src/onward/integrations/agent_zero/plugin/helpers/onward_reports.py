"""Reports of the rl-trainer to its superior agent, as messages in the chat and as notifications.

Standard library alone. A report is a sentence such as "Initiating RL training job #47 with 10K samples".
"""

from __future__ import annotations

import json
from typing import Any

HEADING = "icon://school Onward"
ASKED = "onward_reports"
"""Key in the data of a chat: work of the trainer was requested there, so its reports belong there."""
RECENT = 50
"""Items of a chat among which a sentence is not repeated: a job that begins is reported by its tool at once,
and a little later by the loop itself."""


def mark(context: Any) -> None:
    """Registers a chat for reports."""
    context.data[ASKED] = True


def chats_of(contexts: list[Any]) -> list[Any]:
    """Returns the chats that get reports: those that requested work, else the newest chat of a person."""
    asked = [context for context in contexts if context.data.get(ASKED)]
    if asked:
        return asked
    of_people = [one for one in contexts if getattr(getattr(one, "type", None), "value", "user") == "user"]
    return [max(of_people, key=_age)] if of_people else []


def show(reports: list[dict[str, Any]], contexts: list[Any], notify: Any = None) -> int:
    """Writes reports into chats and returns the number of the last one. ``notify`` gets each sentence too."""
    for report in reports:
        sentence = str(report["message"])
        for context in chats_of(contexts):
            _say(context, sentence)
        if notify is not None:
            notify(sentence)
    return last_of(reports)


def last_of(reports: list[dict[str, Any]]) -> int:
    """Returns the number of the last report; 0 without one."""
    return max((int(report["seq"]) for report in reports), default=0)


def after_call(
    context: Any, name: str, arguments: dict[str, Any], answer: str, *, shown: bool = True
) -> None:
    """Registers the chat of a tool call for reports, and, if they are ``shown``, reports a training job that
    the call has started."""
    mark(context)
    sentence = job_begins(arguments, answer) if name == "start_training" and shown else None
    if sentence is not None:
        _say(context, sentence)


def job_begins(arguments: dict[str, Any], answer: str) -> str | None:
    """Returns the sentence about a job that was started; None if the answer is no job."""
    try:
        job = json.loads(answer)
    except ValueError:
        return None
    if not isinstance(job, dict) or not job.get("job_id"):
        return None
    name = f"#{job['number']}" if job.get("number") else job["job_id"]
    samples = job.get("samples") or arguments.get("sample_size")
    return f"Initiating RL training job {name}" + (f" with {count(int(samples))} samples" if samples else "")


def count(number: int) -> str:
    """Formats a number of samples: ``10K``, ``2.5K``, ``640``."""
    return f"{number:,}" if number < 1000 or number % 100 else f"{number / 1000:,g}K"


def _say(context: Any, sentence: str) -> None:
    recent = list(getattr(context.log, "logs", ()))[-RECENT:]
    shown = {getattr(one, "content", "") for one in recent if getattr(one, "heading", "") == HEADING}
    if sentence not in shown:
        context.log.log(type="info", heading=HEADING, content=sentence)


def _age(context: Any) -> Any:
    """The time of the last message, as text that sorts; a chat without one is the oldest."""
    return str(getattr(context, "last_message", "") or "")
