"""What a training request means here: which algorithm runs, on which model, with which numbers.

Pure. A request that cannot be met is refused with one sentence before anything is spent on it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from onward.config import Settings
from onward.contracts import TrainingRequest
from onward.errors import TrainingError
from onward.training.recipes import Recipe

RUNNABLE = ("reinforce", "rloo")
SOURCES = ("clickhouse", "nats_stream")


class JobSpec(BaseModel):
    """What the job child reads from ``spec.json``. Everything is resolved; nothing is looked up later."""

    model_config = ConfigDict(extra="forbid")

    job_id: str
    epoch: int
    algorithm: str
    base_model: str
    model_folder: str
    start_digest: str | None
    learning_rate: float
    epochs: int
    batch_rows: int
    clip_epsilon: float
    lora_rank: int
    lora_alpha: float
    first_lora_layer: float
    """Share of the layers, from below, that stay frozen: 0.5 adapts the upper half."""
    normaliser: Literal["token", "sequence", "constant"]
    return_from: str
    unparsable_penalty: float
    standardise: bool
    negative_weight: float
    kl_coef: float
    seed: int
    threads: int


def check(request: TrainingRequest, settings: Settings) -> None:
    """Raise TrainingError("DATA") with the remedy when this request cannot run here."""
    config = request.training_config
    if config.algorithm not in RUNNABLE:
        raise TrainingError(
            "DATA",
            f"Algorithm {config.algorithm!r} cannot run yet: ask for 'reinforce' (any traffic) "
            f"or 'rloo' (several attempts per task).",
        )
    if config.base_model != settings.model.base:
        raise TrainingError(
            "DATA",
            f"This service trains {settings.model.base!r} and was asked for {config.base_model!r}: "
            f"set model.base (or RL_BASE_MODEL) to the model that serves.",
        )
    if config.dataset.source not in SOURCES:
        raise TrainingError(
            "DATA",
            f"Data source {config.dataset.source!r} cannot be read yet: use 'clickhouse' or 'nats_stream'.",
        )


def resolve(
    request: TrainingRequest,
    settings: Settings,
    recipe: Recipe,
    *,
    model_folder: str,
    start_digest: str | None,
    epoch: int,
) -> JobSpec:
    """Numbers of the request first, then the recipe of the model."""
    config = request.training_config
    asked: dict[str, Any] = config.hyperparameters.model_dump(exclude_none=True)
    return JobSpec(
        job_id=request.training_job_id,
        epoch=epoch,
        algorithm=config.algorithm,
        base_model=config.base_model,
        model_folder=model_folder,
        start_digest=start_digest,
        learning_rate=asked.get("learning_rate", recipe.learning_rate),
        epochs=asked.get("epochs", recipe.epochs),
        batch_rows=asked.get("batch_size", recipe.batch_size),
        clip_epsilon=asked.get("clip_epsilon", recipe.clip_epsilon),
        lora_rank=recipe.lora_rank,
        lora_alpha=recipe.lora_alpha,
        first_lora_layer=recipe.first_lora_layer,
        normaliser=recipe.normaliser,
        return_from=settings.training.return_from,
        unparsable_penalty=settings.training.unparsable_penalty,
        standardise=recipe.standardise,
        negative_weight=recipe.negative_weight,
        kl_coef=asked.get("kl_coef", recipe.kl_coef),
        seed=asked.get("seed", 0),
        threads=settings.model.threads,
    )
