"""Tasks: a pure function of family and seed. Truth and probes cost no artefact; the rest is on demand."""

from __future__ import annotations

import operator
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from onward.errors import ConfigError
from onward.rubrics.check import Check
from onward.rubrics.tasks import designs
from onward.rubrics.tasks.artefacts import Artefact, Facts
from onward.rubrics.tasks.build import broken, compliant
from onward.rubrics.tasks.checks import CHECKS, DIMENSIONS
from onward.rubrics.tasks.family import Family, Pick, family_of, truth_table_of
from onward.rubrics.tasks.inputs import Record, TaskInput, draw_contacts, draw_records, facts_of
from onward.rubrics.tasks.phrases import brief_sentence, brief_text
from onward.rubrics.tasks.truth import weights_of

BLOCK = 1_000_000
"""Seeds of one split: ``seed // BLOCK`` is its place in SEED_SPLITS."""
SEED_SPLITS = ("train", "new_seeds", "new_preferences", "new_parameters")
STATED_ALL = 0.2
"""Share of the tasks whose brief states all six dimensions: a question brings nothing there."""
HIDDEN = 3
"""Dimensions that the brief leaves out in the others."""


@dataclass(frozen=True)
class Subtask:
    """A node of a task's graph: it needs the outputs of other subtasks, and resources by id."""

    name: str
    needs: tuple[str, ...]
    resources: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class RubricTask:
    """A piece of work and its truth. ``weights`` has one weight (w*) per active check; they sum to 1."""

    family: str
    seed: int
    brief: str
    active: tuple[Check, ...]
    weights: np.ndarray
    levels: Mapping[str, int]
    """Dimension → 0, 1 or 3."""
    hidden: tuple[str, ...]
    """Dimensions that the stakeholder alone knows; none in some tasks."""

    @property
    def public(self) -> dict[str, int]:
        """The dimensions that the brief states, with their levels."""
        return {name: level for name, level in self.levels.items() if name not in self.hidden}

    @property
    def kind(self) -> Family:
        return family_of(self.family)

    @cached_property
    def _draw(self) -> tuple[tuple[Record, ...], Facts]:
        draw = random.Random(f"inputs/{self.family}/{self.seed}")
        records = draw_records(self.kind.words, draw)
        threshold = next((one.arg for one in self.active if one.name == "threshold_flagged"), "10")
        return records, facts_of(records, draw_contacts(draw), threshold)

    @property
    def facts(self) -> Facts:
        """The truth about the inputs, which the predicates compare with."""
        return self._draw[1]

    @cached_property
    def resources(self) -> tuple[TaskInput, ...]:
        """The inputs: one to three tables or documents."""
        records, facts = self._draw
        return self.kind.layout(
            self.kind.words, records, facts.contacts, facts.threshold, self.kind.resources
        )

    @property
    def subtasks(self) -> tuple[Subtask, ...]:
        """The graph of the work: the first steps read the resources, the last needs all others."""
        names, ids = self.kind.steps, [f"R{place}" for place in range(1, len(self.kind.resources) + 1)]
        first = [Subtask(name, (), (ids[min(at, len(ids) - 1)],)) for at, name in enumerate(names[:-1])]
        return (*first, Subtask(names[-1], names[:-1], tuple(ids)))

    @cached_property
    def compliant(self) -> Artefact:
        """The artefact that satisfies every active check."""
        records, facts = self._draw
        return compliant(self.kind, self.seed, self.active, records, facts)

    def build(self, bits: Sequence[bool] | np.ndarray, *, way: int = 0) -> Artefact:
        """Returns an artefact that satisfies exactly the active checks whose bit is set.

        ``way`` is 0 for the operators of the probes, 1 for those of the hidden design.
        """
        if len(bits) != len(self.active):
            raise ConfigError(f"{len(bits)} bits were given for {len(self.active)} checks: give one a check.")
        if way not in (0, 1):
            raise ConfigError(f"There is no way {way} to break a check: give 0 or 1.")
        return broken(self.compliant, self.active, [bool(bit) for bit in bits], self.facts, way)

    def bits(self, artefact: Artefact) -> np.ndarray:
        """Returns which active checks an artefact satisfies.

        A part that is there in another form satisfies no check that reads it. Raises ConfigError if a part
        is missing.
        """
        missing = Artefact.__required_keys__ - set(artefact)
        if missing:
            raise ConfigError(
                f"The artefact has no {', '.join(sorted(missing))}: give a document with all parts, "
                "such as task.compliant."
            )
        return np.array([self._satisfied(check, artefact) for check in self.active])

    def _satisfied(self, check: Check, artefact: Artefact) -> bool:
        try:
            return bool(CHECKS[check.name].holds(artefact, check.arg, self.facts))
        except (LookupError, TypeError, ValueError, AttributeError):
            return False

    def probes(self) -> np.ndarray:
        """Returns the (12, 11) bits of the probe artefacts, known by construction."""
        return designs.probe_design()

    def hidden_probes(self) -> np.ndarray:
        """Returns the (24, 11) bits of the hidden design, whose artefacts are built with ``way=1``."""
        return designs.hidden_design()

    def score(self, bits: np.ndarray) -> np.ndarray:
        """Returns the true score of artefacts, given the bits of each."""
        return bits @ self.weights


