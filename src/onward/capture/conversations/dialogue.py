"""Converts a task's chat messages and completions, in the form of OpenAI-compatible clients, into turns.

One turn for each tool call and each answer; the result of a call is in the request that follows it.

Invariants: all content of the prompt goes into the document (system text, tool schemas, history). The
redactor cannot find in the token ids what it does not see as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from onward.capture.conversations import turns

if TYPE_CHECKING:
    from onward.capture.recorder.task import Task

Message = Mapping[str, Any]
Closed = Literal["answer", "idle", "close"]
"""Reason that a task ended: a final answer; silence; the end of the client, the recorder or the process."""
INTERRUPTED = "the caller stopped reading the answer"
_OBSERVED = {"user": "user_message", "tool": "tool_result", "function": "tool_result"}


@dataclass(frozen=True)
class Asked:
    """A request that waits for its answer."""

    observation: dict[str, Any]
    at: datetime


class Dialogue:
    """Fills ``task`` turn by turn. Not thread-safe; several dialogues may fill one task."""

    def __init__(self, task: Task, source: str) -> None:
        self.task = task
        self._source = source
        self._waiting: dict[str, dict[str, Any]] = {}
        """Maps the id of a call, or its number if it has none, to the turn that waits for its result."""
        self._tools: Any = None
        self.failed = False
        """True if the latest call had no answer."""

    @property
    def waits_for(self) -> frozenset[str]:
        """Ids of calls without a result."""
        return frozenset(self._waiting)

    def asked(self, new: Sequence[Message], tools: Any, at: datetime) -> Asked:
        """Adds a request: ``new`` are its messages beyond the previous ones, ``tools`` the tools that it
        offers."""
        self._take_results(new)
        return Asked(self._observation(new, tools), at)

    def answered(self, asked: Asked, document: Mapping[str, Any]) -> bool:
        """Adds the completion that answers a request. Returns whether it is final, that is, calls no tool.
        Raises ContractError."""
        read = turns.completion(document)
        self.task.note(read.metadata, read.tokens, read.session_id)
        calls = document["choices"][0]["message"].get("tool_calls") or []
        self.failed = False
        self._waiting = {}
        if not calls:
            return self._add_answer(asked, read.action)
        first, observation = self.task.turns_so_far + 1, asked.observation
        for index, call in enumerate(calls):
            action = turns.tool_call(call) | {"tool_call_id": str(call.get("id") or index)}
            if index == 0:
                action = read.action | action
            else:
                observation = {"type": asked.observation["type"], "content": {"same_as_turn": first}}
            turn = {"observation": observation, "action": action}
            self._waiting[action["tool_call_id"]] = self.task.add(turn, asked.at)
        return False

    def interrupted(
        self, asked: Asked, completion: Mapping[str, Any] | None, error: BaseException | None
    ) -> None:
        """Adds a request without a whole answer: ``error``, or the caller stopped reading. ``completion`` is
        the part that arrived."""
        action: dict[str, Any] = {"type": "response"}
        if completion is not None:
            action = turns.completion(completion).action
        result = {"success": False, "error": INTERRUPTED} if error is None else turns.result(error)
        self.task.add({"observation": asked.observation, "action": action, "result": result}, asked.at)
        self.failed = True

    def result(self, call_id: str, result: Any, milliseconds: float | None = None) -> bool:
        """Adds the result of one call, if known at once; returns whether a call waited for it."""
        turn = self._waiting.pop(call_id, None)
        if turn is None:
            return False
        turn["result"] = turns.plain(turns.result(result), 3)
        if milliseconds is not None:
            turn["result"].setdefault("execution_time_ms", round(milliseconds, 3))
        return True

    def close(self, why: Closed) -> None:
        """Records the task. Without a final answer, and unless the agent set an outcome, it is abandoned, or
        failed if the latest call failed. Raises OnwardError if it could not be recorded."""
        self.task.note({"capture": {"source": self._source, "closed": why}})
        if why != "answer":
            self.task.default_outcome("failed" if self.failed else "abandoned")
        self.task.finish()

    def _take_results(self, new: Sequence[Message]) -> None:
        told = [message for message in new if message.get("role") in ("tool", "function")]
        if not told and len(self._waiting) == 1 and "" in self._waiting:
            told = [message for message in new if message.get("role") == "user"][:1]
        for message in told:
            name = message.get("tool_call_id")
            if name not in self._waiting:
                name = next(iter(self._waiting), None)
            if name is not None:
                self.result(name, _text(message.get("content")))

    def _observation(self, new: Sequence[Message], tools: Any) -> dict[str, Any]:
        """Returns a single message as its text, several messages unchanged; a reference if the request is
        repeated."""
        if not new:
            return {"type": "system_message", "content": {"same_as_turn": max(1, self.task.turns_so_far)}}
        last = new[-1].get("role")
        alone = len(new) == 1 and not new[0].get("tool_calls")
        shown: dict[str, Any] = {
            "type": _OBSERVED.get(
                str(last), "system_message" if last in ("system", "developer") else "user_message"
            ),
            "content": _text(new[0].get("content")) if alone else {"messages": list(new)},
        }
        if tools is not None and tools != self._tools:
            self._tools = tools = turns.plain(tools, 5)
            shown["context"] = {"available_tools": _names(tools), "tools": tools}
        return shown

    def _add_answer(self, asked: Asked, action: dict[str, Any]) -> bool:
        """Adds an answer. Text that is itself a tool call (Agent Zero's form) waits for the next message."""
        turn = {"observation": asked.observation, "action": action}
        if action["type"] == "tool_call":
            self._waiting = {"": self.task.add(turn, asked.at)}
            return False
        self.task.add({**turn, "result": {"success": True}}, asked.at)
        return True


def instructions(messages: Sequence[Message]) -> str:
    """Returns the user's request: the last user message, else the last message."""
    asked = [message for message in messages if message.get("role") == "user"] or list(messages[-1:])
    return _text(asked[-1].get("content")) if asked else ""


def _text(content: Any) -> str:
    """Returns a message's content as text; parts that are not text as JSON."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, (list, tuple)) and all(
        isinstance(p, Mapping) and p.get("type") == "text" for p in content
    ):
        return "".join(str(part.get("text") or "") for part in content)
    return json.dumps(turns.plain(content), ensure_ascii=False)


def _names(tools: Any) -> list[str]:
    named = []
    for tool in tools if isinstance(tools, list) else []:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            named.append(function["name"])
    return named
