"""Arguments of every tool, as pydantic models: their JSON Schema is what a model sees.

Names are those of the published profile. A document may come as JSON or as JSON text, since some callers can
only send text.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from onward.contracts import decode_document
from onward.contracts.training import Algorithm, ControlAlgorithm
from onward.errors import ContractError

MAX_DOCUMENT = 1 << 20
"""Bytes of a document that comes as text."""
SCHEMAS = (
    "trajectory.v1.schema.json",
    "reward.v1.schema.json",
    "training.request.v1.schema.json",
    "training.status.v1.schema.json",
    "model.deployed.v1.schema.json",
    "feedback.v1.schema.json",
    "outcome.v1.schema.json",
)


class Arguments(BaseModel):
    """Arguments of a tool. Unknown names are refused, so that a typing error is seen."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


def _from_text(value: Any) -> Any:
    """Parses a document that came as text. Other values pass."""
    if not isinstance(value, str):
        return value
    try:
        return decode_document(value.encode(), max_bytes=MAX_DOCUMENT)
    except ContractError as error:
        why = str(error).rstrip(".").replace("The message", "the text").replace("the message", "the text")
        raise ValueError(f"{why}; give a JSON object, or its text") from None


Document = Annotated[
    dict[str, Any], BeforeValidator(_from_text), WithJsonSchema({"type": ["object", "string"]})
]
"""A JSON object, or its text."""


def _object_or_text(value: Any) -> Any:
    return _from_text(value) if isinstance(value, str) and value.lstrip().startswith("{") else value


DocumentOrText = Annotated[
    dict[str, Any] | str, BeforeValidator(_object_or_text), WithJsonSchema({"type": ["object", "string"]})
]
"""A JSON object, its text, or any other text."""
Documents = Annotated[
    list[dict[str, Any]],
    BeforeValidator(_from_text),
    Field(max_length=1000),
    WithJsonSchema({"type": ["array", "string"], "items": {"type": "object"}}),
]
Weights = Annotated[
    dict[str, float], BeforeValidator(_from_text), WithJsonSchema({"type": ["object", "string"]})
]
Offset = Annotated[int, Field(ge=0, description="Where to go on: next_offset of the answer before.")]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class SubscribeNats(Arguments):
    subject: Name = Field(
        description="One subject, such as agent.rl.trajectory.v1 or agent.rl.training.status.v1."
    )
    queue_group: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = Field(
        None, description="Share the messages with other subscribers of this group."
    )  # the name is part of a line of the protocol: a line end in it would begin another command
    count: int = Field(
        10, ge=1, le=50, description="Stop after this many messages; the more there are, the less of each."
    )
    timeout_seconds: float = Field(10.0, gt=0, le=60, description="Stop after this time.")


class PublishNats(Arguments):
    subject: Name = Field(
        description="agent.rl.trajectory.v1, agent.rl.feedback.v1, agent.rl.training.request.v1 or "
        "agent.rl.training.control.v1."
    )
    payload: Document = Field(description="The message, as its schema defines it.")
    schema_validate: bool = Field(True, description="Always true: a message is never sent unchecked.")


class ValidateTrajectory(Arguments):
    model_config = ConfigDict(extra="forbid", validate_by_alias=True, validate_by_name=True)

    trajectory_data: Document = Field(description="The trajectory or other message to check.")
    schema_name: Literal[SCHEMAS] = Field(  # type: ignore[valid-type]
        SCHEMAS[0], alias="schema", description="Name of the schema file."
    )


class RedactSensitiveInfo(Arguments):
    trajectory_data: DocumentOrText = Field(
        description="The trajectory or other JSON object with the text; or plain text."
    )
    patterns: list[Annotated[str, Field(min_length=1, max_length=64)]] | None = Field(
        None,
        max_length=50,
        description="Kinds to report, such as api_key, password, email. Every kind is always removed.",
    )
    offset: Offset = 0


class ComputeReward(Arguments):
    trajectory: DocumentOrText = Field(
        description="The trajectory to score; or the id of a stored one, to explain the reward that it got."
    )
    historical_data: Documents | None = Field(
        None, description="Earlier trajectories, oldest first, against which scores are normalised."
    )
    weights: Weights | None = Field(
        None,
        description="Component to weight: task_completion, efficiency, code_quality, user_feedback; sum 1. "
        "Default: those of the settings.",
    )


