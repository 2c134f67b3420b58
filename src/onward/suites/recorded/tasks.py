"""One recorded task: the messages that began it, the calls with their results, and how it ended. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from onward.capture.conversations.answers import read_answer
from onward.capture.conversations.messages import NO_RESULT, Conversation, conversation

Message = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A call of a tool and the result that the record has of it."""

    name: str
    arguments: Any
    result: str


@dataclass(frozen=True)
class RecordedTask:
    """An item of a suite. ``checks`` and ``expected`` are empty where only the recorded end is known."""

    item_id: str
    kind: str
    messages: list[Message]
    """Messages before the first answer."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    final: str = ""
    """Last answer of the record, as text; empty if it ended with a call."""
    final_calls: list[Call] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    """Accepted final answers, by whom the task was set."""
    checks: list[dict[str, Any]] = field(default_factory=list)
    """Each of these must hold: see ``judging``."""
    answers: int = 1
    """Number of answers in the record."""
    task_id: str = ""
    """Id that the agent gave the task; empty if it gave none."""

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> RecordedTask:
        """Raises TypeError or KeyError for what is no task."""
        parts = {name: [Call(**one) for one in document.get(name, [])] for name in ("calls", "final_calls")}
        return cls(**{**document, **parts})


def opening(trajectory: Mapping[str, Any]) -> list[Message]:
    """Returns the messages before the first answer of a stored trajectory."""
    first = conversation({**trajectory, "turns": trajectory["turns"][:1]}).messages
    return first[: next((n for n, one in enumerate(first) if one["role"] == "assistant"), len(first))]


def task_of(trajectory: Mapping[str, Any]) -> RecordedTask | None:
    """Returns the item of a stored ``trajectory.v1`` document; None if it has no question or no answer, or if
    texts of it were cut. What follows a second message of the user is left out, since it depends on the
    answer that the record has."""
    if trajectory["metadata"].get("texts_cut"):
        return None
    whole = conversation(trajectory)
    begin = next((n for n, one in enumerate(whole.messages) if one["role"] == "assistant"), 0)
    opening = whole.messages[:begin]
    if not any(message["role"] == "user" for message in opening):
        return None
    later = _until_next_question(whole, begin)
    answers = [message for message in later if message["role"] == "assistant"]
    context = trajectory["task_context"]
    last = answers[-1]
    calls = _calls(later)
    return RecordedTask(
        item_id=trajectory["trajectory_id"],
        kind=context.get("task_type") or context.get("domain") or "task",
        messages=[dict(message) for message in opening],
        tools=whole.tools,
        calls=calls,
        final=_text(last) if not last.get("tool_calls") else "",
        final_calls=[] if not last.get("tool_calls") else calls[-len(last["tool_calls"]) :],
        expected=_texts(context.get("expected_answer")),
        checks=[check for check in context.get("checks") or () if isinstance(check, dict)],
        answers=len(answers),
        task_id=str(context.get("task_id") or ""),
    )


def _until_next_question(whole: Conversation, begin: int) -> list[Message]:
    later: list[Message] = []
    for message in whole.messages[begin:]:
        if message["role"] not in ("assistant", "tool"):
            break
        later.append(message)
    return later


def _calls(messages: Sequence[Message]) -> list[Call]:
    results = {m.get("tool_call_id"): _text(m) for m in messages if m["role"] == "tool"}
    return [
        Call(one["function"]["name"], parsed(one["function"]["arguments"]), results.get(one["id"], NO_RESULT))
        for message in messages
        for one in message.get("tool_calls") or ()
    ]


def said_calls(
    text: str, calls: Sequence[Mapping[str, Any]], names: frozenset[str]
) -> list[tuple[str, str, Any]]:
    """Returns (id, name, arguments) of the calls of an answer, also of those written as text."""
    if not calls and names:
        calls = [call.document() for call in read_answer(text, names, "replay").calls]
    return [
        (str(one.get("id")), one["function"]["name"], parsed(one["function"]["arguments"])) for one in calls
    ]


def parsed(arguments: Any) -> Any:
    """Returns the arguments of a call as an object; a text that is no JSON stays text."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "" if content is None else json.dumps(content, ensure_ascii=False)


def _texts(given: Any) -> list[str]:
    if isinstance(given, str | int | float) and not isinstance(given, bool):
        return [str(given)]
    return [str(one) for one in given] if isinstance(given, list) else []
