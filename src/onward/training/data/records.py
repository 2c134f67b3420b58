"""Records of training files, one by one: their form, their fields, and the dataset lines made of them. Pure.

What cannot be learnt from raises LeftOutError, what has no known form ConfigError, with the record's place.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from onward.errors import ConfigError
from onward.training.data import admission, messages
from onward.training.data.messages import LeftOutError
from onward.training.data.report import DataReport

Line = dict[str, Any]
_SIDES = ("chosen", "rejected")
_WITHOUT_EFFECT = frozenset({"parallel_tool_calls", "metadata", "store"})
_CONVERSATION = frozenset(
    {"messages", "tools", "functions", "reward", "success", "group", "task_type", "id", "correction"}
)
_FIELDS: dict[str, frozenset[str]] = {
    "line": frozenset(
        {"trajectory_id", "task_id", "session_id", "task_type", "group_key", "outcome", "success",
         "unparsable", "raw_total", "calls", "grammars", "messages", "tools", "staleness", "turn_rewards",
         "correction", "policy", "vote", "place"}
    ),
    "pair": frozenset(
        {"prompt", *_SIDES, "input", "preferred_output", "non_preferred_output", "tools", "functions", "id"}
    ),
    "conversation": _CONVERSATION,
    "completion": frozenset({"prompt", "completion", *_CONVERSATION} - {"messages"}),
}  # fmt: skip
"""Form of a record → its fields. Published documents are open: their schemas allow others."""
_TYPO = 0.8
"""Similarity from which an unknown field is taken for a mistyped one."""
_SHORTEST = 5
"""Letters from which a name is compared: shorter ones, such as idx, uid and id, are alike by chance."""


def form_of(where: str, record: Mapping[str, Any]) -> str:
    """Returns the form of a record. Raises ConfigError if it has none."""
    if "turns" in record or "trajectory" in record:
        return "trajectory"
    if "reward_components" in record:
        return "reward"
    if "signal" in record:
        return "feedback"
    if "calls" in record or ("messages" in record and "group_key" in record):
        return "line"
    if all(side in record for side in _SIDES) or "preferred_output" in record:
        return "pair"
    if "messages" in record:
        return "conversation"
    if "prompt" in record and "completion" in record:
        return "completion"
    raise ConfigError(
        f"{where} is no trajectory, reward, conversation or pair (its fields are "
        f"{', '.join(sorted(record)[:6])}): see docs/train-command.md for the forms."
    )


def name_unread(where: str, record: Mapping[str, Any], form: str, excluded: DataReport) -> None:
    """Notes the fields that the form does not have. Raises ConfigError for one that looks mistyped."""
    known = _FIELDS.get(form)
    for name in record if known is not None else ():
        if known is None or name in known or name in _WITHOUT_EFFECT:
            continue
        comparable = [one for one in known - set(record) if len(one) >= _SHORTEST]
        near = difflib.get_close_matches(name, comparable, 1, _TYPO) if len(name) >= _SHORTEST else []
        if near:
            raise ConfigError(
                f"{where} has the field {name[:40]!r}, which is not read: rename it to {near[0]!r}, if that "
                f"is meant, or leave it out."
            )
        excluded.unread.setdefault(name[:40], place_of(where))


def completed(where: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a prompt and its completion as a conversation."""
    talk = [*_said(where, record["prompt"], "user"), *_said(where, record["completion"], "assistant")]
    return {**record, "messages": talk}


