"""Checks of text: sections, words, terms, citations, masks. Each has a predicate and two ways to break it.

An operator changes only its own check. Predicates therefore read different parts: ``min_words`` reads the
body alone, and what ``max_words`` and ``forbids_term`` insert is never in the body.
"""

from __future__ import annotations

import re

from onward.rubrics.tasks.artefacts import (
    Artefact,
    Facts,
    has_word,
    index_of,
    rows_of,
    texts,
    word_count,
    words,
)

SYNONYMS = {
    "materiality": "significance",
    "baseline": "benchmark",
    "deviation": "difference",
    "escalation": "referral",
    "retention": "storage",
    "consent": "permission",
}
"""Terms that may be required → the word that replaces a term to break the check."""
FORBIDDEN = ("guarantee", "obviously", "asap", "roughly", "blame", "perfect")
FILLER = (
    "The points above were discussed in the regular meeting.",
    "The layout follows the usual form of the team.",
    "Further detail is kept with the working papers.",
    "The period is the same as in the last issue.",
    "Colleagues can find earlier issues in the shared folder.",
    "The text was read once more before it was sent.",
    "Names of teams are written as in the directory.",
    "Holidays in the period were taken into account.",
    "Small changes after the closing date are not included.",
    "The next issue will have the same structure.",
    "Terms are used as in the handbook of the department.",
    "The working group met twice during the period.",
    "Remarks of the readers were added where they helped.",
    "The order of the items follows the source.",
)
"""Neutral sentences without any term of a check; they only make a text longer."""
PII = {
    "email": re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+\.\w+"),
    "iban": re.compile(r"\b[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]){11,30}\b"),
    "phone": re.compile(r"(?:\+|(?<![\d.,])00)\d(?:[ ()/.-]{0,2}\d){8,}"),
}
"""Raw forms of personal data, in groups of digits as well; a masked one has asterisks and does not match."""


def has_section(artefact: Artefact, arg: str, facts: Facts) -> bool:
    at = index_of(artefact, arg)
    return at is not None and len(words(artefact["sections"][at]["text"])) >= 10


def rename_section(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["sections"][index_of(artefact, arg) or 0]["name"] = "other"


def empty_section(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["sections"][index_of(artefact, arg) or 0]["text"] = "To be written later."


def min_words(artefact: Artefact, arg: str, facts: Facts) -> bool:
    return len(words(artefact["body"])) >= int(arg)


def drop_filler(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["body"] = artefact["body"].partition(". ")[0] + "."


def cut_body(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["body"] = " ".join(words(artefact["body"])[: int(arg) - 1])


def max_words(artefact: Artefact, arg: str, facts: Facts) -> bool:
    return word_count(artefact) <= int(arg)


def _long(arg: str) -> str:
    count = int(arg) + 1
    many = " ".join(FILLER).split()
    return " ".join((many * (count // len(many) + 1))[:count])


def add_section(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["sections"].append({"name": "further remarks", "text": _long(arg)})


def lengthen_remarks(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["sections"][index_of(artefact, "remarks") or 0]["text"] += " " + _long(arg)


def pair_of(arg: str) -> tuple[str, str]:
    """Returns the two sections of an ``order_before`` argument."""
    first, _, second = arg.partition("<")
    return first, second


def order_before(artefact: Artefact, arg: str, facts: Facts) -> bool:
    first, second = (index_of(artefact, name) for name in pair_of(arg))
    return first is not None and second is not None and first < second


def swap_sections(artefact: Artefact, arg: str, facts: Facts) -> None:
    first, second = (index_of(artefact, name) or 0 for name in pair_of(arg))
    sections = artefact["sections"]
    sections[first], sections[second] = sections[second], sections[first]


def move_first_last(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["sections"].append(artefact["sections"].pop(index_of(artefact, pair_of(arg)[0]) or 0))


def contains_term(artefact: Artefact, arg: str, facts: Facts) -> bool:
    return any(has_word(text, arg) for text in texts(artefact))


def replace_term(artefact: Artefact, arg: str, facts: Facts) -> None:
    for section in artefact["sections"]:
        section["text"] = re.sub(rf"\b{arg}\b", SYNONYMS[arg], section["text"])


def drop_term(artefact: Artefact, arg: str, facts: Facts) -> None:
    for section in artefact["sections"]:
        kept = [one for one in re.split(r"(?<=\.) ", section["text"]) if not has_word(one, arg)]
        section["text"] = " ".join(kept)


def forbids_term(artefact: Artefact, arg: str, facts: Facts) -> bool:
    return not any(has_word(text, arg) for text in texts(artefact))


def insert_term(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["sections"][index_of(artefact, "remarks") or 0]["text"] += f" ({arg.capitalize()})"


def insert_term_in_title(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["title"] += f" ({arg})"


def unit_present(artefact: Artefact, arg: str, facts: Facts) -> bool:
    form = rf"-?[\d.,]*\d {re.escape(arg)}"
    return re.fullmatch(form, artefact["kpi"]["value"], re.ASCII) is not None


def strip_unit(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["kpi"]["value"] = artefact["kpi"]["value"].removesuffix(f" {arg}")


def wrong_unit(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["kpi"]["value"] = artefact["kpi"]["value"].removesuffix(arg) + "units"


def cites_resource(artefact: Artefact, arg: str, facts: Facts) -> bool:
    return isinstance(artefact["citations"], list) and f"R{arg}" in artefact["citations"]


def drop_citation(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["citations"].remove(f"R{arg}")


def wrong_citation(artefact: Artefact, arg: str, facts: Facts) -> None:
    at = artefact["citations"].index(f"R{arg}")
    artefact["citations"][at] = "R9"


def pii_masked(artefact: Artefact, arg: str, facts: Facts) -> bool:
    parts = (*rows_of(artefact), *artefact["actions"], artefact["kpi"])
    cells = (str(cell) for part in parts for cell in part.values())
    return not any(PII[arg].search(text) for text in (*texts(artefact), *cells))


def _unmask(artefact: Artefact, kind: str, facts: Facts, which: int) -> None:
    contact = facts.contacts[which]
    for section in artefact["sections"]:
        section["text"] = section["text"].replace(contact.masked[kind], contact.raw[kind])


def unmask_first(artefact: Artefact, arg: str, facts: Facts) -> None:
    _unmask(artefact, arg, facts, 0)


def unmask_second(artefact: Artefact, arg: str, facts: Facts) -> None:
    _unmask(artefact, arg, facts, 1)
