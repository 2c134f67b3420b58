"""Makes a trajectory fit into one message where there is no object store for a larger one. Pure.

Long tool results in the middle of the task are left out first, whole: a part of a text could hide a secret
from the redactor. What the user asked and how the task ended stay.
"""

from __future__ import annotations

from typing import Any

from onward.capture.claim_check import DIRECT_BYTES
from onward.capture.conversations.turns import MAX_STRING, MAX_TURNS

LIMIT = int(0.85 * DIRECT_BYTES)
"""Bytes before redaction, which may add some."""
NOTE = "[left out: the task is larger than a message, and no object store is configured]"
_SMALL = 2000


def fit(document: dict[str, Any], *, has_store: bool) -> int:
    """Replaces the longest values in place until the document is small enough; returns their number."""
    left_out = _fewer_turns(document)
    if has_store:
        return left_out
    places = _places(document["turns"])
    size = sum(size for size, *_ in places) + 4000
    records = sum(cost(turn["action"].get("sampling")) for turn in document["turns"])
    if size + records > LIMIT:  # texts that are left out must not stay in the tokens
        for turn in document["turns"]:
            turn["action"].pop("sampling", None)
        if records:
            document["metadata"]["records_left_out"] = True
    for part, holder, name in sorted(places, key=lambda place: -place[0]):
        if size <= LIMIT or part <= _SMALL:
            break
        holder[name] = NOTE if isinstance(holder[name], str) else {"left_out": NOTE}
        size -= part - len(NOTE)
        left_out += 1
    if left_out:
        document["metadata"]["texts_left_out"] = left_out
    return left_out


def _fewer_turns(document: dict[str, Any]) -> int:
    made = document["turns"]
    if len(made) <= MAX_TURNS:
        return 0
    gone = len(made) - MAX_TURNS
    half = MAX_TURNS // 2
    document["turns"] = [
        {**turn, "turn_id": number}
        for number, turn in enumerate([*made[:half], *made[half + gone :]], start=1)
    ]
    document["metadata"]["turns_left_out"] = gone
    return gone


def _places(made: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any], str]]:
    """Returns size, holder and name of the parts that may be left out, and the small ones beside them."""
    found: list[tuple[int, dict[str, Any], str]] = []
    for turn in made:
        for holder, name in (
            (turn["result"], "output"),
            (turn["observation"], "content"),
            (turn["action"], "tool_args"),
            (turn["action"], "raw_response"),
        ):
            if name in holder:
                found.append((cost(holder[name]), holder, name))
    return found


def cost(value: Any) -> int:
    """Returns the bytes of a value in the message, at most: longer texts are cut after redaction."""
    if isinstance(value, str):
        return min(len(value.encode("utf-8", "replace")), MAX_STRING) + 4
    if isinstance(value, dict):
        return sum(len(str(key)) + 6 + cost(one) for key, one in value.items())
    if isinstance(value, list):
        return sum(map(cost, value)) + 2
    if isinstance(value, float):
        return 22
    return 8 if value is not None else 0
