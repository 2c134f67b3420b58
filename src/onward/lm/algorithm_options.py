"""The options of the policy-gradient algorithms: names, defaults, ranges. Needs no torch.

A process that only checks a request builds them with ``options_of``. The class of an algorithm in
``algorithms`` inherits its options from here, so nothing is checked in two ways.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from onward.errors import ConfigError
from onward.lm.options import refuse_out_of_range


@dataclass
class AlgorithmOptions:
    """Base class. The fields of a subclass are its options; ``type`` is its name in requests."""

    type: ClassVar[str]
    uses_critic: ClassVar[bool] = False


@dataclass
class PpoOptions(AlgorithmOptions):
    type: ClassVar[str] = "ppo"
    uses_critic: ClassVar[bool] = True
    gamma: float = 1.0
    """Discount per trained token; 1 is none."""
    lam: float = 0.95
    """Distance that an advantage looks ahead: 0, to the next value; 1, to the end."""
    whiten: Literal["none", "token", "sequence"] = "token"
    """Whitening over the update: none, each trained token counts once, or each trajectory counts once."""

    def __post_init__(self) -> None:
        refuse_out_of_range(
            self,
            gamma=0 < self.gamma <= 1,
            lam=0 <= self.lam <= 1,
            whiten=self.whiten in ("none", "token", "sequence"),
        )


@dataclass
class RlooOptions(AlgorithmOptions):
    type: ClassVar[str] = "rloo"
    drop_uniform: bool = True
    """Leaves out groups in which all attempts succeed, or none."""


@dataclass
class GrpoOptions(AlgorithmOptions):
    type: ClassVar[str] = "grpo"
    normalise_std: bool = True
    """Divides by σ. Without it, hard and easy tasks weigh in proportion to their spread."""
    eps: float = 1e-6
    """Number that is added to σ, so that a group of equal rewards divides by more than 0."""
    drop_uniform: bool = True
    """Leaves out groups in which all attempts succeed, or none: σ would only amplify shaping there."""

    def __post_init__(self) -> None:
        refuse_out_of_range(self, eps=0 <= self.eps < math.inf)


@dataclass
class ReinforceOptions(AlgorithmOptions):
    type: ClassVar[str] = "reinforce"
    decay: float = 0.9
    """Weight of an update in the baseline, relative to the next one."""
    negative_weight: float = 1.0
    """Factor on advantages below the baseline (1: plain REINFORCE)."""

    def __post_init__(self) -> None:
        refuse_out_of_range(self, decay=0 <= self.decay <= 1, negative_weight=0 <= self.negative_weight <= 1)


@dataclass
class ReinforcePlusPlusOptions(AlgorithmOptions):
    type: ClassVar[str] = "reinforce_plus_plus"
    gamma: float = 1.0
    """Discount per trained token; 1 is none."""
    weighting: Literal["token", "sequence"] = "token"
    """Unit that counts once in mean and deviation: every trained token, or every trajectory."""

    def __post_init__(self) -> None:
        refuse_out_of_range(
            self, gamma=0 < self.gamma <= 1, weighting=self.weighting in ("token", "sequence")
        )


OPTIONS: dict[str, type[AlgorithmOptions]] = {
    kind.type: kind
    for kind in (PpoOptions, RlooOptions, GrpoOptions, ReinforceOptions, ReinforcePlusPlusOptions)
}
"""Name of an algorithm → its options."""
_SHORT = {"reinforce_pp": "reinforce_plus_plus"}
_WORDS = {bool: "true or false", float: "a number", str: "text"}


def full_name(algorithm: str) -> str:
    """Returns the name of an algorithm for its short form; any other word as it is."""
    return _SHORT.get(algorithm, algorithm)


def options_of(settings: Mapping[str, Any]) -> AlgorithmOptions:
    """Returns the options of the algorithm named by ``settings["type"]``, which may be a short name; the
    other settings are its options. Raises ConfigError for a name, a type or a value that cannot be, with
    those that can."""
    rest = dict(settings)
    name = rest.pop("type", None)
    kind = OPTIONS.get(full_name(str(name)))
    if kind is None:
        raise ConfigError(f"There is no algorithm {name!r}: use one of {', '.join(sorted(OPTIONS))}.")
    known = {field.name: type(field.default) for field in fields(kind)}
    for key, value in rest.items():
        if key not in known:
            raise ConfigError(f"{name} has no option {key!r}: it has {', '.join(known)}.")
        number = known[key] is float and isinstance(value, int) and not isinstance(value, bool)
        if not (number or isinstance(value, known[key])):
            raise ConfigError(f"The option {key} of {name} is {value!r}: give {_WORDS[known[key]]}.")
    return kind(**rest)
