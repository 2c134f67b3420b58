"""What crosses the bus: the message models, their subjects, and the codec.

Agents embed this package: it imports pydantic and the standard library, nothing heavier (a test says so),
and each message model when it is asked for, since building the models is what takes the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.contracts import subjects
from onward.contracts.base import Message, Part
from onward.contracts.codec import (
    MAX_BYTES,
    MAX_DEPTH,
    canonical_json,
    decode,
    decode_document,
    encode,
    sha256_hex,
    to_document,
    validate,
)
from onward.lazy import attributes

if TYPE_CHECKING:
    from onward.contracts.deployment import (
        DeploymentConfig,
        DeploymentMetadata,
        ModelDeployed,
        ModelInfo,
        RampStep,
        ValidationResults,
    )
    from onward.contracts.feedback import Feedback
    from onward.contracts.outcome import SessionOutcome
    from onward.contracts.reward import (
        Normalization,
        Reward,
        RewardComponent,
        RewardMetadata,
        RewardOutcome,
    )
    from onward.contracts.training import (
        Artifacts,
        BestMetrics,
        Checkpointing,
        Compute,
        CurrentMetrics,
        DatasetFilter,
        DatasetSpec,
        DateRange,
        EvaluationResults,
        EvaluationSpec,
        Hyperparameters,
        JobError,
        Progress,
        RequestMetadata,
        ResourceUsage,
        StatusMetadata,
        TrainingConfig,
        TrainingMetrics,
        TrainingRequest,
        TrainingStatus,
    )
    from onward.contracts.trajectory import (
        Action,
        Observation,
        ObservationContext,
        Outcome,
        ReleaseTag,
        Result,
        Sampling,
        TaskContext,
        Trajectory,
        TrajectoryMetadata,
        Turn,
    )

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "Action",
    "Artifacts",
    "BestMetrics",
    "Checkpointing",
    "Compute",
    "CurrentMetrics",
    "DatasetFilter",
    "DatasetSpec",
    "DateRange",
    "DeploymentConfig",
    "DeploymentMetadata",
    "EvaluationResults",
    "EvaluationSpec",
    "Feedback",
    "Hyperparameters",
    "JobError",
    "Message",
    "ModelDeployed",
    "ModelInfo",
    "Normalization",
    "Observation",
    "ObservationContext",
    "Outcome",
    "Part",
    "Progress",
    "RampStep",
    "ReleaseTag",
    "RequestMetadata",
    "ResourceUsage",
    "Result",
    "Reward",
    "RewardComponent",
    "RewardMetadata",
    "RewardOutcome",
    "Sampling",
    "SessionOutcome",
    "StatusMetadata",
    "TaskContext",
    "TrainingConfig",
    "TrainingMetrics",
    "TrainingRequest",
    "TrainingStatus",
    "Trajectory",
    "TrajectoryMetadata",
    "Turn",
    "ValidationResults",
    "canonical_json",
    "decode",
    "decode_document",
    "encode",
    "sha256_hex",
    "subjects",
    "to_document",
    "validate",
]
_WHERE = {
    "deployment": (
        "DeploymentConfig",
        "DeploymentMetadata",
        "ModelDeployed",
        "ModelInfo",
        "RampStep",
        "ValidationResults",
    ),
    "feedback": ("Feedback",),
    "outcome": ("SessionOutcome",),
    "reward": ("Normalization", "Reward", "RewardComponent", "RewardMetadata", "RewardOutcome"),
    "training": (
        "Artifacts",
        "BestMetrics",
        "Checkpointing",
        "Compute",
        "CurrentMetrics",
        "DatasetFilter",
        "DatasetSpec",
        "DateRange",
        "EvaluationResults",
        "EvaluationSpec",
        "Hyperparameters",
        "JobError",
        "Progress",
        "RequestMetadata",
        "ResourceUsage",
        "StatusMetadata",
        "TrainingConfig",
        "TrainingMetrics",
        "TrainingRequest",
        "TrainingStatus",
    ),
    "trajectory": (
        "Action",
        "Observation",
        "ObservationContext",
        "Outcome",
        "ReleaseTag",
        "Result",
        "Sampling",
        "TaskContext",
        "Trajectory",
        "TrajectoryMetadata",
        "Turn",
    ),
}
__getattr__ = attributes(
    __name__, {name: f"{__name__}.{module}" for module, names in _WHERE.items() for name in names}
)
