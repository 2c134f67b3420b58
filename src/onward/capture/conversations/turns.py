"""Converts plain values into the parts of a turn: an agent passes text, dicts and completions unchanged.

Pure. ``plain`` converts everything to JSON, so that the redactor sees all of it and nothing is dropped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePath
from typing import Any, TypeGuard

from onward.capture.attachments import note_of
from onward.capture.conversations.content import MessageParts, document_of, read_message
from onward.clock import utc_text
from onward.contracts import MAX_DEPTH, decode_document
from onward.errors import ContractError

MAX_TURNS = 2000
MAX_STRING = 64 * 1024
"""Bytes of one text, in UTF-8. An inbound limit: the collector refuses longer texts."""
UNFINISHED = "no result was reported before the task was closed"
_MESSAGES = (None, "message")
"""Types of a bare message; any other is an action that an agent made itself."""
CALL_DEPTH = MAX_DEPTH - 6
"""Levels of a tool call: the deepest place of its arguments in a trajectory is six levels down."""


@dataclass(frozen=True)
class Completion:
    """Content of a completion: the action, and values for the whole task. ``action`` has ``thought_process``,
    which belongs to the turn (``lift_thoughts``), and if known ``finish_reason`` and ``refusal``."""

    action: dict[str, Any]
    calls: list[dict[str, Any]] = field(default_factory=list)
    """The actions of its tool calls, each with its ``tool_call_id``."""
    metadata: dict[str, Any] = field(default_factory=dict)
    tokens: int = 0
    session_id: str | None = None


def observation(value: Any, *, first: bool) -> dict[str, Any]:
    """Returns ``{"type", "content", …}`` for text or an object. Raises ContractError for anything else."""
    kind = "user_message" if first else "tool_result"
    if isinstance(value, str):
        return {"type": kind, "content": value}
    if isinstance(value, Mapping):
        if "type" in value and "content" in value:
            return dict(value)
        return {"type": kind, "content": dict(value)}
    if isinstance(value, (list, tuple)):
        return {"type": kind, "content": {"items": list(value)}}
    raise _wrong("observation", value, "text or a dict")


def action(value: Any) -> dict[str, Any]:
    """Returns ``{"type", …}`` for text (a response) or a dict. Raises ContractError for anything else."""
    if isinstance(value, str):
        return {"type": "response", "raw_response": value}
    if isinstance(value, Mapping):
        if "type" in value:
            return dict(value)
        if "tool_name" in value:
            return {"type": "tool_call", **value}
    raise _wrong("action", value, "text, a dict with 'type' or 'tool_name', or a chat completion")


def result(value: Any) -> dict[str, Any]:
    """Returns ``{"success", …}`` for None, text, bool, dict or exception. Else raises ContractError."""
    if value is None:
        return {"success": True}
    if isinstance(value, bool):
        return {"success": value}
    if isinstance(value, str):
        return {"success": True, "output": value}
    if isinstance(value, Mapping):
        return dict(value) if "success" in value else {"success": True, "output": dict(value)}
    if isinstance(value, BaseException):
        return {"success": False, "error": f"{type(value).__name__}: {value}"}
    raise _wrong("result", value, "None, text, a bool, a dict or an exception")


def is_completion(value: Any) -> bool:
    """Returns whether it is a model's answer: a chat completion, or a message in another usual form."""
    if isinstance(value, Mapping):
        return "choices" in value or _message_of(value) is not None
    if not hasattr(value, "model_dump"):
        return False
    return any(hasattr(value, name) for name in ("choices", "stop_reason", "output"))


