"""A trajectory as a publisher sends it, with two generations in one chain."""

from __future__ import annotations

import copy
from typing import Any

import pytest


def sampling(number: int, continues: str | None = None, **changes: Any) -> dict[str, Any]:
    record = {
        "generation_id": f"g{number}",
        "continues": continues,
        "prompt_ids": [number, 11, 12],
        "token_ids": [number, 21],
        "logprobs": [-0.5, -0.25],
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": None,
        "finish_reason": "stop",
        "model_digest": "digest-a",
    }
    return record | changes


def turn(number: int, record: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    action: dict[str, Any] = {"type": "tool_call", "tool_name": "search", "raw_response": f"call {number}"}
    if record is not None:
        action["sampling"] = record
    return {
        "turn_id": number,
        "timestamp": "2026-01-01T00:00:01.000Z",
        "observation": {"type": "user_message", "content": f"observation {number}"},
        "thought_process": [f"thought {number}"],
        "action": action,
        "result": {"success": True, "output": f"output {number}", "error": None},
    } | changes


TRAJECTORY: dict[str, Any] = {
    "trajectory_id": "0b7a3f4e-5a60-4c58-9d7e-1a2b3c4d5e6f",
    "session_id": "session-1",
    "agent_id": "agent",
    "start_timestamp": "2026-01-01T00:00:00.000Z",
    "end_timestamp": "2026-01-01T00:01:00.000Z",
    "turns": [
        turn(1, sampling(1)),
        turn(2, sampling(2, "g1")),
        turn(3, sampling(3, "g2")),
        turn(4, sampling(4)),
    ],
    "task_context": {"task_id": "t1", "instructions": "Find the file"},
    "metadata": {"model": "tiny"},
}


@pytest.fixture
def trajectory() -> dict[str, Any]:
    return copy.deepcopy(TRAJECTORY)
