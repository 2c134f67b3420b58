"""Checks of tables (csv)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from onward.rubrics.gym.files.cells import Row, aggregate, evaluate, is_iso_date, iso_date, matches, number
from onward.rubrics.gym.files.check import Arguments, Files, declare
from onward.rubrics.gym.files.formats import read_table, table_of, write_table

Holds = Callable[[list[Row], Arguments, Files], bool]
Spoil = Callable[[list[Row], Arguments, Files], list[Row]]
TOLERANCE = 0.0051


def _on_rows(holds: Holds) -> Callable[[bytes, Arguments, Files], bool]:
    return lambda content, given, files: holds(read_table(content), given, files)


def _spoil_rows(spoil: Spoil) -> Callable[[bytes, Arguments, Files], bytes]:
    def spoiled(content: bytes, given: Arguments, files: Files) -> bytes:
        rows = read_table(content)
        columns = content.decode().partition("\n")[0].split(",")
        return write_table(spoil(rows, given, files), columns)

    return spoiled


def _table(
    name: str, dimension: str, sentence: str, holds: Holds, spoil: Spoil, *arguments: str, order: int = 0
) -> None:
    declare(name, dimension, sentence, _on_rows(holds), _spoil_rows(spoil), *arguments, order=order)


def _edit(change: Callable[[str], str], row: int = 0) -> Spoil:
    """Returns a fault that changes one cell of the column in the arguments."""

    def spoil(rows: list[Row], given: Arguments, files: Files) -> list[Row]:
        at = min(row, len(rows) - 1)
        return [{**one, given["column"]: change(one[given["column"]])} if i == at else one
                for i, one in enumerate(rows)]  # fmt: skip

    return spoil


def _off(text: str) -> str:
    return f"{number(text) * 1.07 + 1:.2f}"


def _source(given: Arguments, files: Files) -> list[Row]:
    return [row for row in table_of(files, given["source"]) if matches(given.get("where", ""), row)]


# Single cells and columns.


def _unique(rows: list[Row], given: Arguments, files: Files) -> bool:
    values = [row[given["column"]] for row in rows]
    return len(set(values)) == len(values)


_table("unique", "accuracy", "no {column} appears twice", _unique,
       lambda rows, given, files: [*rows[:1], *rows], "column", order=2)  # fmt: skip
_table("iso_dates", "form", "every date in {column} is written as year-month-day",
       lambda rows, given, files: all(is_iso_date(row[given["column"]]) for row in rows),
       _edit(lambda text: "/".join(reversed(iso_date(text).split("-")))), "column", order=4)  # fmt: skip
_table("filled", "completeness", "no {column} is empty",
       lambda rows, given, files: all(row[given["column"]].strip() for row in rows),
       _edit(lambda text: ""), "column", order=4)  # fmt: skip
_table("two_decimals", "form", "every {column} has two decimals",
       lambda rows, given, files: all(row[given["column"]][-3:-2] == "." for row in rows),
       _edit(lambda text: text + "0", row=1), "column", order=5)  # fmt: skip
_table("masked", "compliance", "no {column} can be read in full",
       lambda rows, given, files: all("***" in row[given["column"]] for row in rows),
       _edit(lambda text: text.replace("***", "anna.berg")), "column", order=4)  # fmt: skip


def _sorted_by(rows: list[Row], given: Arguments, files: Files) -> bool:
    values = [number(row[given["column"]]) for row in rows]
    return values == sorted(values, reverse=True)


def _lowest_first(rows: list[Row], given: Arguments, files: Files) -> list[Row]:
    return [*rows[-1:], *rows[:-1]]


_table("sorted_by", "form", "the rows begin with the largest {column}", _sorted_by, _lowest_first,
       "column", order=3)  # fmt: skip


# Rows, compared with the table that they come from.


def _keeps_all(rows: list[Row], given: Arguments, files: Files) -> bool:
    column = given["column"]
    return {row[column] for row in _source(given, files)} <= {row[column] for row in rows}


def _drop_last(rows: list[Row], given: Arguments, files: Files) -> list[Row]:
    column = given["column"]
    of_source = {row[column] for row in _source(given, files)}
    last = next(row[column] for row in reversed(rows) if row[column] in of_source)
    return [row for row in rows if row[column] != last]


_table("keeps_all", "completeness", "every {column} of {source} is there ({where})", _keeps_all, _drop_last,
       "column", "source", "where", order=1)  # fmt: skip


def _stranger(rows: list[Row], given: Arguments, files: Files) -> list[Row]:
    others = table_of(files, given["source"])
    return [*rows, next(row for row in others if not matches(given["where"], row))]


_table("only", "accuracy", "every row satisfies: {where}",
       lambda rows, given, files: all(matches(given["where"], row) for row in rows),
       _stranger, "source", "where", order=2)  # fmt: skip
_table("row_count", "completeness", "there are {rows} rows, or all of {source} if it has fewer",
       lambda rows, given, files: len(rows) == min(given["rows"], len(_source(given, files))),
       lambda rows, given, files: rows[:-1], "rows", "source", order=1)  # fmt: skip


# Values that can be computed again.


def _computed(rows: list[Row], given: Arguments, files: Files) -> bool:
    return all(
        abs(number(row[given["column"]]) - evaluate(given["formula"], row)) < TOLERANCE for row in rows
    )


_table("computed", "accuracy", "{column} is {formula} in every row", _computed, _edit(_off),
       "column", "formula", order=3)  # fmt: skip


def _looked_up(rows: list[Row], given: Arguments, files: Files) -> bool:
    key, column = given["key"], given["column"]
    known = {row[key]: row[column] for row in reversed(table_of(files, given["source"]))}
    return all(row[column] == known.get(row[key], "") for row in rows)


_table("looked_up", "accuracy", "{column} is that of the same {key} in {source}", _looked_up,
       _edit(lambda text: text + "9" if text[-1:].isdigit() else text + " (old)"),
       "column", "key", "source", order=3)  # fmt: skip


def _flagged(rows: list[Row], given: Arguments, files: Files) -> bool:
    return all((row[given["column"]] == "yes") == matches(given["where"], row) for row in rows)


_table("flagged", "accuracy", "{column} is yes exactly for: {where}", _flagged,
       _edit(lambda text: "no" if text == "yes" else "yes"), "column", "where", order=3)  # fmt: skip


def _group_sums(rows: list[Row], given: Arguments, files: Files) -> bool:
    by, source = given["by"], _source(given, files)
    return all(
        abs(
            number(row[given["column"]])
            - aggregate(given["value"], [one for one in source if one[by] == row[by]])
        )
        < TOLERANCE
        for row in rows
    )


_table("group_sums", "accuracy", "{column} of each {by} is {value} over {source}", _group_sums,
       _edit(lambda text: f"{number(text) + 1:.2f}"), "column", "by", "value", "source", order=3)  # fmt: skip


# Plans.


def _in_order(rows: list[Row], given: Arguments, files: Files) -> bool:
    dates = [(iso_date(row["start"]), iso_date(row["end"])) for row in rows]
    return all(later[0] >= earlier[1] for earlier, later in pairwise(dates))


def _overlap(rows: list[Row], given: Arguments, files: Files) -> list[Row]:
    return [{**row, "start": rows[0]["start"]} if i == 1 else row for i, row in enumerate(rows)]


_table("in_order", "actionability", "no step begins before the one above it ends", _in_order, _overlap,
       order=3)  # fmt: skip


def _ends_by(rows: list[Row], given: Arguments, files: Files) -> bool:
    return max(iso_date(row["end"]) for row in rows) <= given["date"]


def _too_late(rows: list[Row], given: Arguments, files: Files) -> list[Row]:
    late = f"{int(given['date'][:4]) + 1}{given['date'][4:]}"
    return [*rows[:-1], {**rows[-1], "end": late}]


_table("ends_by", "actionability", "the last step ends by {date}", _ends_by, _too_late, "date",
       order=3)  # fmt: skip
