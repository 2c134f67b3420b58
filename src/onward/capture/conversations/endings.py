"""Reads the reason for the end of an answer: which answers are none, and the result of their turn. Pure.

A refused, filtered or truncated answer has ``result.success`` false and an error that begins with the kind.
The reward reads this: such an answer never counts as a success. An unknown reason decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ERRORS = {
    "refused": "refused: the model declined to answer",
    "filtered": "filtered: a content filter withheld the answer or a part of it",
    "truncated": "truncated: the answer ended at a limit of tokens before it was complete",
    "broken": "broken: the server ended the answer before it was complete",
}
"""Kind → the error of a turn that such an answer ends."""
_KINDS = {
    "refused": "refusal refused",
    "filtered": "content_filter content_filtered guardrail_intervened guardrail safety recitation blocklist "
    "prohibited_content spii image_safety language error_toxic toxic",
    "truncated": "length max_tokens max_output_tokens max_completion_tokens model_length error_limit "
    "model_context_window_exceeded context_length_exceeded",
    "broken": "error abort aborted cancelled user_cancel failed incomplete insufficient_system_resource "
    "malformed_function_call unexpected_tool_call",
}
"""Kind → the reasons of OpenAI, Azure, Anthropic, Bedrock, Gemini, Mistral, Cohere, DeepSeek, vLLM."""
_KIND_OF = {reason: kind for kind, reasons in _KINDS.items() for reason in reasons.split()}


def kind_of(action: Mapping[str, Any]) -> str | None:
    """Returns the kind of an answer that is none; None for a whole answer or an unknown reason. ``action``
    has ``refusal`` and ``finish_reason`` if they are known."""
    if action.get("refusal"):
        return "refused"
    reason = action.get("finish_reason")
    if not isinstance(reason, str):
        return None
    return _KIND_OF.get(reason.rpartition(".")[2].strip().lower().replace("-", "_"))


def result_of(action: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result of a final answer, or of an action whose agent reported none. A call that was made
    is no answer: its tool decides."""
    kind = None if action.get("type") == "tool_call" else kind_of(action)
    return {"success": True} if kind is None else {"success": False, "error": ERRORS[kind]}
