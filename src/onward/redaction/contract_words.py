"""Words of the trajectory contract that redaction never replaces.

They are copied here so that redaction imports no contract and can be used without the other packages. A test
compares them with the models in ``onward.contracts``.
"""

from __future__ import annotations

FIELD_NAMES = frozenset(
    """
    action agent_id arm available_tools checks completion_percentage complexity_score content context
    continues domain end_timestamp error execution_time_ms finish_reason generation_id group_id
    instructions logprobs memory_state metadata model model_digest observation outcome output prompt_ids
    raw_response release release_id result sampling session_id signature start_timestamp status
    subordinate_profile subordinates_active success task_context task_id task_type temperature
    thought_process timestamp token_ids tokens_void tool_args tool_name top_k top_p total_cost_usd
    total_tokens trajectory_id turn_id turns type weight
    """.split()
)
"""Field names: never renamed, even where one equals a secret."""
NUMBER_FIELDS = frozenset(
    """
    completion_percentage complexity_score execution_time_ms logprobs prompt_ids subordinates_active
    temperature token_ids top_k top_p total_cost_usd total_tokens turn_id weight
    """.split()
)
"""Fields that hold a number or a list of numbers: never replaced."""
ENUM_VALUES = frozenset(
    """
    abandoned candidate coding completed_successfully current data_analysis debugging developer failed
    general hacker length memory_update partial_completion research researcher response rl-trainer stop
    subordinate_call subordinate_response system_message tool_call tool_result user_message writing
    """.split()
)
"""Members of the enumerations: never replaced."""