def completion(response: Any) -> Completion:
    """Reads a completion: a dict, or any object with ``model_dump``. The forms of OpenAI (chat, legacy,
    responses), Anthropic and Ollama are read. Raises ContractError for a response without a message."""
    document = (
        document_of(response) if isinstance(response, Mapping) or hasattr(response, "model_dump") else {}
    )
    found = _message_of(document)
    if found is None:
        raise ContractError(
            "completion", "The chat completion has no choices[0].message: pass the whole response."
        )
    message, reason = found
    parts = read_message(message)
    calls = [tool_call(call) for call in parts.calls]
    taken = _from_tool_calls(parts.calls, calls, parts.text) or _from_text(parts.text or parts.refusal)
    taken |= _described(parts, reason)
    ours = _mapping(document.get("onward"))
    if raw := _text(ours.get("raw_response")):
        taken["raw_response"] = raw  # the model's text, before the gateway parsed it
    if sampling := _mapping(ours.get("sampling")):
        taken["sampling"] = dict(sampling)
    if others := _other_choices(document):
        taken["other_choices"] = others
    metadata: dict[str, Any] = {}
    if model := _text(document.get("model")):
        metadata["model"] = model
    if release := _mapping(ours.get("release")):
        metadata["release"] = dict(release)
    temperature = sampling.get("temperature")
    if _is_number(temperature) and temperature <= 2:
        metadata["temperature"] = temperature
    session_id = _text(ours.get("session_id"))
    return Completion(taken, _identified(parts.calls, calls), metadata, _tokens(document), session_id)


def _mapping(value: Any) -> Mapping[str, Any]:
    """Returns a mapping; an empty one for any other value, which a server sent by mistake."""
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _is_number(value: Any) -> TypeGuard[int | float]:
    """Returns whether it is a number from 0 that JSON can hold exactly; NaN is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**53


def lift_thoughts(action: dict[str, Any]) -> list[str]:
    """Removes the thoughts from the action of a completion and returns them: they belong to its turn."""
    thoughts = action.pop("thought_process", None)
    return list(thoughts) if isinstance(thoughts, list) else []


def _message_of(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any] | None:
    """Returns the message of a completion and the reason for its end; None for any other document."""
    choices = document.get("choices")
    if isinstance(choices, (list, tuple)) and choices and isinstance(choices[0], Mapping):
        first, message = choices[0], choices[0].get("message")
        if message is None and isinstance(first.get("text"), str):
            message = {"content": first["text"]}
        return (message, first.get("finish_reason")) if isinstance(message, Mapping) else None
    if isinstance(document.get("output"), list) and document.get("object") == "response":
        details = document.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, Mapping) else None
        return {"content": document["output"]}, reason or document.get("status")
    if isinstance(document.get("message"), Mapping) and "done_reason" in document:
        return document["message"], document["done_reason"]
    if document.get("role") == "assistant" and "content" in document and document.get("type") in _MESSAGES:
        return document, document.get("stop_reason")
    return None


def _described(parts: MessageParts, reason: Any) -> dict[str, Any]:
    """Returns the fields of an action that tell how its answer came about and ended."""
    told: dict[str, Any] = {}
    if parts.thoughts:
        told["thought_process"] = list(parts.thoughts)
    if parts.refusal:
        told["refusal"] = parts.refusal
    if isinstance(reason, str) and reason:
        told["finish_reason"] = reason
    if parts.others:
        told["other_parts"] = list(parts.others)
    return told


def _identified(calls: list[dict[str, Any]], actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the actions with the ids of their calls; one without an id, or with another's, gets its
    number."""
    found: dict[str, dict[str, Any]] = {}
    for index, (call, one) in enumerate(zip(calls, actions, strict=True)):
        name = str(call.get("id") or index)
        name = str(index) if name in found else name
        found[name] = {**one, "tool_call_id": name}
    return list(found.values())


def _tokens(document: Mapping[str, Any]) -> int:
    used = document.get("usage")
    used = used if isinstance(used, Mapping) else document
    whole = used.get("total_tokens")
    names = ("input_tokens", "output_tokens", "prompt_eval_count", "eval_count")
    counts = [whole] if whole else [used.get(name) for name in names]
    return sum(int(count) for count in counts if _is_number(count))


