"""Words of the trajectory contract that redaction never replaces.

They are stated here, so that redaction imports no contract and can be lifted out alone. A test compares
them with the models in ``onward.contracts``.
"""

from __future__ import annotations

FIELD_NAMES = frozenset((
    "action", "agent_id", "arm", "attachments", "available_tools", "checks", "completion_percentage",
    "complexity_score", "constraint", "content", "context", "continues", "domain", "end_timestamp",
    "error", "execution_time_ms", "finish_reason", "frequency_penalty", "generation_id", "group_id",
    "instructions", "logit_bias", "logprobs", "memory_state", "metadata", "model", "model_digest",
    "observation", "other_choices", "outcome", "output", "presence_penalty", "prompt_ids",
    "raw_response", "refusal", "release", "release_id", "result",
    "sampling", "session_id", "signature", "start_timestamp", "status", "subordinate_profile",
    "subordinates_active", "success", "task_context", "task_id", "task_type", "temperature",
    "thought_process", "timestamp", "token_ids", "tokens_void", "tool_args", "tool_name", "top_k",
    "top_p", "total_cost_usd", "total_tokens", "trajectory_id", "turn_id", "turns", "type", "weight",
))  # fmt: skip
"""Field names: never renamed, whatever a secret may be called."""
NUMBER_FIELDS = frozenset((
    "completion_percentage", "complexity_score", "execution_time_ms", "frequency_penalty", "logprobs",
    "presence_penalty", "prompt_ids", "subordinates_active", "temperature", "token_ids", "top_k",
    "top_p", "total_cost_usd",
    "total_tokens", "turn_id", "weight",
))  # fmt: skip
"""Fields that hold a number or a list of numbers: never replaced."""
ENUM_VALUES = frozenset((
    "abandoned", "candidate", "coding", "completed_successfully", "current", "data_analysis",
    "debugging", "developer", "failed", "general", "hacker", "length", "memory_update",
    "partial_completion", "research", "researcher", "response", "rl-trainer", "stop",
    "subordinate_call", "subordinate_response", "system_message", "tool_call", "tool_result",
    "user_message", "writing",
))  # fmt: skip
"""Members of the enumerations: never replaced."""
