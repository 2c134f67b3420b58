"""Converts a trajectory to a conversation in the form of OpenAI's chat API.

A recorded observation is one of three things: the text of one message; ``{"messages": […]}`` with all
messages that were new in a request; or ``{"same_as_turn": n}`` for a repeated request or a further tool call
of the same answer. The chat API wants one message with all calls, then one tool message per call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onward.capture.conversations.answers import read_answer
from onward.capture.conversations.content import read_message
from onward.capture.conversations.exchange import name_of, text
from onward.lm.tool_words import in_words

Message = dict[str, Any]
NO_RESULT = "(no result was recorded)"
_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "refusal")
_TOOL_ORDER = ("type", "function", "name", "description", "parameters")
_SCHEMA_ORDER = ("type", "description", "enum", "properties", "items", "required", "additionalProperties")
_ROLES = {"user_message": "user", "system_message": "system"}
_RESULTS = frozenset({"tool_result", "subordinate_response"})


@dataclass
class Conversation:
    """``messages`` and ``tools`` in the form of a chat request; the arguments of calls are JSON text."""

    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    answer_at: dict[int, int] = field(default_factory=dict)
    """Number of a turn → index of its answer in ``messages``."""

    @property
    def answers(self) -> int:
        """Number of assistant messages."""
        return sum(message["role"] == "assistant" for message in self.messages)

    def until_last_answer(self) -> Conversation:
        """Returns the conversation without the messages after the last answer."""
        last = max((n for n, one in enumerate(self.messages) if one["role"] == "assistant"), default=-1)
        return Conversation(self.messages[: last + 1], self.tools, self.answer_at)

    def texts(self) -> list[dict[str, str]]:
        """Returns role and text of each message; tools and calls are in the words that the gateway uses for a
        model without a tool template. A system message is put first if only the tools need one."""
        return in_words(self.messages, self.tools)


def conversation(trajectory: Mapping[str, Any], *, as_said: bool = False) -> Conversation:
    """Returns the conversation of a ``trajectory.v1`` document.

    With ``as_said``, a call that the agent wrote as text (``{"tool_name": …}``, as Agent Zero does) stays
    text and its result becomes a user message: a model that will serve the same agent must learn this form.
    Otherwise every call becomes one of ``tool_calls``. The conversations of a task that had several at a time
    follow one another.
    """
    builder = _Builder(as_said)
    conversations: dict[Any, list[Mapping[str, Any]]] = {}
    for turn in trajectory["turns"]:
        conversations.setdefault(turn["action"].get("conversation", 1), []).append(turn)
    for turns in conversations.values():
        builder.begin()
        for turn in turns:
            builder.add(turn)
    return builder.finished()


class _Builder:
    """Adds turns in order and remembers the calls that wait for their results."""

    def __init__(self, as_said: bool) -> None:
        self._as_said = as_said
        self._messages: list[Message] = []
        self._tools: dict[str, dict[str, Any]] = {}
        self._answer_at: dict[int, int] = {}
        self._waiting: dict[str, Mapping[str, Any] | None] = {}
        """Id of a call → the result recorded in its turn, in the order of the calls."""
        self._group = 0
        """Turn of the assistant message whose calls wait; 0 if there is none."""
        self._interrupted = False

    def begin(self) -> None:
        """Begins a conversation. No request of it answers a call of the one before."""
        if any(_told(result) is not None for result in self._waiting.values()):
            self._settle()
        self._waiting, self._group, self._interrupted = {}, 0, False

    def add(self, turn: Mapping[str, Any]) -> None:
        observation, action = turn["observation"], turn["action"]
        for tool in (observation.get("context") or {}).get("tools") or ():
            name = name_of(tool)
            if name is not None:
                self._tools[name] = _usual(tool)
        content = observation["content"]
        repeated = content.get("same_as_turn") if isinstance(content, Mapping) else None
        if repeated is not None and repeated == self._group and "tool_call_id" in action:
            self._answer_at[turn["turn_id"]] = len(self._messages) - 1
            self._call(action["tool_call_id"], action, turn["result"])
            return
        if repeated is None:
            self._observe(observation)
        elif self._interrupted:
            self._take_back()
        self._answer(turn)

    def finished(self) -> Conversation:
        """Returns the conversation. If the turn of a waiting call has a result, all of them are answered."""
        self.begin()
        return Conversation(self._messages, list(self._tools.values()), self._answer_at)

    def _observe(self, observation: Mapping[str, Any]) -> None:
        content, kind = observation["content"], observation["type"]
        if isinstance(content, Mapping) and _are_messages(content.get("messages")):
            new = [_message(message) for message in content["messages"]]
            results = [one for one in new if self._waiting and one["role"] == "tool"]
            for one in results:
                name = one.get("tool_call_id")
                name = str(name if name in self._waiting or not self._waiting else next(iter(self._waiting)))
                one["tool_call_id"] = name
                self._waiting.pop(name, None)
            self._messages += results
            self._settle()
            self._messages += [one for one in new if not any(one is other for other in results)]
            return
        text = _text(content)
        if kind in _RESULTS and self._waiting:
            name = next(iter(self._waiting))
            del self._waiting[name]
            self._messages.append({"role": "tool", "tool_call_id": name, "content": text})
            self._settle()
            return
        self._settle()
        self._messages.append({"role": _ROLES.get(kind, "user"), "content": text})

    def _settle(self) -> None:
        """Adds a tool message for each call that still waits, as the chat API requires."""
        for name, result in self._waiting.items():
            told = _told(result)
            content = NO_RESULT if told is None else told
            self._messages.append({"role": "tool", "tool_call_id": name, "content": content})
        self._waiting, self._group = {}, 0

    def _take_back(self) -> None:
        """Removes the previous answer, which was cut off and requested again: the agent never used it."""
        if self._messages and self._messages[-1]["role"] == "assistant":
            self._messages.pop()
            self._answer_at = {turn: at for turn, at in self._answer_at.items() if at < len(self._messages)}
        self._waiting, self._group = {}, 0

    def _answer(self, turn: Mapping[str, Any]) -> None:
        action, result = turn["action"], turn["result"]
        self._settle()
        self._interrupted = not result["success"] and "tool_call_id" not in action
        raw = action.get("raw_response")
        if not action.get("tool_name") or action["type"] == "response":
            said = raw if raw is not None else _spoken(action, result)
            if said is not None:
                self._say(turn, said)
            return
        calls, content, is_text = _written(raw, action)
        if is_text and self._as_said:
            self._say(turn, str(raw))
            return
        self._say(turn, content)
        self._group = turn["turn_id"]
        if "tool_call_id" in action:  # further calls of the same answer have their own turns
            self._call(str(action["tool_call_id"]), action, result)
            return
        for number, (name, call) in enumerate(calls):
            self._call(name or f"call_{turn['turn_id']}_{number}", call, result if number == 0 else None)

    def _say(self, turn: Mapping[str, Any], content: str | None) -> None:
        self._answer_at[turn["turn_id"]] = len(self._messages)
        self._messages.append({"role": "assistant", "content": content})

    def _call(self, name: str, action: Mapping[str, Any], result: Mapping[str, Any] | None) -> None:
        arguments = json.dumps(action.get("tool_args") or {}, ensure_ascii=False)
        function = {"name": str(action["tool_name"]), "arguments": arguments}
        message = self._messages[-1]
        message.setdefault("tool_calls", []).append({"id": name, "type": "function", "function": function})
        self._waiting[name] = result


def _written(
    raw: str | None, action: Mapping[str, Any]
) -> tuple[list[tuple[str, Mapping[str, Any]]], str | None, bool]:
    """Returns ``(calls, content, is_text)`` of an answer that calls tools.

    ``calls`` are those in its turn and ``content`` is the text beside them. ``is_text`` is True if the call
    is only text in the answer, so that no client ever saw it as a call.
    """
    others = action.get("parallel_calls") or []
    calls: list[tuple[str, Mapping[str, Any]]] = [("", one) for one in [action, *others]]
    if raw is None:
        return calls, None, False
    listed = _openai_calls(raw)
    if listed:
        named = [str(call.get("id") or "") for call in listed]
        return [(name, call) for name, (_, call) in zip(named, calls, strict=False)], None, False
    said = read_answer(raw, {str(one["tool_name"]) for _, one in calls}, "")
    if said.calls:
        return calls, said.content, "tool_call_id" not in action
    return calls, raw or None, False


def _openai_calls(raw: str) -> list[Mapping[str, Any]]:
    """Returns the ``tool_calls`` of a completion without text, which the recorder stores as JSON."""
    if not raw.startswith("["):
        return []
    try:
        listed = json.loads(raw)
    except (ValueError, RecursionError):
        return []
    whole = isinstance(listed, list) and all(isinstance(one, dict) and "function" in one for one in listed)
    return listed if whole else []


def _spoken(action: Mapping[str, Any], result: Mapping[str, Any]) -> str | None:
    """Returns the text of an answer without ``raw_response``; None if there was no answer."""
    if action["type"] != "response":
        return json.dumps(
            {"action": action["type"], "arguments": action.get("tool_args")}, ensure_ascii=False
        )
    told = result.get("output") if result["success"] else None
    return None if told is None else _text(told)


def _told(result: Mapping[str, Any] | None) -> str | None:
    for name in ("output", "error"):
        if result is not None and result.get(name) is not None:
            return _text(result[name])
    return None


def _are_messages(given: Any) -> bool:
    return isinstance(given, list) and all(
        isinstance(one, Mapping) and isinstance(one.get("role"), str) for one in given
    )


def _message(given: Mapping[str, Any]) -> Message:
    """Copies a message with only the fields of the chat API. Its content becomes text: parts are joined, a
    picture becomes its note, thoughts are left out, and calls in the content become ``tool_calls``."""
    kept = {name: given[name] for name in _FIELDS if given.get(name) is not None}
    kept.pop("tool_calls", None)
    if kept["role"] == "function":
        kept["role"] = "tool"
    if kept["role"] != "assistant":
        return {**kept, "content": text(given.get("content"))}
    parts = read_message(given)
    if parts.calls and all(name_of(call) for call in parts.calls):
        kept["tool_calls"] = parts.calls
    said = parts.text + text(parts.others)
    return {**kept, "content": said or (None if "tool_calls" in kept else "")}


def _usual(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a tool with its keys in the order in which tools are usually written and shown to models. A
    stored document has its keys sorted."""
    made = _ordered(tool, _TOOL_ORDER)
    made["function"] = _ordered(tool["function"], _TOOL_ORDER)
    if isinstance(made["function"].get("parameters"), Mapping):
        made["function"]["parameters"] = _ordered(made["function"]["parameters"], _SCHEMA_ORDER)
    return made


def _ordered(given: Mapping[str, Any], first: Sequence[str]) -> dict[str, Any]:
    return {name: given[name] for name in (*first, *given) if name in given}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