def _other_choices(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the actions of the choices after the first (``n`` above 1)."""
    choices = document.get("choices")
    further = [{"choices": [one]} for one in choices[1:]] if isinstance(choices, (list, tuple)) else []
    return [completion(one).action for one in further if _message_of(one) is not None]


def tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Converts one of a message's ``tool_calls`` to an action."""
    function = _mapping(call.get("function"))
    return {
        "type": "tool_call",
        "tool_name": str(function.get("name") or ""),
        "tool_args": _arguments(function.get("arguments")),
    }


def _from_tool_calls(
    calls: list[dict[str, Any]], actions: list[dict[str, Any]], text: str
) -> dict[str, Any] | None:
    """Returns the first call as the action; further ones (parallel calls) are stored with it."""
    if not calls:
        return None
    first, *others = actions
    first = {**first, "raw_response": text or json.dumps(calls, default=str)}
    if others:
        first["parallel_calls"] = [
            {"tool_name": other["tool_name"], "tool_args": other["tool_args"]} for other in others
        ]
    return first


def _from_text(text: str) -> dict[str, Any]:
    """Reads text; one JSON object with ``tool_name`` (Agent Zero's form) is a tool call."""
    plain_answer = {"type": "response", "raw_response": text}
    if not text.lstrip().startswith("{"):
        return plain_answer
    try:
        answer = decode_document(text.encode(), max_depth=CALL_DEPTH)
    except (ContractError, UnicodeEncodeError):
        return plain_answer
    name = answer.get("tool_name") if isinstance(answer, dict) else None
    if not isinstance(name, str) or not name:
        return plain_answer
    arguments = answer.get("tool_args")
    called = {"tool_name": name, "tool_args": arguments if isinstance(arguments, dict) else {}}
    return {"type": "response" if name == "response" else "tool_call", **called, "raw_response": text}


def _arguments(text: Any) -> dict[str, Any]:
    if isinstance(text, Mapping):
        return dict(text)
    try:
        parsed = decode_document((text or "{}").encode(), max_depth=CALL_DEPTH)
    except (ContractError, UnicodeEncodeError, AttributeError):
        return {"unparsed": str(text)}
    return parsed if isinstance(parsed, dict) else {"value": parsed}


def _are_numbers(values: list[Any]) -> bool:
    kinds = set(map(type, values))
    return kinds == {int} or (kinds == {float} and all(map(math.isfinite, values)))


def plain(value: Any, depth: int = 0) -> Any:
    """Returns a copy of ``value`` in JSON values only: other objects become text, NaN and infinity become
    null.

    ``depth`` is its depth in the message. Raises ContractError (``too_deep``) beyond the contract's limit,
    also for a value that contains itself.
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (Mapping, list, tuple, set, frozenset)) and depth >= MAX_DEPTH:
        raise ContractError(
            "too_deep", f"A value nests deeper than the {MAX_DEPTH} levels of a message: record it as text."
        )
    if type(value) is list and _are_numbers(value):
        return list(value)  # ids and log-probs: most of a trajectory
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, datetime):
        return utc_text(value) if value.tzinfo else value.isoformat()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return note_of(bytes(value)) or f"<{len(value)} bytes>"
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json"), depth)
    return plain(str(value))


def cut_long(document: Any) -> tuple[Any, int]:
    """Returns a copy in which no text is longer than MAX_STRING bytes, and the number of texts that were cut.
    Texts are cut in the middle: a request is at the beginning of a text and an error at its end.

    Only after redaction: the token ids still contain the text that is cut, so the redactor must have seen it.
    """
    if isinstance(document, str):
        if len(document) * 4 <= MAX_STRING or len(document.encode()) <= MAX_STRING:
            return document, 0
        data = document.encode()
        half = (MAX_STRING - 64) // 2
        head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
        cut = len(data) - len(head.encode()) - len(tail.encode())
        return f"{head} … [{cut} bytes cut] … {tail}", 1
    if isinstance(document, dict):
        pairs = {key: cut_long(value) for key, value in document.items()}
        return {key: value for key, (value, _) in pairs.items()}, sum(n for _, n in pairs.values())
    if isinstance(document, list) and any(isinstance(item, (str, dict, list)) for item in document):
        items = [cut_long(item) for item in document]
        return [item for item, _ in items], sum(n for _, n in items)
    return document, 0


def has_long_text(document: Any) -> bool:
    """Returns whether some text is longer than MAX_STRING bytes in UTF-8."""
    pending = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            if len(value) * 4 > MAX_STRING and len(value.encode("utf-8", "replace")) > MAX_STRING:
                return True
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list) and value and not isinstance(value[0], (int, float)):
            pending += value
    return False


def _wrong(what: str, value: Any, expected: str) -> ContractError:
    return ContractError("turn", f"{what} is a {type(value).__name__}; expected {expected}.")
