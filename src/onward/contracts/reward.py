"""``agent.rl.reward.v1``: the score of one trajectory.

Three numbers, never mixed: ``metadata.outcome`` is the result itself, ``metadata.raw_total`` the weighted raw
sum (absolute), ``total_reward`` the weighted normalised sum (comparable inside one window only).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from onward.contracts import examples
from onward.contracts.base import (
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
    optional,
    own_field,
    required,
)


class RewardComponent(Part):
    score: Number = required("Raw score of this component, before normalisation.")
    weight: Share = required("Weight in the total, 0 to 1.")
    source: Literal["automated", "human", "linter", "test_results", "benchmark"] = required(
        "Where the score comes from."
    )
    reasoning: Text | None = optional("Why this score.")
    raw_data: Object | None = optional("What the score was computed from.")


class Normalization(Part):
    method: Literal["z-score", "min-max", "none"] | None = optional("Method applied.")
    mean: Number | None = optional("Mean of the reward distribution (z-score).")
    std: Annotated[Number, Field(ge=0)] | None = optional("Standard deviation (z-score).")
    min: Number | None = optional("Minimum (min-max).")
    max: Number | None = optional("Maximum (min-max).")


class RewardOutcome(Part):
    """The result itself, absolute."""

    success: Flag = required("Whether the task was completed.")
    completion: Share = required("Completed part of the task, 0 to 1.")
    unparsable: Flag | None = optional("Whether an answer could not be read as an action.")


class TurnReward(Part):
    turn_id: Positive = required("The turn.")
    reward: Number = required("Its part of raw_total.")


class RewardMetadata(ExtendedPart):
    evaluator: Text = required(
        "Who computed the reward.",
        examples=["rl-trainer-subordinate", "user-feedback-api", "automated-evaluator"],
    )
    evaluation_method: Literal["automated", "human", "hybrid", "model-based"] = required(
        "How it was computed."
    )
    confidence: Share | None = optional("Confidence in the reward, 0 low to 1 high.")
    raw_total: Number | None = own_field("Weighted sum of the raw scores: absolute, comparable over time.")
    outcome: RewardOutcome | None = own_field("What happened, absolute.")
    model_digest: Text | None = own_field("Digest of the policy that acted.")
    release_id: Text | None = own_field("Release under which the session was assigned.")
    task_type: Text | None = own_field("Kind of task that the baselines were kept for.")
    contradictions: ListOf[Text] | None = own_field("What the results say against the outcome that was told.")
    dense: ListOf[TurnReward] | None = own_field(
        "Parts of raw_total by turn, which sum to it (reward_type dense)."
    )
    supersedes: Id | None = own_field("Reward of the same trajectory that this one replaces.")


class Reward(Message):
    """Computed reward of one trajectory."""

    model_config = ConfigDict(
        title="Agent RL Reward Signal", json_schema_extra={"examples": [examples.REWARD]}
    )

    reward_id: Id = required("Unique id of this reward, a UUID as a rule.")
    trajectory_id: Id = required("The trajectory that was scored.")
    session_id: SessionId = required("Session of the agent.")
    timestamp: Timestamp = required("When the reward was computed.")
    reward_components: dict[Text, RewardComponent] = required(
        "Components by name: task_completion, efficiency, code_quality, user_feedback, safety, accuracy, …"
    )
    total_reward: Number = required("Weighted sum of the normalised components.")
    reward_type: Literal["dense", "sparse"] = required("Dense: for each turn; sparse: for the final outcome.")
    normalization: Normalization | None = optional("Parameters of the normalisation.")
    metadata: RewardMetadata = required("Who scored, how, and the absolute numbers.")
