"""A training request resolved for this service: algorithm, model and numbers.

Pure. An impossible request is refused with one sentence before it costs anything.
"""

from __future__ import annotations

import os
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from onward.config import Settings
from onward.contracts import TrainingRequest
from onward.errors import ConfigError, TrainingError
from onward.training.spec import departures, numbers
from onward.training.spec import environment_plan as plan
from onward.training.spec.recipes import Recipe

Method = Literal["ppo", "rloo", "grpo", "dr_grpo", "reinforce", "reinforce_pp", "dpo", "sft"]
METHODS: dict[str, str] = {
    "ppo": "a critic expects, clipped steps follow what went better; any traffic",
    "rloo": "each attempt against the mean of the others at the same task",
    "grpo": "each attempt against its group, divided by the group's deviation",
    "dr_grpo": "grpo without that division: hard and easy tasks weigh as they are",
    "reinforce": "each attempt against a running mean of its kind of task; any traffic",
    "reinforce_pp": "returns whitened over the whole batch; any traffic",
    "dpo": "the better of two answers to the same prompt is raised; text is enough",
    "sft": "good answers are imitated; text is enough",
}
"""Algorithm → its description. The first three, reinforce and dpo are those of the published schema."""
GROUPED = frozenset({"rloo", "grpo", "dr_grpo"})
TEXT_IS_ENOUGH = frozenset({"dpo", "sft"})
PLACES_REWARDS = frozenset({"ppo", "reinforce_pp"})
"""Algorithms that use a reward per turn."""
SOURCES = ("clickhouse", "nats_stream")
OLDER_CAP = 2.0
"""Cap on importance weights if rows of the previous policy are used and no cap is set."""


