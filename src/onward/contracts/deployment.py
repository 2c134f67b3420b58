"""``agent.rl.model.deployed.v1``: a model serves a share of traffic from now on.

A rollback is a deployment of its own: a new id, the restored model, traffic 100 and
``metadata.event = "rollback"`` with the reason. ``rollout_strategy`` is the published schema's word for
Onward's word release.
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
    Part,
    Positive,
    Share,
    Text,
    Timestamp,
    optional,
    own_field,
    required,
)

Percentage = Annotated[Number, Field(ge=0, le=100)]


class ModelInfo(Part):
    model_id: Text = required("Unique model id.", examples=["agent-zero-rl-v2.3"])
    base_model: Text = required("Model that was tuned.", examples=["qwen2.5-32b-instruct"])
    checkpoint_path: Text = required("Where the deployed checkpoint lies.")
    training_date: Timestamp | None = optional("When it was trained.")
    training_samples: Positive | None = optional("Trajectories used in training.")
    final_reward: Number | None = optional("Final training reward.")


class RampStep(Part):
    timestamp: Timestamp = required("When to go to this share.")
    percentage: Percentage = required("Share of traffic in percent.")


class DeploymentConfig(Part):
    serving_platform: Literal["tensorzero", "vllm", "tgi", "ollama"] = required("Serving platform.")
    endpoint: Text = required("URL of the endpoint.", json_schema_extra={"format": "uri"})
    model_name: Text = required("Name of the model there.")
    rollout_strategy: Literal["canary", "blue_green", "immediate"] = required("How traffic moves.")
    traffic_percentage: Percentage | None = optional("Share of traffic in percent.")
    ramp_schedule: ListOf[RampStep] | None = optional("Planned shares of traffic.")


class ValidationResults(Part):
    benchmark_passed: Flag = required("Whether the benchmarks passed.")
    safety_checks_passed: Flag = required("Whether the safety checks passed.")
    performance_regression: Flag = required("Whether it is worse than the current model.")
    human_eval_score: Share | None = optional("Score given by people, 0 to 1.")
    benchmark_scores: dict[Text, Number] | None = optional("Score by benchmark.")


class DeploymentMetadata(ExtendedPart):
    deployed_by: Text | None = optional("Who deployed.", examples=["rl-trainer-subordinate", "admin-user"])
    approval_status: Literal["automated", "manual_approved", "emergency_override"] | None = optional(
        "Who approved."
    )
    previous_model: Text | None = optional("Model that served before.")
    event: Text | None = own_field(
        "What happened.", examples=["candidate", "ramp", "promoted", "rollback", "closed"]
    )
    release_id: Text | None = own_field("The release.")
    reason: Text | None = own_field(
        "Why a model was taken back.",
        examples=["high_error_rate", "performance_degradation", "user_dissatisfaction"],
    )
    engine: Text | None = own_field("Engine behind the gateway.", examples=["local", "vllm"])


class ModelDeployed(Message):
    """A model was deployed, moved to another share of traffic, or restored by a rollback."""

    model_config = ConfigDict(
        title="Agent RL Model Deployed", json_schema_extra={"examples": [examples.MODEL_DEPLOYED]}
    )

    deployment_id: Id = required("Unique id of this deployment, a UUID as a rule.")
    training_job_id: Id = required("The job that made the model.")
    timestamp: Timestamp = required("When it was deployed.")
    model_info: ModelInfo = required("The model.")
    deployment_config: DeploymentConfig = required("Where and how it serves.")
    validation_results: ValidationResults = required("What was validated before.")
    metadata: DeploymentMetadata | None = optional("More about the deployment.")
