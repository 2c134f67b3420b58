"""A data folder with a few trajectories and rewards in it, as collector and rewarder leave them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from onward.capture.collecting import trajectory_row
from onward.contracts import Reward, Trajectory, to_document, validate
from onward.contracts.examples import REWARD, TRAJECTORY
from onward.reward.scoring.rows import reward_row
from onward.warehouse import EmbeddedWarehouse

DAY = datetime(2026, 3, 1, 12, tzinfo=UTC)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Works out an expression.",
            "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
        },
    }
]


def trajectory(
    name: str, *, hours: float = 0.0, answer: str = "It is 391.", **changes: Any
) -> dict[str, Any]:
    """A question, a call of the calculator by a chat client, and the answer. ``changes`` go into the task's
    context or metadata where these know the field, else into the document."""
    document = copy.deepcopy(TRAJECTORY)
    start = DAY + timedelta(hours=hours)
    document |= {
        "trajectory_id": name,
        "session_id": f"s-{name}",
        "start_timestamp": start.isoformat(),
        "end_timestamp": (start + timedelta(seconds=7)).isoformat(),
    }
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 17 times 23?"}]
    first, second = document["turns"]
    first["observation"] = {
        "type": "user_message",
        "content": {"messages": asked},
        "context": {"available_tools": ["calculator"], "tools": TOOLS},
    }
    first["action"] |= {"tool_call_id": f"call-{name}", "raw_response": "Let me see."}
    del first["action"]["sampling"], first["thought_process"]
    second["observation"] = {"type": "tool_result", "content": "391"}
    second["action"]["raw_response"] = answer
    document["metadata"] = {"model": "closed-1", "outcome": {"status": "completed_successfully"}}
    document["task_context"] |= {"task_id": f"task-{name}", "group_id": f"group-{name}"}
    for field, value in changes.items():
        where = next((d for d in (document["task_context"], document["metadata"]) if field in d), document)
        where[field] = value
    return to_document(validate(document, Trajectory))


def reward(name: str, raw_total: float, *, success: bool = True, **outcome: Any) -> dict[str, Any]:
    document = copy.deepcopy(REWARD)
    document |= {"reward_id": f"r-{name}", "trajectory_id": name, "session_id": f"s-{name}"}
    document["metadata"] |= {
        "raw_total": raw_total,
        "outcome": {"success": success, "completion": float(success), **outcome},
    }
    return to_document(validate(document, Reward))


async def store(w: Any, trajectories: Sequence[dict[str, Any]], rewards: Sequence[dict[str, Any]]) -> None:
    """Insert the rows that the collector and the rewarder would insert."""
    enriched = [trajectory_row.enrich(one) for one in trajectories]
    rows = [
        trajectory_row.row(
            one, identity=f"v:{one['trajectory_id']}", stream_seq=n + 1, ingested_at=datetime.now(UTC)
        )
        for n, one in enumerate(enriched)
    ]
    await w.insert("trajectories", rows)
    await w.insert("rewards", [reward_row(validate(one, Reward), n + 1) for n, one in enumerate(rewards)])


@contextmanager
def stored(
    data_dir: Path, trajectories: Sequence[dict[str, Any]], rewards: Sequence[dict[str, Any]]
) -> Iterator[None]:
    """The warehouse of ``data_dir`` runs, with these rows, while the block does; the rows stay."""
    embedded = EmbeddedWarehouse(data_dir)
    with asyncio.Runner() as runner:

        async def begin() -> None:
            await store(await embedded.start(), trajectories, rewards)

        try:
            runner.run(begin())
            yield
        finally:
            runner.run(embedded.stop())
