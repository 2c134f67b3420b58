"""Input files, generated from a description and a seed: tables with the defects that real ones have."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

from onward.rubrics.gym.files.cells import Row
from onward.rubrics.gym.files.formats import write_table, write_workbook
from onward.rubrics.gym.parts import WorkflowError

FIRST = ("Ada", "Bruno", "Carla", "Dario", "Edda", "Felix", "Gerda", "Henri", "Ines", "Jonas", "Kira", "Leo")
LAST = (
    "Adler",
    "Brandt",
    "Conti",
    "Dorn",
    "Ebner",
    "Falk",
    "Gruber",
    "Haas",
    "Ilic",
    "Jansen",
    "Kern",
    "Lang",
)

Column = Callable[[random.Random, int], str]


def _person(rng: random.Random, row: int) -> str:
    return f"{rng.choice(FIRST)} {rng.choice(LAST)}"


def _email(rng: random.Random, row: int) -> str:
    return _person(rng, row).lower().replace(" ", ".") + f"{row}@" + "example.org"


def _phone(rng: random.Random, row: int) -> str:
    return f"+43 {rng.randrange(600, 700)} {rng.randrange(1000000, 10000000)}"


def column(text: str) -> Column:
    """Returns the maker of a column's cells: ``id L``, ``one A|B``, ``each A|B`` (in turn), ``whole 1 9``,
    ``money 1 9``, ``date 2026-01-05 90`` (first day, span), ``person``, ``email`` or ``phone``.

    Raises WorkflowError for another description.
    """
    kind, _, rest = text.partition(" ")
    match kind, rest.split(" "):
        case "id", [prefix]:
            return lambda rng, row: f"{prefix}-{row + 1:03d}"
        case "one", _:
            return lambda rng, row: rng.choice(rest.split("|"))
        case "each", _:
            return lambda rng, row: rest.split("|")[row % (rest.count("|") + 1)]
        case "whole", [low, high]:
            return lambda rng, row: str(rng.randint(int(low), int(high)))
        case "money", [low, high]:
            return lambda rng, row: f"{rng.uniform(float(low), float(high)):.2f}"
        case "date", [start, days]:
            first = date.fromisoformat(start)
            return lambda rng, row: (first + timedelta(days=rng.randrange(int(days)))).isoformat()
    people: dict[str, Column] = {"person": _person, "email": _email, "phone": _phone}
    if kind not in people:
        raise WorkflowError(
            f"The column {text!r} is unknown: use id, one, each, whole, money, date, person, …"
        )
    return people[kind]


def generate(name: str, spec: dict[str, Any], seed: int) -> bytes:
    """Returns the input file ``name``: ``rows`` rows of ``columns``.

    ``repeats`` rows appear twice, and every third date of the columns ``mixed`` is written in local form.
    """
    rng = random.Random(f"{name}/{seed}")
    makers = {title: column(text) for title, text in spec["columns"].items()}
    rows: list[Row] = [
        {title: make(rng, place) for title, make in makers.items()} for place in range(int(spec["rows"]))
    ]
    for title in spec.get("mixed", ()):
        for row in rows[::3]:
            row[title] = "/".join(reversed(row[title].split("-")))
    for row in rng.sample(rows, int(spec.get("repeats", 0))):
        rows.insert(rng.randrange(len(rows)), dict(row))
    if name.endswith(".xlsx"):
        return write_workbook({"Data": [list(rows[0]), *(list(row.values()) for row in rows)]})
    return write_table(rows)