def line_of(where: str, record: Mapping[str, Any], *, text: bool = False) -> Line:
    """Returns a line of a frozen dataset. ``text``: the method learns from all answers, as ``admission`` has
    it. Raises ConfigError for a line that lacks a field, or has one of another form."""
    refuse_not_finite(record)
    missing = [name for name in _SCORES if name not in record]
    calls = record.get("calls", [])
    if missing or not isinstance(calls, list):
        raise ConfigError(
            f"{where} is a line of a dataset without {missing[0] if missing else 'a list of calls'}: give "
            f"lines as a job writes them."
        )
    for call in calls:
        absent = [
            name for name in admission.CALL_FIELDS[:6] if not isinstance(call, dict) or name not in call
        ]
        if absent:
            raise ConfigError(f"{where} has a call without {absent[0]}: give lines as a job writes them.")
        for name in ("prompt_ids", "token_ids"):
            if not _are_ids(call[name]):
                raise ConfigError(f"{where} has a call whose {name} are no list of token ids: give numbers.")
        if call["logprobs"] is not None and len(call["logprobs"]) != len(call["token_ids"]):
            raise LeftOutError("other_lengths")
    made = {"place": place_of(where), **record}
    if text and "calls" in made:
        made["calls"] = [
            {name: value for name, value in call.items() if name not in _SHAPE} for call in calls
        ]
        made.pop("grammars", None)
    return made


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)


_SHAPE = frozenset(("grammar", "trains"))
"""Fields of a call about a distribution that was shaped: only policy gradients ask for it."""


_SCORES = ("trajectory_id", "task_type", "group_key", "outcome", "success", "unparsable", "raw_total")


def refuse_not_finite(value: object) -> None:
    """Raises LeftOutError for a number that is NaN or infinite, anywhere in ``value``."""
    if isinstance(value, float) and not math.isfinite(value):
        raise LeftOutError("not_finite")
    if isinstance(value, dict):
        for one in value.values():
            refuse_not_finite(one)
    elif isinstance(value, list):
        for one in value:
            if isinstance(one, float | dict | list):
                refuse_not_finite(one)


def conversation(where: str, record: Mapping[str, Any]) -> Line:
    """Returns the line of a conversation. Raises ConfigError, LeftOutError."""
    outcome = record.get("success")
    if outcome is not None and outcome not in (True, False):
        raise ConfigError(f"{where} has a success that is neither true nor false: give one, or leave it out.")
    reward = record.get("reward", 1.0 if outcome is None else float(outcome))
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise ConfigError(f"{where} has a reward that is no number: give one, or leave it out for sft.")
    if not math.isfinite(reward):
        raise LeftOutError("not_finite")
    if outcome is None and "reward" not in record:
        outcome = True  # a demonstration
    talk = messages.messages_of(where, record["messages"])
    tools = messages.tools_of(where, record.get("tools"), record.get("functions"))
    reason = messages.problem(talk)
    if reason is not None:
        raise LeftOutError(reason)
    return {
        "trajectory_id": str(record.get("id", place_of(where))),
        "session_id": "",
        "task_type": str(record.get("task_type", "general")),
        "group_key": None if record.get("group") is None else str(record["group"]),
        "outcome": float(reward),
        "success": None if outcome is None else bool(outcome),
        "unparsable": False,
        "raw_total": float(reward),
        "messages": talk,
        **({"tools": tools} if tools else {}),
        "place": place_of(where),
    }


def pair(where: str, record: Mapping[str, Any]) -> list[Line]:
    """Returns the lines of a pair, in our form or OpenAI's (``input``, ``preferred_output`` …)."""
    given = record.get("input")
    given = given if isinstance(given, dict) else {}
    tools = given.get("tools", record.get("tools"))
    start = _said(where, given.get("messages", record.get("prompt", [])), "user")
    names = ("preferred_output", "non_preferred_output") if "preferred_output" in record else _SIDES
    made = []
    for side, name, reward in zip(_SIDES, names, (1.0, 0.0), strict=True):
        talk = {
            "messages": [*start, *_said(where, record[name], "assistant")],
            "tools": tools,
            "functions": record.get("functions"),
            "reward": reward,
            "group": f"pair at {where}",
            "id": f"{where} {side}",
        }
        made.append(conversation(where, talk))
    return made


def _said(where: str, given: object, role: str) -> list[Any]:
    if isinstance(given, str):
        return [{"role": role, "content": given}]
    if not isinstance(given, list):
        raise ConfigError(
            f"{where} has a prompt or an answer that is neither a text nor messages: give one of them."
        )
    return given


def place_of(where: str) -> str:
    return where.rstrip(",")
