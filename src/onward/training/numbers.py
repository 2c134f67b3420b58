"""Which numbers mean something to which algorithm. Pure.

Know before changing: a number that would do nothing is refused. The exceptions are in requests, where every
document that is valid by the published schema must run: its own six numbers, which publishers send with every
algorithm, and names that nobody knows, which the job's manifest then tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from onward.contracts.training import Hyperparameters
from onward.errors import ConfigError, TrainingError

_POLICY_GRADIENTS = frozenset({"ppo", "rloo", "grpo", "dr_grpo", "reinforce", "reinforce_pp"})
APPLIES: dict[str, frozenset[str]] = {
    "clip_epsilon": _POLICY_GRADIENTS,
    "kl_coef": _POLICY_GRADIENTS,
    "importance_cap": _POLICY_GRADIENTS,
    "max_staleness": _POLICY_GRADIENTS,
    "gamma": frozenset({"ppo", "reinforce_pp"}),
    "gae_lambda": frozenset({"ppo"}),
    "beta": frozenset({"dpo"}),
    "min_reward": frozenset({"sft", "dpo", "rloo", "grpo", "dr_grpo"}),
}
"""Number → the algorithms that use it; what is not here is used by all."""


class Numbers(BaseModel):
    """``hyperparameters`` of a request: what the published schema names, and what jobs know besides."""

    model_config = ConfigDict(extra="ignore")

    learning_rate: float | None = None
    batch_size: int | None = None
    epochs: int | None = None
    clip_epsilon: float | None = None
    gamma: float | None = None
    gae_lambda: float | None = None
    kl_coef: float | None = Field(None, ge=0)
    beta: float | None = Field(None, gt=0)
    importance_cap: float | None = Field(None, gt=0)
    max_staleness: int | None = Field(None, ge=0, le=1)
    return_from: str | None = None
    dense_rewards: bool | None = None
    seed: int | None = None


def check(asked: Mapping[str, Any], algorithm: str) -> None:
    """Raise TrainingError("DATA") for one that is no number, out of range, or ours and without effect."""
    try:
        Numbers.model_validate(asked)
    except ValidationError as error:
        first = error.errors()[0]
        raise TrainingError(
            "DATA",
            f"hyperparameters.{first['loc'][0]} is wrong ({first['msg']}): correct it or leave it out.",
        ) from None
    ours = [name for name in asked if name not in Hyperparameters.model_fields]
    try:
        refuse_idle(ours, algorithm)
    except ConfigError as error:
        raise TrainingError("DATA", str(error)) from None


def unknown(asked: Mapping[str, Any]) -> list[str]:
    """Names among the hyperparameters that no job knows."""
    return sorted(name for name in asked if name not in Numbers.model_fields)


def refuse_idle(names: list[str], algorithm: str) -> None:
    """Raise ConfigError for the first of ``names`` that ``algorithm`` has no use for."""
    for name in names:
        users = APPLIES.get(name)
        if users is not None and algorithm not in users:
            raise ConfigError(
                f"{name} does nothing in {algorithm}: leave it out, or use {', '.join(sorted(users))}."
            )
