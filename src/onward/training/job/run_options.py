"""The options of a run without a service, and the check that they go together. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onward.envs import registry
from onward.errors import ConfigError
from onward.lm import devices
from onward.lm.algorithm_options import full_name
from onward.training.spec import environment_plan as plan
from onward.training.spec import numbers, request
from onward.training.spec.algorithms import ALGORITHMS, refuse_idle
from onward.training.spec.request import JobSpec


@dataclass
class RunOptions:
    """The options of the command line."""

    algorithm: str
    model: str
    """The model's name in ``spec.json`` and for the recipe."""
    model_folder: Path | None
    """None: a tiny model is made for this run."""
    out: Path
    data: list[Path] = field(default_factory=list)
    eval: list[Path] = field(default_factory=list)
    env: str | None = None
    solver: str | None = None
    """Player of demonstrations: the name of a dialect or ``package.module:object``."""
    start: Path | None = None
    replay: str | None = None
    """Environment in which held-out tasks of the data are played."""
    demonstrations: int = 400
    spec: dict[str, Any] = field(default_factory=dict)
    """Fields of JobSpec that were given."""
    plan: dict[str, Any] = field(default_factory=dict)
    """Fields of EnvironmentPlan that were given."""

    def __post_init__(self) -> None:
        self.algorithm = full_name(self.algorithm)


def check(wanted: RunOptions) -> None:
    """Raises ConfigError for options that contradict each other or do nothing, NotFoundError for an unknown
    environment to replay in."""
    if wanted.algorithm not in ALGORITHMS:
        raise ConfigError(
            f"There is no algorithm {wanted.algorithm[:40]!r}: give one of {', '.join(ALGORITHMS)}."
        )
    devices.refuse_missing(wanted.spec.get("device", "auto"))
    replays = wanted.algorithm == "sft" and wanted.env is not None
    if (not wanted.data and wanted.env is None) or (wanted.data and wanted.env is not None and not replays):
        raise ConfigError(
            "Nothing to learn from, or two things: give either --data FILE or --env NAME. Only sft "
            "takes both: it plays the attempts in the file again."
        )
    if wanted.data and wanted.solver is not None:
        raise ConfigError("Demonstrations come from --data or from --solver: leave one out.")
    if wanted.env is not None:
        request.refuse_environment(wanted.algorithm)
    if wanted.spec.get("dense_rewards"):
        request.refuse_dense(wanted.algorithm, wanted.spec.get("return_from", "outcome"))
    numbers.refuse_out_of_range(JobSpec, wanted.spec)
    numbers.refuse_out_of_range(plan.EnvironmentPlan, wanted.plan)
    refuse_idle(wanted.spec, wanted.algorithm)
    if wanted.spec.get("behaviour") == "recompute" and ALGORITHMS[wanted.algorithm].text_is_enough:
        raise ConfigError(f"--behaviour recompute does nothing in {wanted.algorithm}: leave it out.")
    if wanted.eval and not ALGORITHMS[wanted.algorithm].text_is_enough:
        raise ConfigError(
            f"--eval does nothing in {wanted.algorithm}, whose result shows in an environment: leave it out, "
            f"or train with --env, which tries held-out tasks."
        )
    _check_judges(wanted)
    if wanted.env is not None and wanted.spec.get("full") and wanted.spec.get("kl_coef"):
        raise ConfigError(
            "A KL penalty in an environment holds to the network without its adapter, and --full trains that "
            "network itself: leave --kl or --full out."
        )
    if wanted.start is not None and wanted.spec.get("full"):
        raise ConfigError("--start gives an adapter to go on from and --full trains none: leave one out.")


def _check_judges(wanted: RunOptions) -> None:
    plays = wanted.env is not None and wanted.algorithm != "sft"
    holdout = wanted.spec.get("holdout")
    if wanted.spec.get("eval_every") and not (wanted.eval or holdout or plays):
        raise ConfigError(
            "--eval-every does nothing without --eval or --holdout: give a file or a share of the tasks to "
            "judge the policy on."
        )
    if holdout and plays:
        raise ConfigError("--holdout is of logged work: in an environment, give --held-out TASKS.")
    if holdout and wanted.eval:
        raise ConfigError("The policy is judged on --eval or on a share of the data: leave --holdout out.")
    if wanted.replay is not None and not holdout:
        raise ConfigError("--replay plays held-out tasks, and none are held out: give --holdout SHARE.")
    if wanted.replay is not None and "://" not in wanted.replay:
        registry.find(wanted.replay)