class DownloadCheckpoint(Arguments):
    s3_path: Annotated[str, Field(min_length=1, max_length=900)] = Field(
        description="Address of the checkpoint in the store of models, or its key checkpoints/JOB/EPOCH."
    )
    local_path: Annotated[str, Field(min_length=1, max_length=500)] = Field(
        "/tmp/checkpoints/", description="Folder below the download folder of this machine."
    )


class RunBenchmarks(Arguments):
    model_path: Name = Field(description="Id of a stored model, or the address of its checkpoint.")
    tasks: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        ["code_gen", "data_analysis", "research"],
        min_length=1,
        max_length=20,
        description="Suites: code_gen, data_analysis, research, tool_usage, safety, desk, env:NAME.",
    )


class DeployToTensorzero(Arguments):
    model_id: Name = Field(description="Id that the new model gets, such as agent-zero-rl-v2.3.")
    checkpoint_path: Annotated[str, Field(min_length=1, max_length=900)] = Field(
        description="Address of its checkpoint in the store of models (s3://…)."
    )
    rollout_strategy: Literal["canary", "blue_green", "immediate"] = Field(
        "canary", description="Wish: the measured improvement decides, and a person approves."
    )


class Status(Arguments):
    part: Literal["summary", "jobs", "releases", "models", "streams", "triggers", "gateways"] = Field(
        "summary", description="What to show in full."
    )
    model_id: str | None = Field(
        None,
        max_length=200,
        description="Figures of one model (error rate, reward, traffic): its id, current or previous.",
    )
    offset: Offset = 0


class JobStatus(Arguments):
    job_id: str | None = Field(
        None, max_length=128, description="Id of the job. Without it: the newest jobs."
    )
    state: Literal["queued", "running", "completed", "failed", "cancelled"] | None = Field(
        None, description="Without job_id: only jobs in this state."
    )
    offset: Offset = 0


class StartTraining(Arguments):
    sample_size: int | None = Field(
        None, ge=1, le=10_000_000, description="Number of trajectories, such as 10000 for 10K samples."
    )
    days: int | None = Field(None, ge=1, le=3650, description="Only trajectories of the last so many days.")
    algorithm: Algorithm | None = Field(None, description="Default: that of the settings.")
    base_model: str | None = Field(None, max_length=300, description="Default: the one that serves.")
    min_reward: float | None = Field(None, description="Only what scored at least this.")
    domains: list[Annotated[str, Field(max_length=64)]] | None = Field(
        None, max_length=20, description="Only these task domains, such as coding or research."
    )
    learning_rate: float | None = Field(None, gt=0)
    batch_size: int | None = Field(None, ge=1)
    epochs: int | None = Field(None, ge=1)
    priority: Literal["low", "normal", "high", "urgent"] = "high"
    reason: str | None = Field(None, max_length=500, description="Why, in one sentence; it is stored.")
    training_job_id: str | None = Field(
        None, max_length=128, description="Id of your own: sent twice it is one job."
    )


class ControlTrain(Arguments):
    algorithm: ControlAlgorithm = Field(description="Algorithm of the policy.")
    environment: Name = Field(description="Id of a Gymnasium environment, such as CartPole-v1.")
    timesteps: int | None = Field(None, ge=1, description="Environment steps. Default: those of the preset.")
    seed: int | None = Field(None, ge=0)
    settings: Document | None = Field(None, description="Changes to the preset, such as num_envs.")
    priority: Literal["low", "normal", "high", "urgent"] = "normal"


class CancelJob(Arguments):
    job_id: Annotated[str, Field(min_length=1, max_length=128)] = Field(description="Id of the job.")


class Release(Arguments):
    action: Literal["list", "show", "start", "hold", "abort", "rollback"] = Field(
        description="list or show releases; start: release a stored model; hold: stay at the present share; "
        "abort: end the release under way; rollback: go back to the model before."
    )
    model_id: str | None = Field(
        None, max_length=200, description="Model of the action; default: the release under way."
    )
    reason: str | None = Field(None, max_length=500, description="Why: needed to roll back.")
    offset: Offset = 0


class Report(Arguments):
    limit: int = Field(10, ge=1, le=50, description="At most this many.")
    offset: Offset = 0
