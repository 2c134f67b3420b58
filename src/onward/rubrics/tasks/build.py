"""Artefacts on demand: the compliant one, and those that break chosen checks."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

from onward.rubrics.check import Check
from onward.rubrics.tasks.artefacts import Artefact, Facts, Section, number, words
from onward.rubrics.tasks.checks import CHECKS
from onward.rubrics.tasks.family import Family
from onward.rubrics.tasks.inputs import PEOPLE, Record
from onward.rubrics.tasks.table_checks import sort_key
from onward.rubrics.tasks.text_checks import FILLER, pair_of

_SECTION_TEXT = (
    "This part of the {noun} covers every {item} of the period in turn.",
    "Readers of the {noun} find here what concerns each {item} alone.",
    "Here the {noun} states what was seen for each {item} in review.",
)
_PAIR_TEXT = ("It belongs to the {noun}.", "It is short in this {noun}.")
_BODY_WORDS = 16
"""Words of a body for which no check asks more."""


def compliant(
    family: Family, seed: int, active: Sequence[Check], records: Sequence[Record], facts: Facts
) -> Artefact:
    """Returns an artefact that satisfies every active check."""
    draw = random.Random(f"artefact/{family.id}/{seed}")
    args = {name: [check.arg for check in active if check.name == name] for name in CHECKS}
    rows = _rows(args, records, facts, family.words.money)
    return {
        "title": f"{family.noun.capitalize()} {records[0].date[:4]}",
        "body": _body(family, max(map(int, args["min_words"]), default=_BODY_WORDS), len(records), draw),
        "sections": _sections(family, args, facts, draw),
        "rows": rows,
        "totals": _totals(rows),
        "values": dict(facts.values),
        "kpi": {"name": family.kpi, "value": f"{draw.randint(2, 90)}.5 {(args['unit_present'] or ['h'])[0]}"},
        "flagged": facts.flagged(facts.threshold),
        "citations": [f"R{number}" for number in range(1, len(family.resources) + 1)],
        "actions": _actions(family, records, draw),
        "metadata": {
            "family": family.id,
            "unit": family.words.unit,
            "signoffs": [
                {"role": role, "name": draw.choice(PEOPLE), "date": records[-1].date}
                for role in (args["signoff_present"] or ["manager"])
            ],
        },
    }


def broken(
    artefact: Artefact, active: Sequence[Check], kept: Sequence[bool], facts: Facts, way: int
) -> Artefact:
    """Returns a copy in which each check that is not ``kept`` is broken, by its operator number ``way``."""
    made = copy.deepcopy(artefact)
    wanted = dict(zip(active, kept, strict=True))
    for name, kind in CHECKS.items():
        for check, keep in wanted.items():
            if check.name == name and not keep:
                kind.breaks[way](made, check.arg, facts)
    return made


def _rows(
    args: dict[str, list[str]], records: Sequence[Record], facts: Facts, money: bool
) -> list[dict[str, Any]]:
    decimals = int((args["rounding"] or ["2"])[0])
    rows: list[dict[str, Any]] = [
        {
            "id": one.id,
            "name": one.name,
            "date": one.date,
            "amount": f"EUR {one.amount:,.2f}" if money else f"{one.amount:.1f}",
            **({"tax": f"{one.tax:.2f}"} if money else {}),
            "rate": f"{one.rate:.{decimals}f}",
            "owner": one.owner,
            "status": one.status,
            "reason": one.reason,
        }
        | ({"email": one.email} if "email" in args["no_duplicates"] else {})
        for one in records
    ]
    which = (args["row_count"] or ["all"])[0]
    if which == "flagged":
        flagged = set(facts.flagged(facts.threshold))
        rows = [row for row in rows if row["id"] in flagged]
    elif which == "top5":
        largest = sorted(rows, key=sort_key("amount"))[:5]
        rows = [row for row in rows if row in largest]
    return sorted(rows, key=sort_key(args["sorted_by"][0])) if args["sorted_by"] else rows


def _totals(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    net, tax = (sum(number(row.get(column, 0)) for row in rows) for column in ("amount", "tax"))
    taxed = {"tax": round(tax, 2)} if tax else {}
    return {"subtotal": round(net, 2), **taxed, "total": round(net + tax, 2)}


def _body(family: Family, least: int, items: int, draw: random.Random) -> str:
    """The first sentence is short: it is what stays when the filler is dropped."""
    text = f"The {family.noun} covers {items} items. It follows the {family.resources[0]}."
    for sentence in draw.sample(FILLER, len(FILLER)):
        if len(words(text)) >= least:
            break
        text += f" {sentence}"
    return text


def _sections(family: Family, args: dict[str, list[str]], facts: Facts, draw: random.Random) -> list[Section]:
    fill = {"noun": family.noun, "item": family.words.item}
    required = [(name, draw.choice(_SECTION_TEXT).format(**fill)) for name in args["has_section"]]
    pairs = [
        [(name, draw.choice(_PAIR_TEXT).format(**fill)) for name in pair_of(pair)]
        for pair in args["order_before"]
    ]
    found = [*required, *(section for pair in pairs for section in pair)]
    remarks = [f"We note the {term} here." for term in args["contains_term"]]
    found.append(("remarks", " ".join(remarks) or "There are no remarks."))
    if args["pii_masked"]:
        shown = [one.masked[kind] for kind in args["pii_masked"] for one in facts.contacts]
        found.append(("contacts", " ".join(shown)))
    return [{"name": name, "text": text} for name, text in found]


def _actions(family: Family, records: Sequence[Record], draw: random.Random) -> list[dict[str, str]]:
    latest = date.fromisoformat(max(record.date for record in records))
    return [
        {
            "action": f"Look into {record.id}: {record.reason}",
            "owner": record.owner,
            "deadline": (latest + timedelta(draw.randint(3, 30))).isoformat(),
            "next_step": f"Ask {draw.choice(PEOPLE)} about the {family.words.item}",
        }
        for record in records[:3]
    ]
