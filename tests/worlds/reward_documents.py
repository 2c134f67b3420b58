"""Trajectories for the tests of this folder, short to write."""

from datetime import UTC, datetime, timedelta

from onward.contracts import Feedback, Trajectory, validate

START = datetime(2026, 1, 1, tzinfo=UTC)


def turn(
    n: int,
    *,
    tool: str | None = None,
    args: dict | None = None,
    output: str = "ok",
    success: bool = True,
    error: str | None = None,
) -> dict:
    call = {"type": "tool_call", "tool_name": tool, "tool_args": args or {}}
    action = call if tool else {"type": "response"}
    return {
        "turn_id": n,
        "timestamp": START.isoformat(),
        "observation": {"type": "user_message", "content": "go"},
        "action": action,
        "result": {"success": success, "output": output, "error": error},
    }


def trajectory(
    name: str = "t1",
    *,
    status: str | None = "completed_successfully",
    completion: float | None = None,
    turns: int | list[dict] = 1,
    seconds: float = 10.0,
    tokens: int | None = 100,
    task_type: str | None = "sum",
    domain: str | None = "general",
) -> Trajectory:
    outcome = {} if status is None else {"outcome": {"status": status}}
    if completion is not None:
        outcome["outcome"]["completion_percentage"] = completion
    spent = {} if tokens is None else {"total_tokens": tokens}
    document = {
        "trajectory_id": name,
        "session_id": "s1",
        "agent_id": "a",
        "start_timestamp": START.isoformat(),
        "end_timestamp": (START + timedelta(seconds=seconds)).isoformat(),
        "turns": [turn(i + 1) for i in range(turns)] if isinstance(turns, int) else turns,
        "task_context": {"task_id": "k", "instructions": "go", "domain": domain, "task_type": task_type},
        "metadata": {"model": "v1", **outcome, **spent},
    }
    document["task_context"] = {k: v for k, v in document["task_context"].items() if v is not None}
    return validate(document, Trajectory)


def feedback(signal: str, *, kind: str = "explicit", value: float | None = None, at: int = 0) -> Feedback:
    document = {
        "feedback_id": f"f-{signal}-{at}",
        "session_id": "s1",
        "trajectory_id": "t1",
        "kind": kind,
        "signal": signal,
        "timestamp": (START + timedelta(minutes=at)).isoformat(),
    }
    return validate(document | ({} if value is None else {"value": value}), Feedback)
