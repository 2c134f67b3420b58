"""The task panel: wordings, their three splits, and the seeded draw of parameters.

A template is one opening phrase with one core sentence of one kind. The splits divide the templates, never
the phrases. A validation or test wording is a new combination of phrases seen in training, so generalising is
possible and memorising a wording is not enough. The draw uses ``random.Random`` seeded with text, which does
not depend on the interpreter's hash seed.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from onward.envs.desk.tools import (
    ATTRIBUTES,
    DAYS,
    EVENTS,
    ITEMS,
    NOTES,
    NUMBERS,
    PEOPLE,
    SMALL,
    Office,
    subjects,
)
from onward.errors import NotFoundError

KINDS = ("calculate", "lookup", "direct", "total", "agenda")
SPLITS = ("train", "validation", "test")
PANEL_SIZES = {"train": 200, "validation": 100, "test": 100}

OPENINGS = ("Hello,", "For the report:", "One question,", "Please help:")
CORES: dict[str, tuple[str, ...]] = {
    "calculate": (
        "what is {a} {op} {b}?",
        "how much is {a} {op} {b}?",
        "work out {a} {op} {b}.",
        "give me the result of {a} {op} {b}.",
    ),
    "lookup": (
        "what is the {attribute} of {person}?",
        "which {attribute} does {person} have?",
        "find the {attribute} of {person}.",
        "tell me the {attribute} of {person}.",
    ),
    "direct": (
        "just say {word}.",
        "repeat the word {word}.",
        "answer with the word {word}.",
        "simply reply {word}.",
    ),
    "total": (
        "what is {n} times the price of the {item}?",
        "how much is {n} times the price of the {item}?",
        "work out {n} times the price of the {item}.",
        "give me {n} times the price of the {item}.",
    ),
    "agenda": (
        "read note {note} and tell me what is on the calendar that day.",
        "look at note {note}: which event is on the calendar that day?",
        "save the calendar event of {day} in note {note} and tell me the event.",
        "which event is on {day}? Save it in note {note} and name it.",
    ),
}

_REDRAWS = 50


@dataclass(frozen=True)
class Template:
    """One wording of one kind, in one split."""

    template_id: str
    kind: str
    split: str
    wording: str


@dataclass(frozen=True)
class Stage:
    """A tool call that the task needs: the tool, the arguments of the reference solution, the result.

    ``leaves_note`` is the (name, text) that must be stored after the call, for calls whose result alone does
    not show that they did the right thing.
    """

    tool_name: str
    tool_args: tuple[tuple[str, str], ...]
    result: str
    leaves_note: tuple[str, str] | None = None


@dataclass(frozen=True)
class Task:
    """One piece of office work. ``stages``, ``answer`` and ``office`` are hidden from the agent."""

    task_id: str
    kind: str
    template_id: str
    split: str
    instructions: str
    seed: int
    answer: str
    stages: tuple[Stage, ...]
    office: Office


def _templates() -> tuple[Template, ...]:
    """Returns a Latin square of openings and cores: each phrase is in every split, no wording in two."""
    split_of_diagonal = ("train", "train", "validation", "test")
    found = []
    for kind in KINDS:
        for row, opening in enumerate(OPENINGS):
            for column, core in enumerate(CORES[kind]):
                split = split_of_diagonal[(row + column) % 4]
                found.append(Template(f"{kind}-{row}{column}", kind, split, f"{opening} {core}"))
    return tuple(found)


TEMPLATES = _templates()


def tasks(split: str, n: int, seed: int = 0) -> list[Task]:
    """Returns ``n`` tasks of a split, kinds in turn (so balanced), no instructions twice while that is
    possible. The first k tasks do not depend on ``n``. Raises NotFoundError for an unknown split."""
    if split not in SPLITS:
        raise NotFoundError(f"There is no split {split!r}: choose one of {', '.join(SPLITS)}.")
    by_kind = {kind: [t for t in TEMPLATES if t.kind == kind and t.split == split] for kind in KINDS}
    seen: set[str] = set()
    found = []
    for index in range(n):
        kind = KINDS[index % len(KINDS)]
        template = by_kind[kind][(index // len(KINDS)) % len(by_kind[kind])]
        task_id = f"desk-{split}-{seed}-{index}"
        task = _draw(template, task_id, seed, 0)
        for attempt in range(1, _REDRAWS):
            if task.instructions not in seen:
                break
            task = _draw(template, task_id, seed, attempt)
        seen.add(task.instructions)
        found.append(task)
    return found


def panel_hash(split: str, n: int | None = None, seed: int = 0) -> str:
    """Returns SHA-256 over all that defines the first ``n`` tasks of a split (default: the panel's size)."""
    panel = tasks(split, PANEL_SIZES.get(split, 0) if n is None else n, seed)
    rows = [
        [
            task.task_id,
            task.kind,
            task.template_id,
            task.instructions,
            task.answer,
            [[s.tool_name, s.tool_args, s.result, s.leaves_note] for s in task.stages],
            sorted(task.office.documents.items()),
            sorted(task.office.calendar.items()),
            sorted(task.office.notes.items()),
        ]
        for task in panel
    ]
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def _draw(template: Template, task_id: str, seed: int, attempt: int) -> Task:
    rng = random.Random(f"{task_id}/{template.template_id}/{attempt}")
    office = _draw_office(rng)
    words, stages, answer = _DRAWS[template.kind](rng, office, template)
    return Task(
        task_id=task_id,
        kind=template.kind,
        template_id=template.template_id,
        split=template.split,
        instructions=template.wording.format(**words),
        seed=seed,
        answer=answer,
        stages=stages,
        office=office,
    )


def _draw_office(rng: random.Random) -> Office:
    documents = {
        title: str(rng.choice(SMALL if title.endswith("price") else NUMBERS)) for title in subjects()
    }
    calendar: dict[str, str] = dict(zip(DAYS, rng.sample(EVENTS, len(DAYS)), strict=True))
    notes = {note: rng.choice(DAYS) for note in NOTES}
    return Office(documents, calendar, notes)


_Drawn = tuple[dict[str, str], tuple[Stage, ...], str]


def _draw_calculate(rng: random.Random, office: Office, template: Template) -> _Drawn:
    a, b = rng.choice(SMALL), rng.choice(SMALL)
    word, sign, value = rng.choice((("plus", "+", a + b), ("times", "*", a * b)))
    stage = Stage("calculator", (("expression", f"{a}{sign}{b}"),), str(value))
    return {"a": str(a), "op": word, "b": str(b)}, (stage,), str(value)


def _draw_lookup(rng: random.Random, office: Office, template: Template) -> _Drawn:
    person, attribute = rng.choice(PEOPLE), rng.choice(ATTRIBUTES)
    title = f"{person} {attribute}"
    value = office.documents[title]
    stage = Stage("search", (("query", title),), f"{title} {value}")
    return {"person": person, "attribute": attribute}, (stage,), value


def _draw_direct(rng: random.Random, office: Office, template: Template) -> _Drawn:
    word = rng.choice(EVENTS + ITEMS)
    return {"word": word}, (), word


def _draw_total(rng: random.Random, office: Office, template: Template) -> _Drawn:
    item, n = rng.choice(ITEMS), rng.choice(SMALL)
    price = office.documents[f"{item} price"]
    value = str(n * int(price))
    stages = (
        Stage("search", (("query", f"{item} price"),), f"{item} price {price}"),
        Stage("calculator", (("expression", f"{n}*{price}"),), value),
    )
    return {"item": item, "n": str(n)}, stages, value


def _draw_agenda(rng: random.Random, office: Office, template: Template) -> _Drawn:
    note = rng.choice(NOTES)
    day = office.notes[note]
    if "{day}" in template.wording:
        day = rng.choice(DAYS)
    event = office.calendar[day]
    ask = Stage("calendar", (("day", day),), event)
    if "{day}" in template.wording:
        save = Stage("notes_save", (("name", note), ("text", event)), "saved", (note, event))
        return {"note": note, "day": day}, (ask, save), event
    return {"note": note}, (Stage("notes_read", (("name", note),), day), ask), event


_DRAWS: dict[str, Callable[[random.Random, Office, Template], _Drawn]] = {
    "calculate": _draw_calculate,
    "lookup": _draw_lookup,
    "direct": _draw_direct,
    "total": _draw_total,
    "agenda": _draw_agenda,
}
