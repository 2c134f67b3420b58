"""Only one explicit vote per session counts in training, so that a single user cannot vote a policy up or
down.

Invariants: only ``raw_total`` contains votes; the outcome, which is the return unless a request asks
otherwise, never does. A vote that does not count is replaced by the neutral score, under its own weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onward.reward.components.user_feedback import NEUTRAL

COMPONENT = "user_feedback"


def vote(reward: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns weight, score and time of the explicit vote in a reward; None without a vote."""
    part = (reward.get("reward_components") or {}).get(COMPONENT)
    if part is None or (part.get("raw_data") or {}).get("kind") != "explicit":
        return None
    return {"weight": float(part["weight"]), "score": float(part["score"]), "at": str(reward["timestamp"])}


def one_per_session(lines: Iterable[dict[str, Any]]) -> int:
    """Removes from ``raw_total`` every explicit vote but the newest of its session; returns their number.

    A line has under ``vote`` the result of ``vote`` for its reward; the field is deleted here.
    """
    newest: dict[str, dict[str, Any]] = {}
    voted = [line for line in lines if "vote" in line]
    for line in voted:
        best = newest.get(line["session_id"])
        if best is None or _order(line) > _order(best):
            newest[line["session_id"]] = line
    spare = [line for line in voted if newest[line["session_id"]] is not line]
    for line in spare:
        line["raw_total"] += line["vote"]["weight"] * (NEUTRAL - line["vote"]["score"])
    for line in voted:
        del line["vote"]
    return len(spare)


def _order(line: Mapping[str, Any]) -> tuple[str, str]:
    return line["vote"]["at"], line["trajectory_id"]
