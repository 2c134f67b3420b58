"""A training request resolved for this service: algorithm, model and numbers.

Pure. An impossible request is refused with one sentence before it costs anything.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from onward.config import Settings
from onward.contracts import TrainingRequest
from onward.contracts.training import DatasetSpec
from onward.envs.registry import BUILT_IN
from onward.errors import ConfigError, ContractError, TrainingError
from onward.lm import devices
from onward.lm.algorithm_options import full_name
from onward.training.spec import algorithms, differences, learners, recipes, strict
from onward.training.spec import environment_plan as plan
from onward.training.spec.algorithms import ALGORITHMS
from onward.training.spec.dataset_mix import shares_of
from onward.training.spec.numbers import DATA, LEARNING, NETWORK, RUN, EveryNumber, Option
from onward.training.spec.places import confined
from onward.training.spec.recipes import Recipe

OLDER_CAP = 2.0
"""Cap on importance weights if rows of the previous policy are used and no cap is set."""
EVALUATIONS = 4
"""Evaluations of a run, unless ``eval_every`` is set."""
KEPT_CHECKPOINTS = 3
"""Checkpoints during a run that are kept, unless the request has ``checkpointing.max_checkpoints``."""
_COMMAS = BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value)
"""Splits a list from the command line."""


class JobSpec(EveryNumber):
    """Content of ``spec.json``, the job child's input. Everything is resolved; nothing is looked up later.

    It has the numbers of every algorithm; those that its own does not use are at their defaults.
    """

    model_config = ConfigDict(extra="forbid")

    job_id: str
    epoch: int
    algorithm: Annotated[
        str, Field(pattern=f"^({'|'.join(ALGORITHMS)})$"), BeforeValidator(full_name)
    ]  # a run of an earlier version may have a short name
    base_model: str
    model_folder: str
    start_digest: str | None
    lora_targets: Annotated[list[str] | None, _COMMAS, Option("--lora-targets", NETWORK)] = None
    """Adapted matrices, such as q_proj,v_proj. Default: all seven."""
    rslora: Annotated[bool, Option("--rslora", NETWORK)] = False
    """The adapter counts alpha / √rank times, so that a high rank learns no slower."""
    full: Annotated[bool, Option("--full", NETWORK)] = False
    """Train all weights, no adapter."""  # the result is a model folder
    device: Annotated[str, Field(pattern=devices.PATTERN), Option("--device", NETWORK)] = "auto"
    """cpu, cuda, cuda:N, or auto: a GPU where there is one."""
    dtype: Annotated[devices.Dtype, Option("--dtype", NETWORK)] = "auto"
    """float32, bfloat16, float16, or auto: bfloat16 on a GPU, and on a CPU that is faster in it."""
    path: Annotated[Literal["auto", "transformers"], Option("--path", NETWORK)] = "auto"
    """auto, or transformers: compute with its modules even where Onward's own forward could."""
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
    max_masked_share: float = 0.5
    max_steps: int | None = Field(default=None, ge=1)
    """Maximum of optimiser steps on data, whatever the epochs."""
    eval_every: Annotated[int | None, Field(ge=1), Option("--eval-every", RUN)] = None
    """Steps from one evaluation to the next, on held-out tasks or --eval. Default: a quarter of the run."""
    holdout: Annotated[float, Field(ge=0, lt=1), Option("--holdout", DATA)] = 0.0
    """Share of the data's tasks to hold out: the policy is judged by them, and the best is handed out."""
    replay: plan.EnvironmentPlan | None = None
    """Environment in which held-out tasks of logged work are played; None: their return is estimated."""
    strict: bool = False
    """True: what cannot be done as asked fails the job."""
    start_counts: bool = True
    """True: the start is handed out if no later policy was better."""
    save_seconds: float = 20.0
    save_steps: int | None = Field(default=None, ge=1)
    """Period in steps of additional saves, each also a checkpoint."""
    max_checkpoints: int = Field(default=KEPT_CHECKPOINTS, ge=1)
    """Checkpoints of ``save_steps`` that are kept beside the result."""
    trackers: Annotated[list[Literal["wandb", "mlflow"]] | None, _COMMAS, Option("--trackers", RUN)] = None
    """Also report the run to wandb, mlflow or both (wandb,mlflow); TensorBoard files are always written."""
    cost_per_hour: float = 0.0
    """Price of this machine in US dollars, for the model card."""
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
    if settings.models.expand(config.base_model) != settings.models.expand(settings.model.base):
        names = [settings.model.base, *settings.models.names_of(settings.model.base)]
        raise TrainingError(
            "DATA",
            f"This service trains {' or '.join(map(repr, dict.fromkeys(names)))} and was asked for "
            f"{config.base_model[:80]!r}: send that name, list the other in [models.aliases], or set "
            f"model.base (or RL_BASE_MODEL).",
        )
    environment = config.dataset.environment
    _check_dataset(config.dataset, settings)
    if environment is not None and config.dataset.source == "local":
        refuse_environment(config.algorithm)
        _refuse_unlisted(environment, settings)
    elif environment is not None and differences.read(request, settings).holdout:
        _refuse_unlisted(environment, settings)  # held-out tasks are played in it
    algorithms.read(config.algorithm, asked, Recipe())
    strict.refuse_unmet(request, settings)
    if asked.get("reference", "start") not in ("start", "base"):
        raise TrainingError("DATA", "reference is neither 'start' nor 'base': give one of them.")
    if asked.get("return_from", "outcome") not in ("outcome", "raw_total"):
        raise TrainingError("DATA", "return_from is neither 'outcome' nor 'raw_total': give one of them.")
    if asked.get("dense_rewards"):
        refuse_dense(config.algorithm, asked.get("return_from", settings.training.return_from))
    # The numbers and the environment's plan are read as the job will read them.
    resolve(
        request, settings, recipes.for_model(config.base_model), model_folder="", start_digest=None, epoch=1
    )


