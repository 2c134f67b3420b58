"""Messages of a history in a chat file, in whichever form Agent Zero has stored it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from onward.integrations.agent_zero import function_calls
from onward.integrations.agent_zero.worker import action


@dataclass
class Entry:
    """One message of a history."""

    is_model: bool
    content: Any
    id: str
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Tool and arguments of calls in fields of their own."""
    reasoning: str = ""
    is_final: bool = False
    """True for a final answer in plain words."""


def entries_of(history: Any, folder: Path) -> list[Entry]:
    """Returns the messages of a history in order, in whichever form it was stored."""
    if isinstance(history, str):
        try:
            history = json.loads(history) if history.strip() else {}
        except ValueError:
            return []
    if isinstance(history, Mapping):
        found = list(_within(history))
    elif isinstance(history, list):
        found = [one for one in history if isinstance(one, Mapping)]
    else:
        return []
    entries = []
    for number, message in enumerate(found):
        is_model = bool(message["ai"]) if "ai" in message else message.get("type") in ("ai", "assistant")
        content = _whole(message.get("content", message.get("summary", "")), folder)
        entry = Entry(is_model, content, str(message.get("id") or f"message-{number}"))
        if is_model:
            entry.calls = function_calls.calls_of(message)
            entry.reasoning = function_calls.reasoning_of(message)
            entry.is_final = function_calls.is_final(message, text_of(content))
        entries.append(entry)
    return entries


def _within(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the messages below a record of any kind: History, Bulk, Topic, Message. A topic that was
    summarised still has its messages."""
    if record.get("_cls") == "Message" or ("ai" in record and "content" in record):
        yield record
        return
    current = record.get("current")
    for name in ("bulks", "records", "topics", "messages"):
        for one in record.get(name) or ():
            if isinstance(one, Mapping):
                yield from _within(one)
    if isinstance(current, Mapping):
        yield from _within(current)


def _whole(content: Any, folder: Path) -> Any:
    """Returns a tool's result with the text of the file beside the chat, if it names one that is there. Only
    the file's name is used: the path is the host's own."""
    if not isinstance(content, Mapping) or not isinstance(content.get("file"), str):
        return content
    path = folder / "messages" / PurePath(content["file"]).name
    try:
        return {**content, "tool_result": path.read_text(encoding="utf-8", errors="replace")}
    except OSError:
        return content


def tools_of(entry: Entry) -> list[tuple[str, Any]]:
    """Returns the tools that an answer called, and their arguments."""
    if entry.calls:
        return list(entry.calls)
    if entry.is_final:
        return [("response", {"text": text_of(entry.content)})]
    answer = action.read(text_of(entry.content))
    tool = answer.get("tool_name")
    return [(tool.partition(":")[0], answer.get("tool_args"))] if isinstance(tool, str) and tool else []


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping) and isinstance(content.get("preview"), str):
        return content["preview"]
    return json.dumps(content, ensure_ascii=False)
