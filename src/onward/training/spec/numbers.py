"""The numbers of learning, in groups that algorithms share. Pure.

A number is one field: its bounds are in its type, its option of ``onward train`` is beside it, and its
explanation, the option's help, is under it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from onward.errors import ConfigError
from onward.lm.cursor import Schedule

DATA, NETWORK, LEARNING = "What to learn from", "The network", "Learning"
RUN, PLAYING = "The run", "In an environment"
"""Panels of ``onward train --help``, in this order."""

_BOUNDS = {
    "gt": (operator.gt, "greater than"),
    "ge": (operator.ge, "at least"),
    "lt": (operator.lt, "less than"),
    "le": (operator.le, "at most"),
}
_ROWS = AliasChoices("batch_rows", "batch_size")
"""Requests and recipes have the second name."""


@dataclass(frozen=True)
class Option:
    """The option of ``onward train`` that sets a field."""

    name: str
    panel: str


class Numbers(BaseModel):
    """A group of numbers; names of other groups are ignored."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)


class Learning(Numbers):
    """Numbers of every algorithm."""

    learning_rate: Annotated[float, Field(gt=0), Option("--lr", LEARNING)]
    """Learning rate."""
    epochs: Annotated[int, Field(ge=1), Option("--epochs", LEARNING)]
    """Passes over the data of an update."""
    batch_rows: Annotated[int, Field(ge=1, validation_alias=_ROWS), Option("--batch-rows", LEARNING)]
    """Rows (dpo: pairs) per step."""
    schedule: Annotated[Schedule, Option("--schedule", LEARNING)] = "constant"
    """constant, or linear or cosine: the learning rate falls to 0 by the last step."""
    warmup_steps: Annotated[int, Field(ge=0), Option("--warmup-steps", LEARNING)] = 0
    """Steps over which the learning rate rises to its value."""
    max_length: Annotated[int | None, Field(ge=2), Option("--max-length", LEARNING)] = None
    """Longest row in tokens. Default: what the network reads. Longer ones are left out; dpo cuts sides that
    differ before."""
    lora_rank: Annotated[int, Field(ge=1), Option("--lora-rank", NETWORK)]
    """Rank of the adapter: its size. Default: 16."""
    lora_alpha: Annotated[float, Field(gt=0), Option("--lora-alpha", NETWORK)]
    """The adapter counts alpha / rank times. Default: 32."""
    first_lora_layer: Annotated[float, Field(ge=0, le=0.99), Option("--frozen-share", NETWORK)]
    """Share of the layers, from below, without adapter."""
    return_from: Annotated[str, Option("--return-from", DATA)] = "outcome"
    """outcome or raw_total."""
    dense_rewards: Annotated[bool, Option("--dense-rewards", DATA)] = False
    """Use rewards per turn (ppo)."""
    seed: Annotated[int, Option("--seed", RUN)] = 0
    """Seed of everything that chance decides."""


class PolicyGradient(Learning):
    """Numbers of every policy gradient."""

    clip_epsilon: Annotated[float, Field(gt=0, lt=1), Option("--clip", LEARNING)] = 0.2
    """Clipping range."""
    kl_coef: Annotated[float, Field(ge=0), Option("--kl", LEARNING)] = 0.0
    """KL coefficient."""
    spare_above: Annotated[float | None, Field(gt=0, le=1), Option("--spare-above", LEARNING)] = None
    """Never push down tokens drawn with at least this probability: braces of a tool call."""
    hold_coef: Annotated[float, Field(ge=0), Option("--hold", LEARNING)] = 0.0
    """Pull of those tokens back to that probability."""
    importance_cap: Annotated[float | None, Field(gt=0)] = None
    """Cap on importance weights."""
    max_staleness: Annotated[int, Field(ge=0, le=1)] = 0
    """1 admits rows of the policy before the serving one."""
    normaliser: Literal["token", "sequence", "constant"] = "token"
    """Weight of a token in the loss (docs/training.md)."""
    standardise: bool = False
    """Scales the advantages of a job to mean square 1."""
    negative_weight: float = 1.0
    """Weight of advantages below the baseline."""


class Discount(Numbers):
    """The discount of learners that place a reward at its token."""

    gamma: Annotated[float, Field(gt=0, le=1), Option("--gamma", LEARNING)] = 1.0
    """Discount per token (ppo, reinforce_plus_plus); 1 is none."""


class Lookahead(Numbers):
    """The number of a critic's advantages."""

    gae_lambda: Annotated[float, Field(ge=0, le=1), Option("--gae-lambda", LEARNING)] = 0.95
    """ppo: how far an advantage looks ahead."""


class Preference(Numbers):
    """The numbers of preference learning."""

    beta: Annotated[float, Field(gt=0), Option("--beta", LEARNING)] = 0.1
    """dpo: how closely it holds to the reference."""
    reference: Annotated[str, Option("--reference", LEARNING)] = "start"
    """dpo: the policy to hold to: start (that of --start, or the model), base (the model without adapter), or
    the folder of another run, adapter or model."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5), Option("--label-smoothing", LEARNING)] = 0.0
    """dpo: expected share of pairs in the wrong order."""
    length_normalised: Annotated[bool, Option("--length-normalised", LEARNING)] = False
    """dpo: compare means per token, not sums, so that long answers weigh no more."""


class Selection(Numbers):
    """The limit of algorithms that may leave bad rows out without losing the gradient."""

    min_reward: Annotated[float | None, Option("--min-reward", DATA)] = None
    """sft: rows to imitate; dpo: chosen sides; groups: the best member."""


class EveryNumber(Selection, Preference, Lookahead, Discount, PolicyGradient):
    """Numbers of all algorithms together."""


def bounds(field: FieldInfo) -> dict[str, float]:
    """Returns the bounds in a field's type, such as ``{"gt": 0, "le": 1}``."""
    return {key: getattr(one, key) for key in _BOUNDS for one in field.metadata if hasattr(one, key)}


def options(kind: type[BaseModel]) -> dict[str, Option]:
    """Returns the fields of ``kind`` that ``onward train`` can set."""
    fields = kind.model_fields.items()
    return {name: one for name, field in fields for one in field.metadata if isinstance(one, Option)}


def refuse_out_of_range(kind: type[BaseModel], given: Mapping[str, Any]) -> None:
    """Raises ConfigError for the first number of a command-line run that is outside of its field's bounds."""
    known = options(kind)
    for name, value in given.items():
        if name not in known or not isinstance(value, float):
            continue
        limits = bounds(kind.model_fields[name])
        if not (math.isfinite(value) and all(_BOUNDS[key][0](value, at) for key, at in limits.items())):
            words = [f"{_BOUNDS[key][1]} {at:g}" for key, at in limits.items()]
            if {"ge", "le"} <= limits.keys():
                words = [f"from {limits['ge']:g} to {limits['le']:g}"]
            raise ConfigError(f"{known[name].name} is {value:g}: give a number {' and '.join(words)}.")
