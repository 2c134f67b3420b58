"""Artefacts: the work that a task asks for, as one JSON document, and readers of its parts.

A reader is tolerant: a date in another format is still a date, and a broken amount is not-a-number. So a
check of order or of sums does not change when a check of format does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict


class Section(TypedDict):
    name: str
    text: str


class Artefact(TypedDict):
    """The work itself. ``rows`` with ``hidden`` are in an annex. ``metadata`` has the sign-offs."""

    title: str
    body: str
    sections: list[Section]
    rows: list[dict[str, Any]]
    totals: dict[str, float]
    values: dict[str, float]
    kpi: dict[str, str]
    flagged: list[str]
    citations: list[str]
    actions: list[dict[str, str]]
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Contact:
    """A person whose data the inputs have: each kind (email, iban, phone) raw and masked."""

    raw: dict[str, str]
    masked: dict[str, str]


@dataclass(frozen=True)
class Facts:
    """The truth about the inputs that checks compare with: recomputed, never read from an artefact."""

    items: int
    deviations: dict[str, float]
    """Identifier → relative deviation of the actual from the expected amount."""
    values: dict[str, float]
    threshold: str
    """Percent; the task's own threshold for a flag."""
    contacts: tuple[Contact, ...]

    def flagged(self, percent: str) -> list[str]:
        """Returns the identifiers whose deviation exceeds ``percent``, in the order of the inputs."""
        return [name for name, part in self.deviations.items() if part > float(percent) / 100]

    def expected_rows(self, which: str) -> int:
        """Returns how many rows an artefact must show: ``all``, ``top5`` or ``flagged``."""
        return {"all": self.items, "top5": 5}.get(which) or len(self.flagged(self.threshold))


_WORD = re.compile(r"\S*[A-Za-z]\S*")
_DATES = ("%Y-%m-%d", "%d.%m.%Y", "%d %b %Y")
EMPTY = ("", "-")
"""Texts of a cell that count as blank."""


def words(text: str) -> list[str]:
    """Returns the words of ``text``: runs without spaces that have a letter."""
    return _WORD.findall(text)


def texts(artefact: Artefact) -> Iterator[str]:
    """Yields what counts as text: title, body, sections."""
    yield artefact["title"]
    yield artefact["body"]
    for section in artefact["sections"]:
        yield section["text"]


def word_count(artefact: Artefact) -> int:
    """Returns the words of body and sections together; the title does not count."""
    return len(words(artefact["body"])) + sum(len(words(one["text"])) for one in artefact["sections"])


def has_word(text: str, word: str) -> bool:
    """Returns True if ``word`` is in ``text`` as a whole word, in any case."""
    return re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) is not None


def index_of(artefact: Artefact, section: str) -> int | None:
    """Returns the position of a section; None if it is missing."""
    names = [one["name"] for one in artefact["sections"]]
    return names.index(section) if section in names else None


def number(cell: object) -> float:
    """Returns the amount in a cell, in any common format (``EUR 1,200.50``, ``1.200,50 €``); NaN if none."""
    if isinstance(cell, int | float):
        return float(cell)
    text = re.sub(r"[^0-9.,-]", "", str(cell))
    comma = re.search(r",\d{1,2}$", text)
    text = text.replace(".", "").replace(",", ".") if comma else text.replace(",", "")
    try:
        return float(text)
    except ValueError:
        return math.nan


def day(cell: object) -> float:
    """Returns a date as a number of days, in one of three formats; NaN if it is no date."""
    for form in _DATES:
        try:
            return float(datetime.strptime(str(cell), form).toordinal())
        except ValueError:
            continue
    return math.nan


def digits(cell: object) -> float:
    """Returns the number in an identifier; NaN if it has none."""
    found = re.search(r"\d+", str(cell))
    return float(found[0]) if found else math.nan