def _check_dataset(dataset: DatasetSpec, settings: Settings) -> None:
    """Raises TrainingError("DATA") for an incomplete source, a path outside of its roots, or a wrong mix."""
    shares_of(dataset)
    if dataset.source == "local" and dataset.environment is None:
        if not dataset.path:
            raise TrainingError(
                "DATA",
                "Data source 'local' names no environment and no file: add dataset.environment with a name "
                "or url, or dataset.path with a file under training.data_roots.",
            )
        confined(
            dataset.path, settings.training.data_roots, field="dataset.path", setting="training.data_roots"
        )
    if dataset.source == "s3" and not settings.objects.trajectories_url:
        raise TrainingError(
            "DATA", "Data source 's3' needs objects.trajectories_url, which the operator sets to the store."
        )


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
        "max_masked_share": settings.training.max_masked_share,
        "threads": settings.model.threads,
        "path": settings.model.path,
        "device": besides.device,
        "dtype": besides.dtype,
        "start_counts": False,  # a release compares the candidate with the start
        "ignored": sorted(set(asked) - algorithms.REQUESTED),
        "save_steps": besides.save_steps,
        "max_checkpoints": (config.checkpointing and config.checkpointing.max_checkpoints)
        or KEPT_CHECKPOINTS,
        "trackers": settings.training.trackers or None,
        "cost_per_hour": settings.training.cost_per_hour,
        "not_as_asked": besides.differences,
        "environment": environment_of(request, recipe, held_out=besides.held_out),
        "holdout": besides.holdout,
        "replay": replay_of(request, recipe, besides.holdout),
        "strict": strict.is_strict(request, settings),
    }
    spec = JobSpec.model_validate(values)
    try:
        learners.check(spec)
        if spec.environment is not None:
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


def replay_of(request: TrainingRequest, recipe: Recipe, holdout: float) -> plan.EnvironmentPlan | None:
    """Returns the environment in which a job on logged work tries its held-out tasks; None without one, or
    if nothing is held out. Raises TrainingError("DATA")."""
    dataset = request.training_config.dataset
    if dataset.source == "local" or dataset.environment is None or not holdout:
        return None
    return plan.read(dict(dataset.environment), max_tokens=recipe.max_tokens)
