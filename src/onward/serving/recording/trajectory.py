"""Builds a trajectory from an open conversation. Pure.

A generation's record is stored once, in the first turn of its
message, so its tokens are trained on once. The document contains everything that the prompt held (system
text, tool schemas, history): the redactor can only find text in the token ids that it sees in the document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from onward.capture.conversations import endings, exchange
from onward.capture.conversations.turns import UNFINISHED
from onward.clock import utc_text
from onward.serving.recording.conversations import Conversation, Exchange

Closed = Literal["answer", "idle", "close", "limit", "shutdown", "restart"]
"""Reason for the end of a task: a final answer and nothing after it; silence; a call of the close endpoint;
no room for more; the end of the gateway, clean or not."""
SOURCE = "gateway"
UNPARSABLE = "unparsable: the answer begins a tool call that is not valid JSON or names no offered tool"


def agent_of(owner: str) -> str:
    """Returns the agent's id: the beginning of the hash of its API key."""
    return f"key-{owner[:8]}"


def trajectory(conversation: Conversation, closed: Closed) -> dict[str, Any]:
    """Returns the document of ``conversation`` if it ended now. It must have at least one exchange."""
    first = conversation.exchanges[0]
    assert conversation.ended_at is not None
    metadata = {
        **conversation.metadata,
        "total_tokens": conversation.tokens,
        "capture": {"source": SOURCE, "closed": closed},
    }
    if conversation.outcome is not None:
        metadata["outcome"] = conversation.outcome
    return {
        "trajectory_id": conversation.id,
        "session_id": conversation.session_id,
        "agent_id": agent_of(conversation.owner),
        "start_timestamp": utc_text(first.asked_at),
        "end_timestamp": utc_text(conversation.ended_at),
        "turns": _turns(conversation.exchanges),
        "task_context": {"task_id": conversation.id, "instructions": exchange.instructions(first.new)},
        "metadata": metadata,
    }


def unshaped(conversation: Conversation, closed: Closed) -> dict[str, Any]:
    """Returns all data of a conversation that cannot become a trajectory, so that it can be quarantined."""
    return {
        "trajectory_id": conversation.id,
        "session_id": conversation.session_id,
        "agent_id": agent_of(conversation.owner),
        "turns": [vars(one) for one in conversation.exchanges],
        "metadata": {**conversation.metadata, "capture": {"source": SOURCE, "closed": closed}},
    }


def _turns(exchanges: Sequence[Exchange]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for each in exchanges:
        seen = exchange.request_observation(each.new, each.tools)
        action = {**each.action, "raw_response": each.text}
        if each.sampling is not None:
            action["sampling"] = each.sampling
        calls = [
            {
                "type": "tool_call",
                "tool_name": call.name,
                "tool_args": call.arguments,
                "tool_call_id": call.id,
            }
            for call in each.calls
        ]
        for index, turn in enumerate(exchange.answer(seen, action, calls, len(turns) + 1)):
            result = _result(each, None if each.is_final else index)
            numbered = {"turn_id": len(turns) + 1, "timestamp": utc_text(each.asked_at), "result": result}
            turns.append(turn | numbered)
    return turns


def _result(one: Exchange, call: int | None) -> dict[str, Any]:
    """Returns a turn's result. ``success`` of a call means that a result arrived, not that it was good."""
    if one.error is not None:
        return {"success": False, "error": one.error}
    if call is None:
        return endings.result_of(one.action)
    if call not in one.results:
        return {"success": False, "error": UNFINISHED}
    return {"success": True, "output": one.results[call]}
