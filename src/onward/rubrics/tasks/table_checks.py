"""Checks of rows, figures, actions and approvals. Each has a predicate and two ways to break it.

A row that an artefact hides in its annex still counts for every check but ``row_count``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from itertools import pairwise
from math import isnan

from onward.rubrics.tasks.artefacts import Artefact, Facts, day, digits, is_blank, number, rows_of

_ISO = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_MONEY = re.compile(r"EUR \d{1,3}(?:,\d{3})*\.\d{2}", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Z]{2,4}-\d{4}", re.ASCII)
_ROUNDED = {"0": re.compile(r"-?\d+", re.ASCII), "2": re.compile(r"-?\d+\.\d{2}", re.ASCII)}


def _sum_of(artefact: Artefact, field: str) -> float:
    columns = {"subtotal": ("amount",), "tax": ("tax",), "total": ("amount", "tax")}[field]
    return sum(number(row.get(column, 0)) for row in rows_of(artefact) for column in columns)


def sum_matches(artefact: Artefact, arg: str, facts: Facts) -> bool:
    return bool(rows_of(artefact)) and (
        abs(_sum_of(artefact, arg) - number(artefact["totals"].get(arg))) <= 0.005
    )


def raise_total(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["totals"][arg] = round(artefact["totals"][arg] + 1.0, 2)


def lower_total(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["totals"][arg] = round(artefact["totals"][arg] - 10.0, 2)


def row_count(artefact: Artefact, arg: str, facts: Facts) -> bool:
    return sum(not row.get("hidden") for row in rows_of(artefact)) == facts.expected_rows(arg)


def hide_last(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["rows"][-1]["hidden"] = True


def hide_first(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["rows"][0]["hidden"] = True


def no_duplicates(artefact: Artefact, arg: str, facts: Facts) -> bool:
    cells = [row.get(arg) for row in rows_of(artefact)]
    found = {str(cell).strip().casefold() for cell in cells if not is_blank(cell)}
    return bool(cells) and len(found) == len(cells)


def repeat_second(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["rows"][2][arg] = artefact["rows"][1][arg]


def repeat_third(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["rows"][3][arg] = artefact["rows"][2][arg]


def sort_key(column: str) -> Callable[[dict[str, object]], float]:
    """Returns the key that puts rows in order: dates and identifiers upwards, amounts downwards."""
    if column == "amount":
        return lambda row: -number(row.get("amount"))
    read = day if column == "date" else digits
    return lambda row: read(row.get(column))


def sorted_by(artefact: Artefact, arg: str, facts: Facts) -> bool:
    keys = [sort_key(arg)(row) for row in rows_of(artefact)]
    return bool(keys) and all(before <= after for before, after in pairwise(keys))


def rotate_rows(artefact: Artefact, arg: str, facts: Facts) -> None:
    rows = artefact["rows"]
    rows.append(rows.pop(0))


def reverse_rows(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["rows"].reverse()


def _every_cell(artefact: Artefact, column: str, form: re.Pattern[str]) -> bool:
    rows = rows_of(artefact)
    return bool(rows) and all(form.fullmatch(str(row.get(column, ""))) for row in rows)


def date_iso(artefact: Artefact, arg: str, facts: Facts) -> bool:
    return _every_cell(artefact, "date", _ISO) and not any(
        isnan(day(row["date"])) for row in rows_of(artefact)
    )


def _other_date(row: dict[str, object], form: str) -> None:
    row["date"] = date.fromisoformat(str(row["date"])).strftime(form)


def dotted_date(artefact: Artefact, arg: str, facts: Facts) -> None:
    _other_date(artefact["rows"][1], "%d.%m.%Y")


def named_month(artefact: Artefact, arg: str, facts: Facts) -> None:
    _other_date(artefact["rows"][-2], "%d %b %Y")


def currency_fmt(artefact: Artefact, arg: str, facts: Facts) -> bool:
    return _every_cell(artefact, "amount", _MONEY)


def bare_amount(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["rows"][1]["amount"] = f"{number(artefact['rows'][1]['amount']):.2f}"


def comma_amount(artefact: Artefact, arg: str, facts: Facts) -> None:
    text = f"{number(artefact['rows'][-1]['amount']):,.2f}"
    artefact["rows"][-1]["amount"] = text.translate(str.maketrans(",.", ".,")) + " €"


def id_format(artefact: Artefact, arg: str, facts: Facts) -> bool:
    return _every_cell(artefact, "id", _IDENTIFIER)


def lower_id(artefact: Artefact, arg: str, facts: Facts) -> None:
    row = artefact["rows"][0]
    row["id"] = str(row["id"]).lower().replace("-", " ")


def slashed_id(artefact: Artefact, arg: str, facts: Facts) -> None:
    row = artefact["rows"][-1]
    row["id"] = str(row["id"]).replace("-", "/")


def rounding(artefact: Artefact, arg: str, facts: Facts) -> bool:
    return _every_cell(artefact, "rate", _ROUNDED[arg])


def longer_rate(artefact: Artefact, arg: str, facts: Facts) -> None:
    row = artefact["rows"][0]
    row["rate"] = f"{number(row['rate']):.3f}"


def one_digit_rate(artefact: Artefact, arg: str, facts: Facts) -> None:
    row = artefact["rows"][-1]
    row["rate"] = f"{number(row['rate']):.1f}"


def each_row_has(artefact: Artefact, arg: str, facts: Facts) -> bool:
    rows = rows_of(artefact)
    return bool(rows) and not any(is_blank(row.get(arg)) for row in rows)


def blank_first_cell(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["rows"][0][arg] = ""


def dash_last_cell(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["rows"][-1][arg] = "-"


def value_equals_input(artefact: Artefact, arg: str, facts: Facts) -> bool:
    return abs(number(artefact["values"].get(arg)) - facts.values[arg]) <= 0.005


def raise_value(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["values"][arg] = round(artefact["values"][arg] * 1.07, 2)


def lower_value(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["values"][arg] = round(artefact["values"][arg] * 0.93, 2)


def threshold_flagged(artefact: Artefact, arg: str, facts: Facts) -> bool:
    return isinstance(artefact["flagged"], list) and sorted(artefact["flagged"]) == sorted(facts.flagged(arg))


def drop_flag(artefact: Artefact, arg: str, facts: Facts) -> None:
    artefact["flagged"].pop()


def extra_flag(artefact: Artefact, arg: str, facts: Facts) -> None:
    right = facts.flagged(arg)
    artefact["flagged"].append(next(name for name in facts.deviations if name not in right))


def field_of_actions(field: str) -> Callable[[Artefact, str, Facts], bool]:
    """Returns the predicate: there is an action, and each has ``field``."""

    def holds(artefact: Artefact, arg: str, facts: Facts) -> bool:
        return bool(artefact["actions"]) and not any(is_blank(one.get(field)) for one in artefact["actions"])

    return holds


def blank_action(field: str, which: int) -> Callable[[Artefact, str, Facts], None]:
    """Returns the operator that blanks ``field`` of one action."""

    def breaks(artefact: Artefact, arg: str, facts: Facts) -> None:
        artefact["actions"][which][field] = "-" if which else ""

    return breaks


def signoff_present(artefact: Artefact, arg: str, facts: Facts) -> bool:
    return any(
        one.get("role") == arg and not is_blank(one.get("name")) and not is_blank(one.get("date"))
        for one in artefact["metadata"].get("signoffs", ())
    )


def _blank_signoff(artefact: Artefact, role: str, field: str) -> None:
    for one in artefact["metadata"]["signoffs"]:
        if one["role"] == role:
            one[field] = ""


def unnamed_signoff(artefact: Artefact, arg: str, facts: Facts) -> None:
    _blank_signoff(artefact, arg, "name")


def undated_signoff(artefact: Artefact, arg: str, facts: Facts) -> None:
    _blank_signoff(artefact, arg, "date")