class JobSpec(BaseModel):
    """Content of ``spec.json``, the job child's input. Everything is resolved; nothing is looked up later."""

    model_config = ConfigDict(extra="forbid")

    job_id: str
    epoch: int
    algorithm: Method
    base_model: str
    model_folder: str
    start_digest: str | None
    learning_rate: float
    schedule: Literal["constant", "linear"] = "constant"
    """Linear: the learning rate falls to 0 over the steps on the frozen data."""
    epochs: int
    batch_rows: int
    clip_epsilon: float
    lora_rank: int
    lora_alpha: float
    first_lora_layer: float
    """Share of the layers, from below, that stay frozen: 0.5 adapts the upper half."""
    lora_targets: list[str] | None = None
    full: bool = False
    """Trains every weight of the network; the result is a model folder, not an adapter."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    normaliser: Literal["token", "sequence", "constant"]
    return_from: str
    unparsable_penalty: float
    standardise: bool
    negative_weight: float
    spare_above: float | None = None
    """Probability at or above which a drawn token is never pushed down."""
    hold_coef: float = 0.0
    """Pull of such tokens back to the probability that they were drawn with."""
    kl_coef: float
    gamma: float = 1.0
    gae_lambda: float = 0.95
    beta: float = 0.1
    """Beta of DPO."""
    margin: float = 0.0
    """DPO: smallest difference in return of a pair, exclusive."""
    min_reward: float | None = None
    behaviour: Literal["recorded", "recompute"] = "recorded"
    importance_cap: float | None = None
    max_staleness: int = Field(0, ge=0, le=1)
    dense_rewards: bool = False
    micro_batch_tokens: int = 2048
    gradient_checkpointing: bool = False
    max_unscored_share: float = 0.2
    max_steps: int | None = Field(default=None, ge=1)
    """Maximum of optimiser steps on data, whatever the epochs."""
    save_seconds: float = 20.0
    save_steps: int | None = Field(default=None, ge=1)
    """Period in steps of additional saves."""
    seed: int
    threads: int
    ignored: list[str] = Field(default_factory=list)
    """Hyperparameters of the request that no job supports."""
    not_as_asked: list[str] = Field(default_factory=list)
    """Other departures of this job from its request, as sentences."""
    environment: plan.EnvironmentPlan | None = None

    @property
    def thread_count(self) -> int:
        """``threads``, or one per core."""
        return self.threads or os.cpu_count() or 1


def check(request: TrainingRequest, settings: Settings) -> None:
    """Raises TrainingError("DATA"), with the remedy, when this request cannot run here."""
    config = request.training_config
    asked = config.hyperparameters.model_dump(exclude_none=True)
    if config.base_model != settings.model.base:
        raise TrainingError(
            "DATA",
            f"This service trains {settings.model.base!r} and was asked for {config.base_model!r}: "
            f"set model.base (or RL_BASE_MODEL) to the model that serves.",
        )
    environment = config.dataset.environment
    if config.dataset.source == "local" and environment is None:
        raise TrainingError(
            "DATA",
            "Data source 'local' names no environment: add dataset.environment with a name or url, or train "
            "from files with `onward train --data`.",
        )
    if config.dataset.source not in (*SOURCES, "local"):
        raise TrainingError(
            "DATA",
            f"Data source {config.dataset.source!r} cannot be read yet: use 'clickhouse', 'nats_stream' or "
            f"'local' with dataset.environment.",
        )
    if environment is not None and config.dataset.source == "local":
        refuse_environment(config.algorithm)
    numbers.check(asked, config.algorithm)
    if asked.get("return_from", "outcome") not in ("outcome", "raw_total"):
        raise TrainingError("DATA", "return_from is neither 'outcome' nor 'raw_total': give one of them.")
    if asked.get("dense_rewards"):
        refuse_dense(config.algorithm, asked.get("return_from", settings.training.return_from))


def refuse_environment(algorithm: str) -> None:
    """Raises TrainingError("DATA") for dpo, which compares collected answers and does not explore."""
    if algorithm == "dpo":
        raise TrainingError(
            "DATA",
            "dpo learns from pairs that were collected before and plays nothing: use rloo, grpo, ppo or "
            "reinforce in an environment.",
        )


def refuse_dense(algorithm: str, return_from: str) -> None:
    """Raises TrainingError("DATA") when rewards per turn are requested but would not be used."""
    if algorithm not in PLACES_REWARDS:
        raise TrainingError(
            "DATA",
            f"Rewards per turn were asked for, which {algorithm} cannot place: use ppo, or leave "
            f"dense_rewards out.",
        )
    if return_from != "raw_total":
        raise TrainingError(
            "DATA",
            "Rewards per turn sum to the raw total, and this job learns from the outcome: set return_from to "
            "'raw_total', or leave dense_rewards out.",
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
    """Resolves a request: its own numbers first, then the model's recipe. Raises TrainingError("DATA")."""
    config = request.training_config
    asked: dict[str, Any] = config.hyperparameters.model_dump(exclude_none=True)
    numbers.check(asked, config.algorithm)
    filters = config.dataset.filter
    older = int(asked.get("max_staleness", 0))
    text = config.algorithm in TEXT_IS_ENOUGH
    besides = departures.read(request, settings)
    spec = JobSpec(
        job_id=request.training_job_id,
        epoch=epoch,
        algorithm=config.algorithm,
        base_model=config.base_model,
        model_folder=model_folder,
        start_digest=start_digest,
        learning_rate=asked.get("learning_rate", recipe.learning_rate),
        schedule="constant" if text else recipe.schedule,
        epochs=asked.get("epochs", recipe.epochs),
        batch_rows=asked.get("batch_size", recipe.batch_size),
        clip_epsilon=asked.get("clip_epsilon", recipe.clip_epsilon),
        lora_rank=recipe.lora_rank,
        lora_alpha=recipe.lora_alpha,
        first_lora_layer=recipe.first_lora_layer,
        normaliser=recipe.normaliser,
        return_from=asked.get("return_from", settings.training.return_from),
        unparsable_penalty=settings.training.unparsable_penalty,
        standardise=recipe.standardise,
        negative_weight=recipe.negative_weight,
        spare_above=None if text else asked.get("spare_above", recipe.spare_above),
        hold_coef=0.0 if text else asked.get("hold_coef", recipe.hold_coef),
        kl_coef=asked.get("kl_coef", recipe.kl_coef),
        gamma=asked.get("gamma", 1.0),
        gae_lambda=asked.get("gae_lambda", 0.95),
        beta=asked.get("beta", 0.1),
        min_reward=None if filters is None else filters.min_reward,
        importance_cap=asked.get("importance_cap", OLDER_CAP if older else None),
        max_staleness=older,
        dense_rewards=bool(asked.get("dense_rewards", False)),
        max_unscored_share=settings.training.max_unscored_share,
        seed=asked.get("seed", 0),
        threads=settings.model.threads,
        ignored=numbers.unknown(asked),
        save_steps=besides.save_steps,
        not_as_asked=besides.told,
        environment=environment_of(request, recipe, held_out=besides.held_out),
    )
    if spec.environment is not None:
        try:
            plan.check(spec.environment, spec.algorithm, spec.algorithm in GROUPED)
        except ConfigError as error:
            raise TrainingError("DATA", str(error)) from None
    return spec


def environment_of(
    request: TrainingRequest, recipe: Recipe, *, held_out: int | None = None
) -> plan.EnvironmentPlan | None:
    """Returns the plan of an environment job; None for one on logged data. Raises TrainingError("DATA").

    ``sample_size`` is the total number of episodes and ``held_out`` the number of held-out tasks, unless the
    plan sets them.
    """
    dataset = request.training_config.dataset
    if dataset.source != "local" or dataset.environment is None:
        return None
    given = dict(dataset.environment)
    if held_out is not None:
        given.setdefault("held_out", held_out)
    group = given.setdefault("group_size", 8)
    if isinstance(group, int) and group > 0:
        episodes = given.setdefault("episodes", max(group, min(dataset.sample_size, 64) // group * group))
        if isinstance(episodes, int) and episodes > 0:
            given.setdefault("steps", max(1, dataset.sample_size // episodes))
    return plan.read(given, max_tokens=recipe.max_tokens)
