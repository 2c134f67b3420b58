"""The algorithms of jobs, one class each: the one place that names them. Pure.

From ``TrainingSpec`` and its numbers come the checks of a request, the job file (``request.JobSpec``), and
the options of ``onward train``.

Invariants: a number without effect is refused. The exceptions are in requests, where every document that is
valid by the published schema must run: its own six numbers, which publishers send with every algorithm, and
unknown names, which the job's manifest then reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from onward.contracts.training import Hyperparameters
from onward.errors import ConfigError, TrainingError
from onward.training.spec.numbers import Discount, Learning, Lookahead, PolicyGradient, Preference, Selection
from onward.training.spec.recipes import Recipe


class Algorithm(BaseModel):
    """Facts about an algorithm besides its numbers."""

    about: ClassVar[str]
    grouped: ClassVar[bool] = False
    """Compares attempts at the same task."""
    text_is_enough: ClassVar[bool] = False
    """Needs no sampled tokens."""
    places_rewards: ClassVar[bool] = False
    """Uses a reward per turn."""
    plays: ClassVar[bool] = True
    """Can learn in an environment."""


class Ppo(Algorithm, Lookahead, Discount, PolicyGradient):
    about = "a critic expects, clipped steps follow what went better; any traffic"
    places_rewards = True
    algorithm: Literal["ppo"]


class Rloo(Algorithm, Selection, PolicyGradient):
    about = "each attempt against the mean of the others at the same task"
    grouped = True
    algorithm: Literal["rloo"]


class Grpo(Algorithm, Selection, PolicyGradient):
    about = "each attempt against its group, divided by the group's deviation"
    grouped = True
    algorithm: Literal["grpo"]


class DrGrpo(Algorithm, Selection, PolicyGradient):
    about = "grpo without that division: hard and easy tasks weigh as they are"
    grouped = True
    algorithm: Literal["dr_grpo"]


class Reinforce(Algorithm, PolicyGradient):
    about = "each attempt against a running mean of its kind of task; any traffic"
    algorithm: Literal["reinforce"]


class ReinforcePlusPlus(Algorithm, Discount, PolicyGradient):
    about = "returns whitened over the whole batch; any traffic"
    places_rewards = True
    algorithm: Literal["reinforce_plus_plus"]


class Dpo(Algorithm, Selection, Preference, Learning):
    about = "the better of two answers to the same prompt is raised; text is enough"
    text_is_enough = True
    plays = False
    algorithm: Literal["dpo"]


class Sft(Algorithm, Selection, Learning):
    about = "good answers are imitated; text is enough"
    text_is_enough = True
    algorithm: Literal["sft"]


TrainingSpec = Annotated[
    Ppo | Rloo | Grpo | DrGrpo | Reinforce | ReinforcePlusPlus | Dpo | Sft, Field(discriminator="algorithm")
]
_SPEC: TypeAdapter[Learning] = TypeAdapter(TrainingSpec)

_KINDS: tuple[type[Algorithm], ...] = get_args(get_args(TrainingSpec)[0])
ALGORITHMS = {get_args(kind.model_fields["algorithm"].annotation)[0]: kind for kind in _KINDS}
"""Name → class, in the order of the union."""
REQUESTED = frozenset(Hyperparameters.model_fields) | {
    "kl_coef", "spare_above", "hold_coef", "importance_cap", "max_staleness", "beta", "return_from",
    "dense_rewards", "seed", "schedule", "warmup_steps", "max_length", "reference", "label_smoothing",
    "length_normalised",
}  # fmt: skip
"""Hyperparameters that a request may have: the published six and ours."""


def read(
    algorithm: str, asked: Mapping[str, Any], recipe: Recipe, return_from: str = "outcome"
) -> dict[str, Any]:
    """Returns the numbers that ``algorithm`` uses: from a request's hyperparameters, else the recipe.

    Raises TrainingError("DATA") for a wrong type or range, or for a number of ours without effect.
    """
    if asked.get("gamma") == 0 and "gamma" in ALGORITHMS[algorithm].model_fields:
        raise TrainingError("DATA", "hyperparameters.gamma is 0, and a learner needs more: leave it out.")
    given = {name: value for name, value in asked.items() if name in REQUESTED}
    numbers = vars(recipe)
    if not issubclass(ALGORITHMS[algorithm], PolicyGradient):
        numbers = {name: value for name, value in numbers.items() if name != "schedule"}  # found for those
    try:
        spec = _SPEC.validate_python({**numbers, "return_from": return_from, **given, "algorithm": algorithm})
        refuse_idle((name for name in asked if name not in Hyperparameters.model_fields), algorithm)
    except ValidationError as error:
        first = error.errors()[0]
        raise TrainingError(
            "DATA",
            f"hyperparameters.{first['loc'][-1]} is wrong ({first['msg']}): correct it or leave it out.",
        ) from None
    except ConfigError as error:
        raise TrainingError("DATA", str(error)) from None
    return spec.model_dump()


def refuse_idle(names: Iterable[str], algorithm: str) -> None:
    """Raises ConfigError for the first of ``names`` that other algorithms use and ``algorithm`` does not."""
    for name in names:
        users = [other for other, kind in ALGORITHMS.items() if name in kind.model_fields]
        if users and algorithm not in users:
            raise ConfigError(
                f"{name} does nothing in {algorithm}: leave it out, or use {', '.join(sorted(users))}."
            )
