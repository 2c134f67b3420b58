"""``agent.rl.trajectory.v1``: an agent's observations, actions and results, turn by turn.

Field names are the published schema's. Further data for reward and learning (sampling records, the outcome,
the release) is in the open nested objects; there a foreign value of another shape is kept.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from onward.contracts import examples
from onward.contracts.base import (
    Count,
    ExtendedPart,
    Flag,
    Id,
    ListOf,
    Message,
    Number,
    Object,
    Part,
    Positive,
    SessionId,
    Share,
    Text,
    Timestamp,
    TokenId,
    nullable,
    optional,
    own_field,
    required,
)

Domain = Literal["coding", "research", "data_analysis", "general", "debugging", "writing"]
SubordinateProfile = Literal["researcher", "developer", "hacker", "rl-trainer"]


class ObservationContext(Part):
    memory_state: Object | None = optional("Snapshot of the agent's memory.")
    available_tools: ListOf[Text] | None = optional("Tools available at this turn.")
    subordinates_active: Count | None = optional("Number of active subordinate agents.")


class Observation(Part):
    type: Literal["user_message", "tool_result", "subordinate_response", "system_message"] = required(
        "Kind of observation."
    )
    content: Text | Object = required("What the agent saw: text or a structured object.")
    context: ObservationContext | None = optional("What else was true when the agent saw it.")


class Sampling(Part):
    """Record of one sampled answer: exact token ids and behaviour log-probabilities.

    ``prompt_ids`` is the whole prompt if ``continues`` is None. Otherwise it is only the part after the
    prompt and completion of the generation that ``continues`` names (the prefix rule).
    """

    generation_id: Id = required("Id of this generation.")
    continues: Id | None = nullable(
        "Generation whose prompt and completion tokens this prompt extends; null when prompt_ids is whole."
    )
    prompt_ids: ListOf[TokenId] = required("Prompt tokens: all of them, or those after `continues`.")
    token_ids: ListOf[TokenId] = required("Sampled tokens, the end-of-turn token included.")
    logprobs: ListOf[Number] = required("Natural log-probability of each sampled token when it was drawn.")
    temperature: Annotated[Number, Field(ge=0)] = required("Sampling temperature; the log-probs include it.")
    top_p: Annotated[Number, Field(gt=0, le=1)] = required("Nucleus mass; 1 means all.")
    top_k: Positive | None = nullable("Number of tokens kept; null means full support.")
    presence_penalty: Number | None = optional("Penalty on tokens of the answer; the log-probs include it.")
    frequency_penalty: Number | None = optional("Penalty per repetition; the log-probs include it.")
    logit_bias: Object | None = optional("Token id to added logit; the log-probs include it.")
    constraint: Object | None = optional(
        "Grammar of the answer: log-probs are renormalised over the tokens it allowed. `kind` and `hash`; "
        "from the local engine also `engine`, `fingerprint` and, unless a continued generation has them, "
        "`form` and `source`."
    )
    finish_reason: Literal["stop", "length"] = required("Why sampling ended.")
    model_digest: Text = required("Digest of the policy that sampled: the adapter's, or the base model's.")
    tokens_void: Flag | None = optional(
        "True: redaction touched the text, so ids and log-probs were dropped and the lists are empty."
    )
    signature: Text | None = optional("The gateway's message authentication code over this record.")


class Action(ExtendedPart):
    type: Literal["tool_call", "subordinate_call", "response", "memory_update"] = required("Kind of action.")
    tool_name: Text | None = optional("Name of the tool called, when type is tool_call.")
    tool_args: Object | None = optional("Arguments passed to the tool.")
    raw_response: Text | None = optional("Full answer of the language model, thoughts included.")
    sampling: Sampling | None = own_field("The gateway's record of the generation behind this action.")
    finish_reason: Text | None = own_field(
        "Why the answer ended, in its server's word: stop, tool_calls, length, content_filter …"
    )
    refusal: Text | None = own_field("The model's refusal, if it declined to answer.")
    other_choices: ListOf[Object] | None = own_field("Actions of the further choices of the same answer.")


class Result(ExtendedPart):
    success: Flag = required("Whether the action succeeded.")
    output: Text | Object | None = nullable("Result of the tool, or the response.")
    error: Text | None = nullable(
        "Error message when the action failed; starts with 'unparsable' when the "
        "answer could not be read as an action."
    )
    execution_time_ms: Annotated[Number, Field(ge=0)] | None = optional("Execution time in milliseconds.")
    checks: Object | None = own_field("Results of checks on produced code: linter, tests, security.")


class Turn(Part):
    turn_id: Positive = required("Number of the turn, from 1.")
    timestamp: Timestamp = required("When the turn began.")
    observation: Observation = required("What the agent saw.")
    thought_process: ListOf[Text] | None = optional("The agent's thoughts before the action.")
    action: Action = required("What the agent did.")
    result: Result = required("What came of it.")


class TaskContext(ExtendedPart):
    task_id: Text = required("Id of the task.")
    instructions: Text = required("The user's request.")
    complexity_score: Share | None = optional("Estimated complexity, 0 simple to 1 very complex.")
    domain: Domain | None = optional("Domain of the task.")
    task_type: Text | None = own_field("Finer kind of task; baselines are kept per task type.")
    group_id: Text | None = own_field("Attempts with the same group id are tries of one task from one start.")


class Outcome(Part):
    """The result itself, absolute: never normalised."""

    status: Literal["completed_successfully", "partial_completion", "failed", "abandoned"] = required(
        "How the task ended."
    )
    completion_percentage: Share | None = optional("Completed part of the task, 0 to 1.")


class ReleaseTag(Part):
    """The arm that served the agent, as the agent claims. The gates read the gateway's own record."""

    release_id: Id | None = nullable("Release under which the session was assigned; null outside of one.")
    arm: Literal["candidate", "current"] = required("Arm that served the session.")
    weight: Share | None = optional("The candidate's share of traffic when the session was assigned.")


class TrajectoryMetadata(ExtendedPart):
    model: Text = required("Language model used.", examples=["qwen2.5-32b-instruct", "agent-zero-rl-v2.3"])
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = optional("Sampling temperature.")
    total_tokens: Count | None = optional("Tokens used in all.")
    total_cost_usd: Annotated[Number, Field(ge=0)] | None = optional("Cost in US dollars.")
    outcome: Outcome | None = own_field("How the task ended.")
    release: ReleaseTag | None = own_field("Release and arm that served the session.")
    attachments: ListOf[Object] | None = own_field(
        "Pictures and other binary data that a note stands for: media_type, bytes, sha256."
    )


class Trajectory(Message):
    """Multi-turn interaction of an agent with its task, for reinforcement learning."""

    model_config = ConfigDict(
        title="Agent RL Trajectory", json_schema_extra={"examples": [examples.TRAJECTORY]}
    )

    trajectory_id: Id = required("Unique id of this trajectory, a UUID as a rule.")
    session_id: SessionId = required("Session of the agent.")
    agent_id: Text = required(
        "Agent, main or subordinate.", examples=["agent-zero-main", "subordinate-researcher-1"]
    )
    subordinate_profile: SubordinateProfile | None = nullable("Profile when the agent is a subordinate.")
    start_timestamp: Timestamp = required("When the trajectory began.")
    end_timestamp: Timestamp = required("When the trajectory ended.")
    turns: Annotated[ListOf[Turn], Field(min_length=1)] = required("The turns, in order.")
    task_context: TaskContext = required("The task.")
    metadata: TrajectoryMetadata = required("Model, cost, outcome, release and whatever the agent adds.")
