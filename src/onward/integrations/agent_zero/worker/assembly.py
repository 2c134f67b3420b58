"""Builds a trajectory from the events of one task. Pure.

One call of the language model is one turn; further tools that the same answer started are turns of their own
that refer to it, as everywhere in Onward.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, get_args

from onward.capture.conversations import exchange, turns
from onward.clock import utc_text
from onward.contracts.trajectory import SubordinateProfile
from onward.integrations.agent_zero.worker import action, sampled

Event = Mapping[str, Any]
STATUS = {"success": "completed_successfully", "error": "failed", "aborted": "abandoned"}
HOST_ENDED = "Agent Zero ended before the task did"
PROFILES: frozenset[str] = frozenset(get_args(SubordinateProfile))


class Assembly:
    """The events of one task, in the order in which they came."""

    def __init__(self, opened: Event) -> None:
        self.opened = opened
        self._turns: dict[int, Event] = {}

    @property
    def turns(self) -> list[Event]:
        return [self._turns[number] for number in sorted(self._turns)]

    def add(self, turn: Event) -> None:
        """Adds a turn, in place of an earlier state of it."""
        self._turns[int(turn["n"])] = turn

    def document(self, closed: Event, facts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """Returns the trajectory, and the turn of each of Agent Zero's messages. ``facts``: ``agent_id``,
        ``task_type``, ``host`` (its version), ``model`` and ``records`` (of the gateway)."""
        opened = self.opened
        made: list[dict[str, Any]] = []
        places: dict[str, int] = {}
        before: Event = {}
        records: list[dict[str, Any]] = list(facts.get("records") or [])
        for raw in self.turns or [_no_turn(opened)]:
            built = _turns(raw, before, len(made) + 1, closed)
            if raw.get("gateway"):
                sampled.add_record(built[0], records)
            for name in raw.get("messages", ()):
                places[str(name)] = len(made) + 1
            made += built
            before = raw
        _add_final(made[-1], closed)
        number, profile = int(opened["agent"]), str(opened.get("profile") or "")
        document = {
            "trajectory_id": opened["t"],
            "session_id": f"a0-{opened['root']}",
            "agent_id": _agent_id(str(facts.get("agent_id") or "agent-zero"), number, profile),
            "start_timestamp": _time(opened["at"]),
            "end_timestamp": _time(max(closed["at"], opened["at"])),
            "turns": [{**turn, "turn_id": place} for place, turn in enumerate(made, start=1)],
            "task_context": self._context(facts),
            "metadata": self._metadata(closed, facts),
        }
        sampled.describe(document)
        if number > 0 and profile in PROFILES:
            document["subordinate_profile"] = profile
        return turns.plain(document), places

    def _context(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        told = request_of(self.opened.get("content"))
        context: dict[str, Any] = {
            "task_id": str(self.opened.get("message") or self.opened["t"]),
            "instructions": told["text"],
        }
        if names := told["attachments"]:
            context["attachments"] = names
        if told["system"]:
            context["system_message"] = told["system"]
        if facts.get("task_type"):
            context["task_type"] = str(facts["task_type"])
        return context

    def _metadata(self, closed: Event, facts: Mapping[str, Any]) -> dict[str, Any]:
        opened = self.opened
        models = list(dict.fromkeys(str(turn["model"]) for turn in self.turns if turn.get("model")))
        served = any(turn.get("gateway") for turn in self.turns) and facts.get("model")
        metadata: dict[str, Any] = {
            "model": str(served or (models[-1] if models else "unknown")),
            "outcome": {"status": STATUS[closed["status"]]},
            "capture": {"source": "agent_zero", "closed": _closed(closed)},
            "agent_zero": {
                "version": str(facts.get("host") or "") or None,
                "chat": opened["chat"],
                "kind": opened.get("kind"),
                "agent_number": opened["agent"],
                "profile": opened.get("profile") or None,
                "project": opened.get("project") or None,
                "status": closed["status"],
                "model_calls": len(self.turns),
            },
        }
        if len(models) > 1:
            metadata["models"] = models
        if opened.get("parent"):
            metadata["parent_trajectory_id"], metadata["parent_turn"] = opened["parent"]
        if system := next((text for text in map(_system, self.turns) if text), ""):
            digest = hashlib.sha256(system.encode("utf-8", "replace")).hexdigest()
            metadata["agent_zero"]["system_prompt_sha256"] = digest
        return metadata


def request_of(content: Any) -> dict[str, Any]:
    """Reads the message that began a task: of the user, or the result of a subordinate after a restart."""
    if not isinstance(content, Mapping):
        return {"text": content if isinstance(content, str) else "", "attachments": [], "system": None}
    text = ""
    for name in ("user_message", "user_intervention", "message", "tool_result"):
        if isinstance(content.get(name), str):
            text = content[name]
            break
    files = content.get("attachments")
    names = [PurePath(str(one)).name for one in files] if isinstance(files, (list, tuple)) else []
    return {"text": text, "attachments": names, "system": content.get("system_message") or None}


def _turns(raw: Event, before: Event, first: int, closed: Event) -> list[dict[str, Any]]:
    """Returns the turns of one call of the language model."""
    response = str(raw.get("response") or "")
    answer = action.read(response)
    calls: Sequence[Event] = raw.get("calls") or ()
    at = _time(raw["at"])
    seen = _observation(raw, before, first)
    thoughts = action.thoughts(answer, str(raw.get("reasoning") or ""))
    if calls and not answer and response and calls[0]["tool"] != "response":
        thoughts.append(response)  # text beside calls that have a field of their own
    if not calls:
        taken = _uncalled(response, answer)
        result = _without_call(raw, before, answer, closed)
        one: dict[str, Any] = {"timestamp": at, "observation": seen, "action": taken, "result": result}
        made = [one]
    else:
        made = [
            _called(call, seen if not number else _same(seen, first), at, closed)
            for number, call in enumerate(calls)
        ]
        made[0]["action"]["raw_response"] = response
        name = answer.get("tool_name")
        if isinstance(name, str) and name.partition(":")[0] == made[0]["action"]["tool_name"]:
            made[0]["action"]["tool_name"] = name
        if len(calls) > 1:
            made[0]["action"]["parallel_calls"] = [
                {"tool_name": call["tool"], "tool_args": _arguments(call.get("args"))} for call in calls[1:]
            ]
    if thoughts:
        made[0]["thought_process"] = thoughts
    for name in ("ms", "further_calls"):
        if name in raw:
            made[0]["action"]["model_" + name] = raw[name]
    for name in ("warnings", "interventions", "errors"):
        if raw.get(name):
            made[-1]["result"][name] = list(raw[name])
    if raw.get("messages"):
        made[0]["action"]["message_id"] = str(raw["messages"][-1])
    return made


def _called(call: Event, seen: dict[str, Any], at: str, closed: Event) -> dict[str, Any]:
    tool = str(call["tool"])
    taken = {"type": action.kind_of(tool), "tool_name": tool, "tool_args": _arguments(call.get("args"))}
    result: dict[str, Any]
    if "error" in call:
        result = {"success": False, "error": str(call["error"])}
        if call.get("result"):
            result["output"] = call["result"]
    elif "result" in call:
        result = {"success": not call.get("partial"), "output": call["result"]}
        if call.get("partial"):
            result["error"] = "interrupted: only the progress of the tool is known"
    else:
        result = {"success": False, "error": _ended(closed)}
    if "ms" in call:
        result["execution_time_ms"] = call["ms"]
    if call.get("subordinates"):
        result["subordinate_trajectories"] = list(call["subordinates"])
    return {"timestamp": at, "observation": seen, "action": taken, "result": result}


def _uncalled(response: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the action of an answer whose tool never ran."""
    taken: dict[str, Any] = {"type": "response"}
    if isinstance(answer.get("tool_name"), str) and answer["tool_name"]:
        taken = {
            "type": action.kind_of(answer["tool_name"].partition(":")[0]),
            "tool_name": answer["tool_name"],
        }
        taken["tool_args"] = _arguments(answer.get("tool_args"))
    return {**taken, "raw_response": response} if response else taken


