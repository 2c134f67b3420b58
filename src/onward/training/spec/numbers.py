"""The numbers of a job, and the algorithms that use each. Pure.

Invariants: a number without effect is refused. The exceptions are in requests, where every document that is
valid by the published schema must run: its own six numbers, which publishers send with every algorithm, and
unknown names, which the job's manifest then reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from onward.contracts.training import Hyperparameters
from onward.errors import ConfigError, TrainingError

_POLICY_GRADIENTS = frozenset({"ppo", "rloo", "grpo", "dr_grpo", "reinforce", "reinforce_pp"})
APPLIES: dict[str, frozenset[str]] = {
    "clip_epsilon": _POLICY_GRADIENTS,
    "kl_coef": _POLICY_GRADIENTS,
    "spare_above": _POLICY_GRADIENTS,
    "hold_coef": _POLICY_GRADIENTS,
    "importance_cap": _POLICY_GRADIENTS,
    "max_staleness": _POLICY_GRADIENTS,
    "gamma": frozenset({"ppo", "reinforce_pp"}),
    "gae_lambda": frozenset({"ppo"}),
    "beta": frozenset({"dpo"}),
    "min_reward": frozenset({"sft", "dpo", "rloo", "grpo", "dr_grpo"}),
}
"""Number → the algorithms that use it; a number not listed is used by all."""


_ALLOWED: dict[str, tuple[str, str, Callable[[float], bool]]] = {
    "learning_rate": ("--lr", "greater than 0", lambda value: value > 0),
    "clip_epsilon": ("--clip", "greater than 0 and less than 1", lambda value: 0 < value < 1),
    "kl_coef": ("--kl", "at least 0", lambda value: value >= 0),
    "spare_above": ("--spare-above", "greater than 0 and at most 1", lambda value: 0 < value <= 1),
    "hold_coef": ("--hold", "at least 0", lambda value: value >= 0),
    "gamma": ("--gamma", "greater than 0 and at most 1", lambda value: 0 < value <= 1),
    "gae_lambda": ("--gae-lambda", "from 0 to 1", lambda value: 0 <= value <= 1),
    "beta": ("--beta", "greater than 0", lambda value: value > 0),
    "lora_alpha": ("--lora-alpha", "greater than 0", lambda value: value > 0),
}
"""Field of a run's spec → its option, its range in words, and a test of that range."""


class Numbers(BaseModel):
    """``hyperparameters`` of a request: those of the published schema, and others that jobs support."""

    model_config = ConfigDict(extra="ignore")

    learning_rate: float | None = None
    batch_size: int | None = None
    epochs: int | None = None
    clip_epsilon: float | None = None
    gamma: float | None = Field(None, ge=0, le=1)
    gae_lambda: float | None = Field(None, ge=0, le=1)
    kl_coef: float | None = Field(None, ge=0)
    spare_above: float | None = Field(None, gt=0, le=1)
    hold_coef: float | None = Field(None, ge=0)
    beta: float | None = Field(None, gt=0)
    importance_cap: float | None = Field(None, gt=0)
    max_staleness: int | None = Field(None, ge=0, le=1)
    return_from: str | None = None
    dense_rewards: bool | None = None
    seed: int | None = None


def check(asked: Mapping[str, Any], algorithm: str) -> None:
    """Raises TrainingError("DATA") for a wrong type or range, or for a number of ours without effect."""
    try:
        Numbers.model_validate(asked)
    except ValidationError as error:
        first = error.errors()[0]
        raise TrainingError(
            "DATA",
            f"hyperparameters.{first['loc'][0]} is wrong ({first['msg']}): correct it or leave it out.",
        ) from None
    if asked.get("gamma") == 0 and algorithm in APPLIES["gamma"]:
        raise TrainingError("DATA", "hyperparameters.gamma is 0, and a learner needs more: leave it out.")
    ours = [name for name in asked if name not in Hyperparameters.model_fields]
    try:
        refuse_idle(ours, algorithm)
    except ConfigError as error:
        raise TrainingError("DATA", str(error)) from None


def refuse_out_of_range(spec: Mapping[str, Any]) -> None:
    """Raises ConfigError for the first number of a command-line run that no learner accepts."""
    for name, (option, words, holds) in _ALLOWED.items():
        value = spec.get(name)
        if value is not None and not (math.isfinite(value) and holds(value)):
            raise ConfigError(f"{option} is {value:g}: give a number {words}.")


def unknown(asked: Mapping[str, Any]) -> list[str]:
    """Returns the hyperparameters that no job supports."""
    return sorted(name for name in asked if name not in Numbers.model_fields)


def refuse_idle(names: list[str], algorithm: str) -> None:
    """Raises ConfigError for the first of ``names`` that ``algorithm`` does not use."""
    for name in names:
        users = APPLIES.get(name)
        if users is not None and algorithm not in users:
            raise ConfigError(
                f"{name} does nothing in {algorithm}: leave it out, or use {', '.join(sorted(users))}."
            )
