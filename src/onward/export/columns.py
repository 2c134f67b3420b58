"""One row of typed columns for each trajectory, with the whole documents beside them as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from onward.capture.collecting import trajectory_row
from onward.capture.conversations.messages import conversation
from onward.export.records import Record
from onward.lm.tool_words import with_objects

if TYPE_CHECKING:
    import datasets
    import pyarrow

COLUMNS: dict[str, str] = {
    "trajectory_id": "string",
    "session_id": "string",
    "agent_id": "string",
    "task_id": "string",
    "task_type": "string",
    "group_id": "string",
    "domain": "string",
    "model": "string",
    "model_digest": "string",
    "release_id": "string",
    "arm": "string",
    "start": "timestamp",
    "end": "timestamp",
    "turns": "int32",
    "tokens": "int64",
    "status": "string",
    "success": "bool",
    "completed": "float64",
    "raw_total": "float64",
    "total_reward": "float64",
    "confidence": "float64",
    "reward_id": "string",
    "document": "string",
    "reward": "string",
}
"""Column → its type. Null means that the value was not reported; in a reward column it means no reward.
``completed`` is the share of the task that was completed: TRL reads a column ``completion`` as an answer."""


def row(record: Record) -> dict[str, Any]:
    """Returns the columns of one trajectory."""
    trajectory, reward = record.trajectory, record.reward or {}
    context, metadata = trajectory["task_context"], trajectory["metadata"]
    release, told = _object(metadata.get("release")), _object(metadata.get("outcome"))
    scored, outcome = _object(reward.get("metadata")), record.outcome or {}
    return {
        "trajectory_id": trajectory["trajectory_id"],
        "session_id": trajectory["session_id"],
        "agent_id": trajectory["agent_id"],
        "task_id": context["task_id"],
        "task_type": _text(context.get("task_type")),
        "group_id": _text(context.get("group_id")),
        "domain": _text(context.get("domain")),
        "model": metadata["model"],
        "model_digest": trajectory_row.model_digest(trajectory) or None,
        "release_id": _text(release.get("release_id")),
        "arm": _text(release.get("arm")),
        "start": datetime.fromisoformat(trajectory["start_timestamp"]),
        "end": datetime.fromisoformat(trajectory["end_timestamp"]),
        "turns": len(trajectory["turns"]),
        "tokens": trajectory_row.tokens(trajectory),
        "status": _text(told.get("status")),
        "success": outcome.get("success"),
        "completed": outcome.get("completion"),
        "raw_total": record.raw_total,
        "total_reward": reward.get("total_reward"),
        "confidence": scored.get("confidence"),
        "reward_id": reward.get("reward_id"),
        "document": _json(trajectory),
        "reward": _json(reward) if reward else None,
    }


def trainable_row(record: Record) -> dict[str, Any]:
    """Returns ``row`` with the conversation added: ``messages``, and ``tools`` as JSON text or null."""
    talk = conversation(record.trajectory).until_last_answer()
    tools = _json(talk.tools) if talk.tools else None
    return {**row(record), "messages": with_objects(talk.messages), "tools": tools}


def arrow_schema(columns: Mapping[str, str] = COLUMNS) -> pyarrow.Schema:
    """Returns the Parquet schema of these columns."""
    import pyarrow

    kinds = {"timestamp": pyarrow.timestamp("ms", tz="UTC"), "bool": pyarrow.bool_()}
    return pyarrow.schema(
        [(name, kinds.get(kind) or getattr(pyarrow, kind)()) for name, kind in columns.items()]
    )


def features(columns: Mapping[str, str] | None = None) -> datasets.Features:
    """Returns the ``datasets`` features of these columns; by default of ``trainable_row``."""
    from datasets import Features, Json, List, Value

    kinds = {"timestamp": "timestamp[ms, tz=UTC]"}
    found: dict[str, Any] = {
        name: Value(kinds.get(kind, kind)) for name, kind in (columns or COLUMNS).items()
    }
    return Features(found if columns else {**found, "messages": List(Json()), "tools": Value("string")})


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
