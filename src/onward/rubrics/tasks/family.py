"""Families of tasks: what is asked for, which inputs it has, and which eleven checks are active."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from onward.errors import ConfigError
from onward.rubrics.check import Check
from onward.rubrics.tasks.checks import CHECKS, DIMENSIONS, conflict, require_known
from onward.rubrics.tasks.designs import ACTIVE
from onward.rubrics.tasks.inputs import Layout, Words
from onward.rubrics.tasks.truth import TruthTable, truth_table
from onward.spelling import closest_name


@dataclass(frozen=True)
class Pick:
    """A check of a family: its base weight, and the arguments that a task may draw.

    The last of several arguments is reserved for the split ``new_parameters``.
    """

    name: str
    base: int
    args: tuple[str, ...]

    @property
    def dimension(self) -> str:
        return CHECKS[self.name].dimension

    @property
    def training_args(self) -> tuple[str, ...]:
        """The arguments that tasks for training have."""
        return self.args[:-1] or self.args


def pick(name: str, base: int, *args: str) -> Pick:
    """Returns a check of a family; without ``args`` it is a check that takes none."""
    return Pick(name, base, args or ("",))


@dataclass(frozen=True)
class Family:
    """One kind of task, as data; ``layout`` builds its resources."""

    id: str
    noun: str
    goals: tuple[str, ...]
    resources: tuple[str, ...]
    steps: tuple[str, ...]
    """Names of the two to four subtasks; the last needs all others."""
    words: Words
    layout: Layout
    kpi: str
    picks: tuple[Pick, ...]

    @property
    def facets(self) -> tuple[tuple[str, int], ...]:
        """Dimension and base of each check."""
        return tuple((one.dimension, one.base) for one in self.picks)


TRAINING_MODULES = {
    "finance": (
        "invoice_po_reconciliation", "expense_audit", "budget_variance", "capital_summary", "grant_budget",
    ),
    "supply": ("weekly_sales_summary", "reorder_plan", "vendor_comparison"),
    "notices": ("incident_postmortem", "breach_notice", "recall_notice", "complaint_reply"),
    "people": ("minutes_to_actions", "interview_shortlist", "shift_roster", "run_of_show"),
    "papers": ("clause_summary", "risk_register", "release_notes", "glossary_qa"),
    "measurement": ("lab_sample_log", "etl_quality_report", "ab_readout", "sla_report"),
}  # fmt: skip
"""Module of ``families`` → the families in it."""
TRAINING_FAMILIES: tuple[str, ...] = tuple(name for names in TRAINING_MODULES.values() for name in names)
HELD_OUT_FAMILIES: tuple[str, ...] = (
    "travel_itinerary", "site_safety_checklist", "newsletter_plan", "board_pack_index", "migration_runbook",
    "survey_digest", "asset_register", "training_plan",
)  # fmt: skip
"""Names alone. Their data is in ``onward.rubrics.tasks.held_out``, which is read when one is asked for."""


@cache
def family_of(name: str) -> Family:
    """Returns a family by its name. Raises ConfigError if there is none."""
    module = next((one for one, names in TRAINING_MODULES.items() if name in names), None)
    if module is not None:
        where = f"onward.rubrics.tasks.families.{module}"
    elif name in HELD_OUT_FAMILIES:
        where = "onward.rubrics.tasks.held_out"
    else:
        near = closest_name(name, (*TRAINING_FAMILIES, *HELD_OUT_FAMILIES))
        hint = f"did you mean {near!r}?" if near else f"give one such as {TRAINING_FAMILIES[0]!r}."
        raise ConfigError(f"There is no task family {name!r}: {hint}")
    families: tuple[Family, ...] = importlib.import_module(where).FAMILIES
    found = next(one for one in families if one.id == name)
    for fault in faults_of(found):
        raise ConfigError(f"The task family {name!r} is not usable: {fault}.")
    return found


@cache
def truth_table_of(name: str) -> TruthTable:
    """Returns every preference of a family; its columns have the order of the family's picks."""
    return truth_table(family_of(name).facets)


def faults_of(family: Family) -> Iterator[str]:
    """Yields what is wrong with a family: number of checks, dimensions, arguments, checks that conflict."""
    if len(family.picks) != ACTIVE:
        yield f"it has {len(family.picks)} checks instead of {ACTIVE}"
    missing = set(DIMENSIONS) - {one.dimension for one in family.picks}
    if missing:
        yield f"no check is about {', '.join(sorted(missing))}"
    if not 2 <= len(family.steps) <= 4:
        yield f"it has {len(family.steps)} subtasks instead of 2 to 4"
    options = [[Check(one.name, arg) for arg in one.args] for one in family.picks]
    for checks in options:
        for check in checks:
            require_known(check)
            if check.name == "cites_resource" and int(check.arg) > len(family.resources):
                yield f"{check} needs more than its {len(family.resources)} resources"
    for ones, others in combinations(options, 2):
        for one in ones:
            for other in others:
                if (why := conflict(one, other)) is not None:
                    yield f"{one} and {other} cannot be together, because {why}"
