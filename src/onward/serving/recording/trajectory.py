"""Builds a trajectory from an open conversation. Pure.

One turn for each tool call and each answer. A generation's record is stored once, in the first turn of its
message, so its tokens are trained on once. The document contains everything that the prompt held (system
text, tool schemas, history): the redactor can only find text in the token ids that it sees in the document.
"""

from __future__ import annotations

from typing import Any, Literal

from onward.clock import utc_text
from onward.serving.recording.conversations import NO_RESULT, Conversation, Exchange, Message

Closed = Literal["answer", "idle", "close", "limit", "shutdown", "restart"]
"""Reason for the end of a task: a final answer and nothing after it; silence; a call of the close endpoint;
no room for more; the end of the gateway, clean or not."""
SOURCE = "gateway"
UNPARSABLE = "unparsable: the answer begins a tool call that is not valid JSON or names no offered tool"
_OBSERVED = {"user": "user_message", "tool": "tool_result", "system": "system_message"}


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
        "turns": _numbered([_turns(exchange) for exchange in conversation.exchanges]),
        "task_context": {"task_id": conversation.id, "instructions": _request(first.new)},
        "metadata": metadata,
    }


def unshaped(conversation: Conversation, closed: Closed) -> dict[str, Any]:
    """Returns all data of a conversation that cannot become a trajectory, so that it can be quarantined."""
    return {
        "trajectory_id": conversation.id,
        "session_id": conversation.session_id,
        "agent_id": agent_of(conversation.owner),
        "turns": [vars(exchange) for exchange in conversation.exchanges],
        "metadata": {**conversation.metadata, "capture": {"source": SOURCE, "closed": closed}},
    }


def _numbered(groups: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for group in groups:
        beside = len(turns) + 1
        for turn in group:
            turn["turn_id"] = len(turns) + 1
            if turn["observation"] is None:
                turn["observation"] = {
                    "type": group[0]["observation"]["type"],
                    "content": {"same_as_turn": beside},
                }
            turns.append(turn)
    return turns


def _turns(exchange: Exchange) -> list[dict[str, Any]]:
    """Returns one turn, or one for each call of a message with several."""
    timestamp, observation = utc_text(exchange.asked_at), _observation(exchange)
    if not exchange.calls:
        action = {**exchange.action, "raw_response": exchange.text, "sampling": exchange.sampling}
        return [
            {
                "timestamp": timestamp,
                "observation": observation,
                "action": action,
                "result": _result(exchange, None if exchange.is_final else 0),
            }
        ]
    turns = []
    for index, call in enumerate(exchange.calls):
        action = {
            "type": "tool_call",
            "tool_name": call.name,
            "tool_args": call.arguments,
            "tool_call_id": call.id,
        }
        if index == 0:
            action |= {"raw_response": exchange.text, "sampling": exchange.sampling}
            if len(exchange.calls) > 1:
                action["parallel_calls"] = [
                    {"tool_name": other.name, "tool_args": other.arguments} for other in exchange.calls[1:]
                ]
        turns.append(
            {
                "timestamp": timestamp,
                "observation": observation if index == 0 else None,
                "action": action,
                "result": _result(exchange, index),
            }
        )
    return turns


def _observation(exchange: Exchange) -> dict[str, Any]:
    """Returns a single message as its text, several as they are."""
    new = exchange.new
    content: Any = new[0]["content"] if len(new) == 1 and "tool_calls" not in new[0] else {"messages": new}
    shown: dict[str, Any] = {"type": _OBSERVED.get(new[-1]["role"], "user_message"), "content": content}
    if exchange.tools is not None:
        names = [tool["function"]["name"] for tool in exchange.tools]
        shown["context"] = {"available_tools": names, "tools": exchange.tools}
    return shown


def _result(exchange: Exchange, call: int | None) -> dict[str, Any]:
    """Returns a turn's result. ``success`` of a call means that a result arrived, not that it was good."""
    if exchange.error is not None:
        return {"success": False, "error": exchange.error}
    if call is None:
        return {"success": True}
    if call not in exchange.results:
        return {"success": False, "error": NO_RESULT}
    return {"success": True, "output": exchange.results[call]}


def _request(new: list[Message]) -> str:
    asked = [message["content"] for message in new if message["role"] == "user"]
    return asked[-1] if asked else new[-1]["content"]
