"""The plan of a run that trains a rubric writer: every number of it, checked at construction."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from onward.errors import ConfigError
from onward.files import read_json, write_whole
from onward.lm.algorithm_options import options_of
from onward.lm.options import refuse_out_of_range
from onward.rubrics.policy.demonstrations import Care
from onward.rubrics.policy.vocabulary import Size
from onward.rubrics.tasks import BLOCK
from onward.rubrics.tasks.splits import splits
from onward.spelling import closest_name

TINY = "tiny"
PLAN, WRITER_FILE = "plan.json", "writer.json"
"""Files of a run and of its writer."""


@dataclass(frozen=True)
class WarmStart:
    """Supervised learning of demonstrations, before any reward."""

    demonstrations: int = 9_000
    """Demonstrations that are made; more steps repeat them."""
    steps: int = 1_150
    batch_rows: int = 32
    learning_rate: float = 4e-3
    care: Care = field(default_factory=Care)

    def __post_init__(self) -> None:
        refuse_out_of_range(
            self,
            demonstrations=self.demonstrations >= 1,
            steps=self.steps >= 1,
            batch_rows=self.batch_rows >= 1,
            learning_rate=0 < self.learning_rate < math.inf,
        )


@dataclass(frozen=True)
class Plan:
    """A run. The same plan gives the same writer on the same machine."""

    model: str = TINY
    """``tiny``, which is made from the texts of the training families, or the folder of a model."""
    algorithm: str = "rloo"
    """rloo, grpo, reinforce or reinforce_plus_plus."""
    options: dict[str, Any] = field(default_factory=dict)
    """Other settings of the algorithm."""
    seed: int = 0
    steps: int = 80
    tasks_per_step: int = 16
    group_size: int = 8
    """Episodes of one task in a step, which are compared with each other."""
    learning_rate: float = 1e-3
    """It falls in a line to a tenth over the run."""
    entropy_coef: float = 0.0
    questions: int = 3
    """Most questions of an episode."""
    notes: bool = True
    """Before the rubric the policy notes how much each dimension matters."""
    ordered: bool = True
    """The grammar demands canonical order, in which no check is repeated."""
    seeds_per_family: int = 64
    """Tasks of each training family."""
    families: tuple[str, ...] = ()
    """Training families; empty: all of them. Those that judge writers are refused."""
    threads: int = 1
    eval_every: int = 40
    """Steps from one validation to the next."""
    eval_tasks: int = 32
    save_every: int = 20
    """Steps from one saved state to the next, in the warm start and in the learning. 1 suits a model whose
    steps take minutes."""
    warm_start: WarmStart = field(default_factory=WarmStart)
    size: Size = field(default_factory=Size)
    lora_rank: int = 16
    """Rank of the adapter of a model that is not ``tiny``; of ``tiny`` all weights are trained."""

    def __post_init__(self) -> None:
        if "type" in self.options:
            raise ConfigError("The options of a rubrics run have a type: give it as algorithm.")
        self._check_algorithm()
        self._refuse_judging_families()
        refuse_out_of_range(
            self,
            steps=self.steps >= 0,
            tasks_per_step=self.tasks_per_step >= 1,
            group_size=self.group_size >= 2,
            learning_rate=0 < self.learning_rate < math.inf,
            entropy_coef=0 <= self.entropy_coef < math.inf,
            questions=0 <= self.questions <= 3,
            seeds_per_family=1 <= self.seeds_per_family <= BLOCK,
            threads=self.threads >= 1,
            eval_every=self.eval_every >= 1,
            eval_tasks=self.eval_tasks >= 1,
            save_every=self.save_every >= 1,
            lora_rank=self.lora_rank >= 1,
        )

    def _check_algorithm(self) -> None:
        made = options_of({"type": self.algorithm, **self.options})
        if made.uses_critic:
            raise ConfigError(
                f"{self.algorithm} needs a critic, which rubric writers are trained without: use rloo, grpo, "
                f"reinforce or reinforce_plus_plus."
            )
        object.__setattr__(self, "algorithm", made.type)  # a short name is the same plan

    def _refuse_judging_families(self) -> None:
        train = splits().train
        for family in self.families:
            if family not in train:
                raise ConfigError(
                    f"No run trains on the family {family!r}: it is unknown, or it judges writers. Give some "
                    f"of {', '.join(train)}."
                )

    def write(self, folder: Path) -> None:
        write_whole(folder / PLAN, (json.dumps(asdict(self), indent=2) + "\n").encode())

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Plan:
        """Returns the plan with ``values``, in the form of ``asdict``. Raises ConfigError for a name or value
        that cannot be."""
        return _made(cls(), values, "")

    @classmethod
    def read(cls, folder: Path) -> Plan | None:
        """Returns the plan of the run in ``folder``, None without one. Raises ConfigError if it is bad."""
        path = folder / PLAN
        try:
            is_there = path.is_file()
        except OSError as error:
            raise ConfigError(
                f"The run in {folder} cannot be read ({error.strerror}): give a folder that may be read."
            ) from error
        if not is_there:
            return None
        found = read_json(path)
        if not isinstance(found, dict):
            raise ConfigError(f"The plan {path} is damaged: start the run anew in another folder.")
        return cls.from_dict(found)


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns settings in which a dotted name, such as ``warm_start.steps``, is a setting within an object.
    Raises ConfigError for a name that is given twice."""
    found: dict[str, Any] = {}
    for name, value in sorted(settings.items(), key=lambda one: one[0].count(".")):
        *outer, last = name.split(".")
        part: Any = found
        for key in outer:
            part = part.setdefault(key, {}) if isinstance(part, dict) else None
        if not isinstance(part, dict) or last in part:
            raise ConfigError(f"The setting {name} of a rubrics run is given twice: give it once.")
        part[last] = deepcopy(value)
    return found


_WORDS = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "an object",
    tuple: "a list of names",
}  # fmt: skip


def _made(default: Any, values: Any, name: str) -> Any:
    """Returns the dataclass of ``default`` with ``values``, each of the type that its default has."""
    known = [one.name for one in fields(default)]
    if not isinstance(values, dict):
        raise ConfigError(
            f"The setting {name} of a rubrics run is {values!r}: give one of its settings, such as "
            f"{name}.{known[0]}, or an object of them."
        )
    made = {}
    for key, value in values.items():
        whole = f"{name}.{key}" if name else key
        if key not in known:
            near = closest_name(key, known)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}."
            raise ConfigError(f"A rubrics run has no setting {whole}: {hint}")
        present = getattr(default, key)
        made[key] = _made(present, value, whole) if is_dataclass(present) else _typed(present, value, whole)
    return type(default)(**made)


def _typed(default: Any, value: Any, name: str) -> Any:
    kind = type(default)
    if kind is tuple and isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind or kind is tuple:
        raise ConfigError(f"The setting {name} of a rubrics run is {value!r}: give {_WORDS[kind]}.")
    return value
