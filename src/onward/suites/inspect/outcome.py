"""The meaning of a finished sample of Inspect: score, transcript and note of an item.

A sample that failed, or that its scorer could not judge, has no score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

_WORDS = {"c": 1.0, "p": 0.5, "i": 0.0, "n": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""Inspect's letters for correct, partly correct, incorrect and no answer, and its words for a truth value."""
_NOTE_CHARACTERS = 300
UNREACHED = (
    *("APIConnectionError", "ConnectError", "Connection error"),
    *("Error code: 401", "Error code: 403", "Error code: 429"),
)
"""Beginnings of the message of a request that did not reach the policy."""
_SCORERS = ("/inspect_ai/scorer/", "in score\n", "scorer(")
"""Marks of a scorer's frame in a traceback."""
Fault = Literal["policy", "judge"]


def number(value: Any) -> float | None:
    """Returns a score's value as a number in [0, 1], or None if it is none. Of a list or a mapping it is the
    mean of the parts that are numbers."""
    if isinstance(value, str):
        value = _WORDS.get(value.strip().lower(), value)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        parts = [part for part in map(number, value) if part is not None]
        return sum(parts) / len(parts) if parts else None
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) and 0.0 <= found <= 1.0 else None


def item(sample: Any, default_kind: str) -> dict[str, Any]:
    """Returns the event of a finished sample (``inspect_ai.log.EvalSample``)."""
    score, note, fault = _judgement(sample)
    metadata = sample.metadata or {}
    return {
        "event": "item",
        "item_id": item_id(sample.id, sample.epoch),
        "kind": str(metadata.get("kind") or metadata.get("category") or default_kind),
        "score": score,
        "note": note[:_NOTE_CHARACTERS],
        "fault": fault,
        "transcript": [_message(message) for message in sample.messages],
    }


def item_id(sample_id: object, epoch: int) -> str:
    """Returns the name of an item: the sample's, with its repetition from the second one on."""
    return str(sample_id) if epoch == 1 else f"{sample_id}#{epoch}"


def _judgement(sample: Any) -> tuple[float | None, str, Fault]:
    """Returns score, note, and whose fault it is if there is no score. The first scorer of the task decides.
    An error is the policy's, such as a request that is too long for it, unless a scorer raised it or the
    request did not reach the policy."""
    if sample.error is not None:
        message = str(sample.error.message)
        scorer = any(frame in str(getattr(sample.error, "traceback", "")) for frame in _SCORERS)
        return None, message, "judge" if scorer or message.startswith(UNREACHED) else "policy"
    if not sample.scores:
        return None, "The task has no scorer.", "judge"
    name, score = next(iter(sample.scores.items()))
    value = number(score.value)
    if value is None:
        why = f"The value {score.value!r} of the scorer {name!r} is not a number in [0, 1]."
        return None, why, "judge"
    return value, str(score.explanation or ""), "judge"


def _message(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.text}
    calls = getattr(message, "tool_calls", None)
    if calls:
        found["tool_calls"] = [
            {"id": call.id, "function": call.function, "arguments": call.arguments} for call in calls
        ]
    return found