def _without_call(raw: Event, before: Event, answer: Mapping[str, Any], closed: Event) -> dict[str, Any]:
    """Returns the result of an answer that ran no tool."""
    told = [_words(one) for one in (*raw.get("errors", ()), *raw.get("warnings", ()))]
    if raw.get("cut") or (raw.get("interventions") and "response" not in raw):
        return {"success": False, "error": "cancelled: the user wrote before the answer was complete"}
    if "response" not in raw:
        return {"success": False, "error": told[0] if told else _ended(closed)}
    if raw["response"] and raw["response"] == before.get("response"):
        return {"success": False, "error": "repeated: the same answer as before"}
    if told:
        return {"success": False, "error": told[0] if answer else f"unparsable: {told[0]}"}
    if closed["status"] == "success":
        return {"success": True}
    return {"success": False, "error": _ended(closed)}


def _observation(raw: Event, before: Event, first: int) -> dict[str, Any]:
    new = [{"role": role, "content": content} for role, content in raw.get("new", ())]
    if not new:
        return {"type": "system_message", "content": {"same_as_turn": max(1, first - 1)}}
    seen = exchange.request_observation(new, None)
    if raw.get("interventions") or not before or before.get("interventions"):
        seen["type"] = "user_message"
    elif calls := before.get("calls"):
        delegated = calls[-1]["tool"] in action.DELEGATIONS
        seen["type"] = "subordinate_response" if delegated else "tool_result"
    else:
        seen["type"] = "system_message"
    if raw.get("context_break"):
        seen["context"] = {"memory_state": {"history_rewritten": True}}
    return seen


def _same(seen: Mapping[str, Any], first: int) -> dict[str, Any]:
    return {"type": seen["type"], "content": {"same_as_turn": first}}


def _no_turn(opened: Event) -> dict[str, Any]:
    """Returns the turn of a task that ended before its model was asked."""
    told = request_of(opened.get("content"))
    return {"at": opened["at"], "new": [("user", told["text"])]}


def _add_final(turn: dict[str, Any], closed: Event) -> None:
    """The final text is the output of the last turn, and an error that ended the task its error."""
    result = turn["result"]
    if closed["status"] == "success":
        if closed.get("result"):
            result.setdefault("output", closed["result"])
        return
    if closed.get("error"):
        result["success"] = False
        result.setdefault("error", str(closed["error"]))


def _arguments(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    return {} if value is None else {"value": value}


def _agent_id(base: str, number: int, profile: str) -> str:
    return f"{base}-main" if number == 0 else f"subordinate-{profile or 'default'}-{number}"


def _closed(closed: Event) -> str:
    return str(closed.get("how") or {"success": "answer", "error": "error"}.get(closed["status"], "aborted"))


def _ended(closed: Event) -> str:
    if closed["status"] == "success":
        return turns.UNFINISHED
    return str(closed.get("error") or "aborted")


def _system(turn: Event) -> str:
    return next(
        (text for role, text in turn.get("new", ()) if role == "system" and isinstance(text, str)), ""
    )


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return next((one for one in value.values() if isinstance(one, str)), "")
    return str(value)


def _time(seconds: float) -> str:
    return utc_text(datetime.fromtimestamp(seconds, UTC))
