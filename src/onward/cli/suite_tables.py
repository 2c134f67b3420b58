"""Tables of a validation, for ``onward validate`` and ``onward releases show``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onward.cli.output import Table, number, plain
from onward.release.wording import item_notes, suite_counts


def suite_table(summary: dict[str, Any]) -> Table:
    """Builds a table with one row per suite of a validation."""
    table = Table("suite", "counts as", "verdict", number("not judged"), "numbers", title="Suites")
    for name, facts in summary.get("suites", {}).items():
        numbers = suite_counts(facts) if "difference" in facts else facts["judged"]
        table.add_row(name, facts["role"], facts["verdict"], facts["unscored"]["items"], numbers)
    return table


def item_lines(summary: dict[str, Any]) -> Iterator[str]:
    """Yields what a reader has to know about the items of each suite, in sentences."""
    for name, facts in summary.get("suites", {}).items():
        for words in item_notes(facts):
            yield plain(f"{name}: {words}.")


def lost_items(summary: dict[str, Any]) -> Iterator[Table]:
    """Yields a table of the items that only the current model solves, if there are any."""
    lost = [(name, one) for name, facts in summary["suites"].items() for one in facts.get("failing", ())]
    if lost:
        table = Table("suite", "item", "why", "answer", title="Lost items: current solves them")
        for name, one in lost:
            table.add_row(name, one["item_id"], one.get("note", ""), one.get("answer", ""))
        yield table
