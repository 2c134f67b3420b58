"""A training request resolved for this service: algorithm, model and numbers.

Pure. An impossible request is refused with one sentence before it costs anything.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from onward.config import Settings
from onward.contracts import TrainingRequest
from onward.envs.registry import BUILT_IN
from onward.errors import ConfigError, ContractError, TrainingError
from onward.training.spec import algorithms, differences
from onward.training.spec import environment_plan as plan
from onward.training.spec.algorithms import ALGORITHMS
from onward.training.spec.numbers import DATA, LEARNING, NETWORK, RUN, EveryNumber, Option
from onward.training.spec.recipes import Recipe

SOURCES = ("clickhouse", "nats_stream")
OLDER_CAP = 2.0
"""Cap on importance weights if rows of the previous policy are used and no cap is set."""
EVALUATIONS = 4
"""Evaluations of a run, unless ``eval_every`` is set."""
_COMMAS = BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value)
"""Splits a list from the command line."""


class JobSpec(EveryNumber):
    """Content of ``spec.json``, the job child's input. Everything is resolved; nothing is looked up later.

    It has the numbers of every algorithm; those that its own does not use are at their defaults.
    """

    model_config = ConfigDict(extra="forbid")

    job_id: str
    epoch: int
    algorithm: Annotated[str, Field(pattern=f"^({'|'.join(ALGORITHMS)})$")]
    base_model: str
    model_folder: str
    start_digest: str | None
    lora_targets: Annotated[list[str] | None, _COMMAS, Option("--lora-targets", NETWORK)] = None
    """Adapted matrices, such as q_proj,v_proj. Default: all seven."""
    full: Annotated[bool, Option("--full", NETWORK)] = False
    """Train all weights, no adapter."""  # the result is a model folder
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], Option("--dtype", NETWORK)] = "float32"
    """float32, bfloat16 or float16."""
    gradient_checkpointing: Annotated[bool, Option("--gradient-checkpointing", NETWORK)] = False
    """Less memory, more time."""
    micro_batch_tokens: Annotated[int, Field(ge=1), Option("--micro-batch-tokens", LEARNING)] = 2048
    """Memory against speed; never the result."""
    behaviour: Annotated[Literal["recorded", "recompute"], Option("--behaviour", DATA)] = "recorded"
    """recorded, or recompute: take text for the policy's own work."""
    unparsable_penalty: float = 0.0
    margin: float = 0.0
    """DPO: smallest difference in return of a pair, exclusive."""
    max_unscored_share: float = 0.2
    max_steps: int | None = Field(default=None, ge=1)
    """Maximum of optimiser steps on data, whatever the epochs."""
    eval_every: Annotated[int | None, Field(ge=1), Option("--eval-every", RUN)] = None
    """Steps from one evaluation to the next, on held-out tasks or --eval. Default: a quarter of the run."""
    start_counts: bool = True
    """True: the start is handed out if no later policy was better."""
    save_seconds: float = 20.0
    save_steps: int | None = Field(default=None, ge=1)
    """Period in steps of additional saves."""
    threads: Annotated[int, Field(ge=0), Option("--threads", RUN)]
    """CPU threads; 0: all cores."""
    ignored: list[str] = Field(default_factory=list)
    """Hyperparameters of the request that no job supports."""
    not_as_asked: list[str] = Field(default_factory=list)
    """Other differences of this job from its request, as sentences."""
    environment: plan.EnvironmentPlan | None = None

    def evaluation_period(self, steps: int) -> int:
        """Returns the steps from one evaluation to the next in a run of ``steps``."""
        return self.eval_every or max(1, -(-steps // EVALUATIONS))

    @property
    def plays(self) -> bool:
        """True for a run that learns from attempts in its environment."""
        return self.environment is not None and self.algorithm != "sft"

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
        _refuse_unlisted(environment, settings)
    algorithms.read(config.algorithm, asked, Recipe())
    if asked.get("reference", "start") not in ("start", "base"):
        raise TrainingError("DATA", "reference is neither 'start' nor 'base': give one of them.")
    if asked.get("return_from", "outcome") not in ("outcome", "raw_total"):
        raise TrainingError("DATA", "return_from is neither 'outcome' nor 'raw_total': give one of them.")
    if asked.get("dense_rewards"):
        refuse_dense(config.algorithm, asked.get("return_from", settings.training.return_from))


def refuse_operators_rights(request: TrainingRequest) -> None:
    """Raises ContractError("operator_only") for a message that asks for what no message may decide."""
    metadata = request.metadata.model_extra if request.metadata is not None else None
    if (metadata or {}).get("skip_validation"):
        raise ContractError(
            "operator_only",
            "A request cannot skip the validation of its result: leave metadata.skip_validation out.",
        )


def _refuse_unlisted(environment: dict[str, Any], settings: Settings) -> None:
    """Raises TrainingError("DATA") for an environment that a message may not name: to load it is to run its
    code, and to open its address is to call it from inside."""
    places = [environment[name] for name in ("name", "url") if environment.get(name) is not None]
    if not all(
        isinstance(place, str) and plan.is_listed(place, settings.training.environments) for place in places
    ):
        raise TrainingError(
            "DATA",
            "dataset.environment is not one that a request may name here: use a built-in one "
            f"({', '.join(BUILT_IN)}), or let the operator list it in training.environments.",
        )


def refuse_environment(algorithm: str) -> None:
    """Raises TrainingError("DATA") for dpo, which compares collected answers and does not explore."""
    if not ALGORITHMS[algorithm].plays:
        raise TrainingError(
            "DATA",
            f"{algorithm} learns from pairs that were collected before and plays nothing: use rloo, grpo, "
            "ppo or reinforce in an environment.",
        )


def refuse_dense(algorithm: str, return_from: str) -> None:
    """Raises TrainingError("DATA") when rewards per turn are requested but would not be used."""
    if not ALGORITHMS[algorithm].places_rewards:
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
    asked = config.hyperparameters.model_dump(exclude_none=True)
    values = algorithms.read(config.algorithm, asked, recipe, settings.training.return_from)
    if values.get("max_staleness") and values["importance_cap"] is None:
        values["importance_cap"] = OLDER_CAP
    filters = config.dataset.filter
    besides = differences.read(request, settings)
    values |= {
        "job_id": request.training_job_id,
        "epoch": epoch,
        "base_model": config.base_model,
        "model_folder": model_folder,
        "start_digest": start_digest,
        "unparsable_penalty": settings.training.unparsable_penalty,
        "min_reward": None if filters is None else filters.min_reward,
        "max_unscored_share": settings.training.max_unscored_share,
        "threads": settings.model.threads,
        "start_counts": False,  # a release compares the candidate with the start
        "ignored": sorted(set(asked) - algorithms.REQUESTED),
        "save_steps": besides.save_steps,
        "not_as_asked": besides.differences,
        "environment": environment_of(request, recipe, held_out=besides.held_out),
    }
    spec = JobSpec.model_validate(values)
    if spec.environment is not None:
        try:
            plan.check(spec.environment, spec.algorithm, ALGORITHMS[spec.algorithm].grouped)
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
