"""Adds fields to a trajectory for the collector, and builds its row. Pure.

The identity is computed before any field is added: two versions of Onward that guess different domains still
agree whether two messages are the same trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from onward.contracts import canonical_json, sha256_hex

MIXED = "mixed"
"""``model_digest`` of a trajectory that several policies sampled: never used for training."""

_DOMAIN_WORDS: dict[str, str] = {
    "debugging": "bug debug debugging error exception traceback crash fails failing failure fix broken",
    "coding": "code coding function class implement refactor script python javascript rust compile test "
    "tests repository repo api library module program",
    "data_analysis": "data csv dataset dataframe table column columns plot chart statistics average mean "
    "median sql query spreadsheet regression sum",
    "research": "research search find sources source paper papers literature compare summarize summarise "
    "investigate survey information",
    "writing": "write writing essay article blog email letter draft rewrite translate story poem edit "
    "proofread",
}
_WORDS = {domain: frozenset(words.split()) for domain, words in _DOMAIN_WORDS.items()}


def identity(redacted: dict[str, Any], policy_version: str) -> str:
    """Returns ``<policy version>:<SHA-256>`` of the canonical JSON after redaction and before enrichment."""
    return f"{policy_version}:{sha256_hex(canonical_json(redacted))}"


def same(one: str, other: str) -> bool:
    """Returns whether two identities may be one trajectory. Across policy versions this is only a guess: the
    text may have been redacted differently, so it does not count as a conflict."""
    return one == other or one.partition(":")[0] != other.partition(":")[0]


def completes(document: Mapping[str, Any], earlier: Mapping[str, Any]) -> bool:
    """Returns whether ``document`` is ``earlier`` with its outcome or with further turns: a gateway recorded
    the task while it was open (as one that was killed), and recorded it again when it had ended."""
    if not (_is_of_gateway(document) and _is_of_gateway(earlier)):
        return False
    if any(document[name] != earlier[name] for name in ("session_id", "agent_id", "start_timestamp")):
        return False
    before, now = _steps(earlier), _steps(document)
    outcomes = [one["metadata"].get("outcome") for one in (earlier, document)]
    if now[: len(before)] != before or outcomes[0] not in (None, outcomes[1]):
        return False
    return len(now) > len(before) or outcomes[0] != outcomes[1]


def _is_of_gateway(document: Mapping[str, Any]) -> bool:
    capture = document.get("metadata", {}).get("capture")
    return isinstance(capture, Mapping) and capture.get("source") == "gateway"


def _steps(document: Mapping[str, Any]) -> list[Any]:
    """Returns what was seen and done in each turn; the result of the last one may still be unknown."""
    return [(turn["observation"], turn["action"]) for turn in document["turns"]]


def enrich(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy in which absent ``domain``, ``task_type`` and ``complexity_score`` are filled in."""
    context = dict(document["task_context"])
    if context.get("domain") is None:
        context["domain"] = guess_domain(document)
    if not isinstance(context.get("task_type"), str):
        context["task_type"] = context["domain"]
    if context.get("complexity_score") is None:
        context["complexity_score"] = complexity(document)
    return {**document, "task_context": context}


def guess_domain(document: dict[str, Any]) -> str:
    """Returns the domain with the most words in instructions and tool names; ``general`` without any."""
    text = " ".join([document["task_context"]["instructions"], *_tools(document)])
    words = "".join(c if c.isalnum() else " " for c in text[:20_000].lower()).split()
    scores = {domain: sum(word in known for word in words) for domain, known in _WORDS.items()}
    best = max(scores, key=scores.__getitem__)
    return best if scores[best] else "general"


def complexity(document: dict[str, Any]) -> float:
    """Returns 0 (one plain answer) to 1, from turns, tools, failures, request length and subordinates."""
    turns = document["turns"]
    failed = sum(not turn["result"]["success"] for turn in turns) / len(turns)
    delegated = any(turn["action"]["type"] == "subordinate_call" for turn in turns)
    score = (
        0.40 * (1.0 - math.exp(-(len(turns) - 1) / 6.0))
        + 0.20 * min(1.0, len(set(_tools(document))) / 5.0)
        + 0.15 * failed
        + 0.15 * min(1.0, len(document["task_context"]["instructions"]) / 2000.0)
        + 0.10 * delegated
    )
    return round(score, 4)


def row(document: dict[str, Any], *, identity: str, stream_seq: int, ingested_at: datetime) -> dict[str, Any]:
    """Returns the row of table ``trajectories`` for an enriched document. Unknown text columns are empty."""
    context, metadata = document["task_context"], document["metadata"]
    success, completion = _success(document)
    release = metadata.get("release") if isinstance(metadata.get("release"), dict) else {}
    return {
        "trajectory_id": document["trajectory_id"],
        "session_id": document["session_id"],
        "agent_id": document["agent_id"],
        "model_digest": model_digest(document),
        "model_version": metadata["model"],
        "release_id": _text(release.get("release_id")),
        "arm": _text(release.get("arm")),
        "task_id": context["task_id"],
        "task_type": context["task_type"],
        "group_key": _text(context.get("group_id")),
        "domain": context["domain"],
        "start_ts": document["start_timestamp"],
        "end_ts": document["end_timestamp"],
        "n_turns": len(document["turns"]),
        "success": int(success),
        "completion": completion,
        "tokens": tokens(document),
        "stream_seq": stream_seq,
        "ingested_at": ingested_at,
        "payload_sha256": identity,
        "payload": canonical_json(document).decode(),
    }


def is_unjudged(metadata: Mapping[str, Any]) -> bool:
    """Returns whether the gateway, which sees only texts, recorded this and no one reported an outcome."""
    return not isinstance(metadata.get("outcome"), Mapping) and _is_of_gateway({"metadata": metadata})


def model_digest(document: dict[str, Any]) -> str:
    """Returns the digest of the policy that sampled all recorded turns; MIXED for several, empty for none."""
    digests = {record["model_digest"] for record in _records(document) if record.get("model_digest")}
    return digests.pop() if len(digests) == 1 else MIXED if digests else ""


def tokens(document: dict[str, Any]) -> int:
    """Returns ``metadata.total_tokens``, else the number of sampled and prompt tokens in the records."""
    total = document["metadata"].get("total_tokens")
    if isinstance(total, int):
        return total
    return sum(len(r.get("prompt_ids") or ()) + len(r.get("token_ids") or ()) for r in _records(document))


def _success(document: dict[str, Any]) -> tuple[bool, float]:
    """Reads ``metadata.outcome``; without one, a successful response as the last turn is a success. A
    trajectory recorded unjudged (``is_unjudged``) counts as 0."""
    outcome = document["metadata"].get("outcome")
    if isinstance(outcome, dict) and "status" in outcome:
        success = outcome["status"] == "completed_successfully"
        share = outcome.get("completion_percentage")
        return success, float(share) if isinstance(share, (int, float)) else float(success)
    if is_unjudged(document["metadata"]):
        return False, 0.0
    last = document["turns"][-1]
    success = last["action"]["type"] == "response" and last["result"]["success"]
    return success, float(success)


def _records(document: dict[str, Any]) -> list[dict[str, Any]]:
    found = [turn["action"].get("sampling") for turn in document["turns"]]
    return [record for record in found if isinstance(record, dict)]


def _tools(document: dict[str, Any]) -> list[str]:
    return [name for turn in document["turns"] if (name := turn["action"].get("tool_name"))]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
