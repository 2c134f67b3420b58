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


_HUGE = 1e300
_DATES = ("%Y-%m-%d", "%d.%m.%Y", "%d %b %Y")
_BLANK = frozenset(("", "-", "–", "—", "?", "n/a", "none", "tbd"))


def words(text: str) -> list[str]:
    """Returns the words of ``text``: runs without spaces that have a letter."""
    return [run for run in text.split() if any(one.isalpha() for one in run)]


def is_blank(cell: object) -> bool:
    """Returns True for a cell without content: missing, empty, or a sign such as ``-`` or ``n/a``."""
    return cell is None or str(cell).strip().casefold() in _BLANK


def texts(artefact: Artefact) -> Iterator[str]:
    """Yields what counts as text: title, body, sections. Raises TypeError for a part in another form."""
    for text in (artefact["title"], artefact["body"], *(one["text"] for one in sections_of(artefact))):
        if not isinstance(text, str):
            raise TypeError(f"A text of the artefact is a {type(text).__name__}: give a str.")
        yield text


def sections_of(artefact: Artefact) -> list[Section]:
    """Returns the sections. Raises TypeError if they are no list."""
    found = artefact["sections"]
    if not isinstance(found, list):
        raise TypeError(f"The sections of the artefact are a {type(found).__name__}: give a list.")
    return found


def rows_of(artefact: Artefact) -> list[dict[str, Any]]:
    """Returns the rows, those of the annex as well; no row if the part has another form."""
    found = artefact["rows"]
    is_table = isinstance(found, list) and all(isinstance(row, dict) for row in found)
    return found if is_table else []


def word_count(artefact: Artefact) -> int:
    """Returns the words of body and sections together; the title does not count."""
    return len(words(artefact["body"])) + sum(len(words(one["text"])) for one in sections_of(artefact))


def has_word(text: str, word: str) -> bool:
    """Returns True if ``word`` is in ``text`` as a whole word, in any case."""
    return re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) is not None


def index_of(artefact: Artefact, section: str) -> int | None:
    """Returns the position of a section; None if it is missing."""
    names = [one["name"] for one in sections_of(artefact)]
    return names.index(section) if section in names else None


def number(cell: object) -> float:
    """Returns the amount in a cell, in any common format (``EUR 1,200.50``, ``1.200,50 €``); NaN if none."""
    if isinstance(cell, bool):
        return math.nan
    if isinstance(cell, int | float):
        return float(cell) if abs(cell) < _HUGE else math.nan
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
