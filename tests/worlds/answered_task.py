"""A trajectory of one turn: a task and its answer, a minute ago."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from onward.contracts import Trajectory, validate


def trajectory(name: str, task_id: str, answer: str, task_type: str) -> Trajectory:
    start = datetime.now(UTC) - timedelta(minutes=1)
    document = {
        "trajectory_id": name,
        "session_id": f"session-{name}",
        "agent_id": "agent",
        "start_timestamp": start.isoformat(),
        "end_timestamp": (start + timedelta(seconds=9)).isoformat(),
        "turns": [
            {
                "turn_id": 1,
                "timestamp": start.isoformat(),
                "observation": {"type": "user_message", "content": "do it"},
                "action": {"type": "response", "raw_response": answer},
                "result": {"success": True, "output": answer, "error": None},
            }
        ],
        "task_context": {"task_id": task_id, "instructions": "do it", "task_type": task_type},
        "metadata": {"model": "v1", "outcome": {"status": "completed_successfully"}},
    }
    return validate(document, Trajectory)