def make_task(family: str, seed: int) -> RubricTask:
    """Returns the task of a family and a seed, always the same.

    Seeds below 1,000,000 are for training; the next three millions are the held-out splits of the same
    families (``SEED_SPLITS``). Raises ConfigError for an unknown family or a seed outside of the splits.
    """
    seed = _whole(seed)
    table, draw = truth_table_of(family), random.Random(f"preferences/{family}/{seed}")
    rows = table.reserved_rows if split_of(seed) == "new_preferences" else table.training_rows
    row = rows[int(draw.random() * len(rows))]
    levels = dict(zip(DIMENSIONS, table.levels[row].tolist(), strict=True))
    hidden = () if draw.random() < STATED_ALL else tuple(draw.sample(DIMENSIONS, HIDDEN))
    return _assembled(family_of(family), seed, table.weights[row], levels, hidden)


def task_with(family: str, seed: int, levels: Mapping[str, int], hidden: Sequence[str] = ()) -> RubricTask:
    """Returns the task of a family and a seed with these preferences instead of the drawn ones.

    Raises ConfigError if a dimension or level is unknown, or if the truth would break a limit.
    """
    kind, seed = family_of(family), _whole(seed)
    if (
        set(levels) != set(DIMENSIONS)
        or not set(levels.values()) <= {0, 1, 3}
        or set(hidden) - set(DIMENSIONS)
    ):
        raise ConfigError(
            f"The levels {dict(levels)} with {list(hidden)} hidden are no preference: give 0, 1 or 3 for "
            f"each of {', '.join(DIMENSIONS)}."
        )
    weights, within = weights_of(kind.facets, np.array([[levels[name] for name in DIMENSIONS]]))
    if not within[0]:
        raise ConfigError(
            f"The levels {dict(levels)} give {family} too few criteria or one above 0.4: raise another level."
        )
    return _assembled(kind, seed, weights[0], dict(levels), tuple(hidden))


def split_of(seed: int) -> str:
    """Returns the split of a seed. Raises ConfigError if it is outside of all splits."""
    if not 0 <= seed < BLOCK * len(SEED_SPLITS):
        raise ConfigError(
            f"The seed {seed} is outside of 0 to {BLOCK * len(SEED_SPLITS) - 1}: give one below {BLOCK} for "
            "training."
        )
    return SEED_SPLITS[seed // BLOCK]


def _whole(seed: int) -> int:
    """Returns a seed as an int, since the draws depend on its text."""
    try:
        if not isinstance(seed, bool):
            return operator.index(seed)
    except TypeError:
        pass
    raise ConfigError(f"The seed {seed!r} is a {type(seed).__name__}: give a whole number.")


def _argument(one: Pick, split: str, draw: random.Random) -> str:
    """Training draws from all arguments but the last, the split of new parameters takes the last."""
    if len(one.args) == 1 or split == "new_parameters":
        return one.args[-1]
    return one.training_args[int(draw.random() * len(one.training_args))]


def _assembled(
    kind: Family, seed: int, weights: np.ndarray, levels: dict[str, int], hidden: tuple[str, ...]
) -> RubricTask:
    """Arguments and wording have draws of their own, so that they do not depend on the preferences."""
    split, draw = split_of(seed), random.Random(f"task/{kind.id}/{seed}")
    checks = [Check(one.name, _argument(one, split, draw)) for one in kind.picks]
    order = sorted(range(len(checks)), key=checks.__getitem__)
    truth = weights[order]
    truth.setflags(write=False)
    goal = draw.choice(kind.goals)
    sentences = [brief_sentence(name, levels[name], kind.noun, draw) for name in DIMENSIONS]
    stated = [sentence for name, sentence in zip(DIMENSIONS, sentences, strict=True) if name not in hidden]
    draw.shuffle(stated)
    return RubricTask(
        kind.id,
        seed,
        brief_text(goal, stated, kind.noun, states_all=not hidden),
        tuple(checks[place] for place in order),
        truth,
        levels,
        tuple(name for name in DIMENSIONS if name in hidden),
    )
