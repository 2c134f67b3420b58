"""The messages of the bus: their models, their subjects, and the codec.

Agents embed this package: it imports pydantic and the standard library, nothing heavier (a test checks it).
Even pydantic loads on first access, since building the models takes longer than all the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.contracts import subjects
from onward.lazy import attributes

if TYPE_CHECKING:
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
    from onward.contracts.deployment import ModelDeployed, RampStep
    from onward.contracts.feedback import Feedback
    from onward.contracts.outcome import SessionOutcome
    from onward.contracts.reward import Normalization, Reward, RewardComponent, RewardMetadata, RewardOutcome
    from onward.contracts.training import (
        DatasetSpec,
        Hyperparameters,
        Progress,
        RequestMetadata,
        TrainingRequest,
        TrainingStatus,
    )
    from onward.contracts.trajectory import Action, ReleaseTag, Result, Sampling, Trajectory, Turn

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "Action",
    "DatasetSpec",
    "Feedback",
    "Hyperparameters",
    "ModelDeployed",
    "Normalization",
    "Progress",
    "RampStep",
    "ReleaseTag",
    "RequestMetadata",
    "Result",
    "Reward",
    "RewardComponent",
    "RewardMetadata",
    "RewardOutcome",
    "Sampling",
    "SessionOutcome",
    "TrainingRequest",
    "TrainingStatus",
    "Trajectory",
    "Turn",
    "canonical_json",
    "decode",
    "decode_document",
    "encode",
    "sha256_hex",
    "subjects",
    "to_document",
    "validate",
]
__getattr__ = attributes(
    __name__,
    {
        "onward.contracts.codec": (
            "MAX_BYTES MAX_DEPTH canonical_json decode decode_document encode sha256_hex to_document validate"
        ),
        "onward.contracts.deployment": "ModelDeployed RampStep",
        "onward.contracts.feedback": "Feedback",
        "onward.contracts.outcome": "SessionOutcome",
        "onward.contracts.reward": "Normalization Reward RewardComponent RewardMetadata RewardOutcome",
        "onward.contracts.training": (
            "DatasetSpec Hyperparameters Progress RequestMetadata TrainingRequest TrainingStatus"
        ),
        "onward.contracts.trajectory": "Action ReleaseTag Result Sampling Trajectory Turn",
    },
)
