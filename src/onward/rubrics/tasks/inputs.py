"""Inputs of a task: drawn records, the resources that show them, and the facts that follow from them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from onward.rubrics.tasks.artefacts import Contact, Facts


@dataclass(frozen=True)
class TaskInput:
    """One input: a table (``columns`` and ``rows``) or a document (``text``)."""

    id: str
    name: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Record:
    """One item of the inputs, with all that a builder may show of it."""

    id: str
    name: str
    date: str
    amount: float
    expected: float
    tax: float
    rate: float
    owner: str
    status: str
    reason: str
    email: str


@dataclass(frozen=True)
class Words:
    """The words of a family for its records: how items are numbered, named and explained."""

    item: str
    prefix: str
    names: tuple[str, ...]
    reasons: tuple[str, ...]
    amount: str = "amount"
    expected: str = "expected"
    low: float = 80.0
    high: float = 4000.0
    unit: str = "EUR"
    """Unit of the amounts. Euros have tax and two decimals, all else one decimal."""

    @property
    def money(self) -> bool:
        return self.unit == "EUR"


Layout = Callable[[Words, Sequence[Record], Sequence[Contact], str, tuple[str, ...]], tuple[TaskInput, ...]]
"""A builder: words, records, contacts, threshold and resource names → the resources of a task."""

PEOPLE = (
    "Anna Berg", "Bruno Costa", "Clara Diaz", "David Egger", "Elif Kaya", "Farid Haddad", "Greta Lind",
    "Hugo Martin", "Ines Rossi", "Jonas Weber", "Kaja Novak", "Liam Byrne", "Mina Sato", "Noah Visser",
)  # fmt: skip
STATUSES = ("open", "closed", "in review")
_SMALL, _MIDDLE, _LARGE = (0.01, 0.03), (0.07, 0.09), (0.25, 0.32, 0.40)
"""Relative deviations, none near a threshold of 5, 10 or 20 percent."""


def draw_records(words: Words, draw: random.Random) -> tuple[Record, ...]:
    """Draws 10 to 13 records: at least five deviate by more than 20 percent, and one by less than 5."""
    count = draw.randint(10, 13)
    deviations = [draw.choice(_LARGE) for _ in range(draw.randint(5, 6))] + [0.14, draw.choice(_MIDDLE)]
    deviations += [draw.choice(_SMALL) for _ in range(count - len(deviations))]
    draw.shuffle(deviations)
    at, day, found = draw.randint(1, 4000), date(2025, 1, 6) + timedelta(draw.randint(0, 300)), []
    people = draw.sample(PEOPLE, len(PEOPLE))
    for place, part in enumerate(deviations):
        at, day = at + draw.randint(1, 40), day + timedelta(draw.randint(1, 6))
        decimals = 2 if words.money else 1
        expected = round(draw.uniform(words.low, words.high), decimals)
        amount = round(expected * (1 + part) + (place / 100 if words.money else 0), decimals)
        owner = people[place]
        found.append(
            Record(
                f"{words.prefix}-{at:04d}", draw.choice(words.names), day.isoformat(), amount, expected,
                round(amount * 0.2, 2), round(draw.uniform(2.0, 48.0), 2), owner,
                STATUSES[0] if place in (1, 4) else draw.choice(STATUSES), draw.choice(words.reasons),
                f"{owner.lower().replace(' ', '.')}@example.org",
            )
        )  # fmt: skip
    draw.shuffle(found)
    return tuple(found)


def draw_contacts(draw: random.Random) -> tuple[Contact, ...]:
    """Draws the two people whose data the inputs name, each with an address, an account and a telephone."""
    found = []
    for name in draw.sample(PEOPLE, 2):
        account, telephone = f"{draw.randrange(10**16):016d}", f"{draw.randrange(10**7):07d}"
        first, last = name.lower().split()
        raw = {
            "email": f"{first}.{last}@example.org",
            "iban": f"DE99{account}",
            "phone": f"+49301{telephone}",
        }
        masked = {
            "email": f"{first[0]}***@example.org",
            "iban": f"DE**{account[-4:]}",
            "phone": f"+49**{telephone[-2:]}",
        }
        found.append(Contact(raw, masked))
    return tuple(found)


def facts_of(records: Sequence[Record], contacts: tuple[Contact, ...], threshold: str) -> Facts:
    """Returns what follows from the records."""
    amounts = [record.amount for record in records]
    return Facts(
        items=len(records),
        deviations={one.id: abs(one.amount - one.expected) / one.expected for one in records},
        values={
            "largest": max(amounts),
            "average": round(sum(amounts) / len(amounts), 2),
            "open": float(sum(record.status == "open" for record in records)),
        },
        threshold=threshold,
        contacts=contacts,
    )


def table(id: str, name: str, words: Words, columns: dict[str, str], records: Sequence[Record]) -> TaskInput:
    """Returns a table; ``columns`` maps each title to the field of a record that it shows.

    A column of tax is for money alone.
    """
    columns = {title: field for title, field in columns.items() if field != "tax" or words.money}
    rows = tuple(tuple(str(getattr(record, field)) for field in columns.values()) for record in records)
    return TaskInput(id, name, tuple(columns), rows)


def policy(id: str, name: str, words: Words, threshold: str, contacts: Sequence[Contact]) -> TaskInput:
    """Returns a document with the threshold, the tax rate and the people to ask."""
    people = " ".join(
        f"Contact {number}: {one.raw['email']}, account {one.raw['iban']}, telephone {one.raw['phone']}."
        for number, one in enumerate(contacts, 1)
    )
    tax = f"Tax is 20 percent of the {words.amount}. " if words.money else ""
    text = (
        f"Every {words.item} whose {words.amount} deviates from the {words.expected} by more than "
        f"{threshold} percent is flagged. Amounts are in {words.unit}. {tax}{people}"
    )
    return TaskInput(id, name, text=text)
