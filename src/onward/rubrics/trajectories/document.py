"""A final answer as the document that checks read: its JSON, or Markdown with headings and tables. Pure.

The Markdown is that of ``tasks.render.markdown``: a title, a body, sections; tables of items, actions and
approvals under headings of these names; figures as ``- name: value``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, cast

from onward.rubrics.tasks.artefacts import Artefact, number

FORM_CHECKS = frozenset((
    "has_section", "min_words", "max_words", "order_before", "contains_term", "forbids_term", "sum_matches",
    "no_duplicates", "date_iso", "currency_fmt", "unit_present", "cites_resource", "each_row_has",
    "owner_assigned", "deadline_present", "next_step_present", "signoff_present", "rounding", "id_format",
    "sorted_by",
))  # fmt: skip
"""Checks that read the document alone. The others compare it with the inputs of a task."""
OF_ROWS = frozenset((
    "sum_matches", "no_duplicates", "date_iso", "currency_fmt", "each_row_has", "rounding", "id_format",
    "sorted_by",
))  # fmt: skip
OF_ACTIONS = frozenset(("owner_assigned", "deadline_present", "next_step_present"))
_TOTALS = ("subtotal", "tax", "total")
_TABLES = {"items": "rows", "annex": "annex", "actions": "actions", "approvals": "signoffs"}
_FIGURE = re.compile(r"^- ([^:]+): (.*)$", re.MULTILINE)
_SOURCE = re.compile(r"\[(R\d+)\]")


def read_document(text: str) -> Artefact:
    """Returns the parts of an answer; a part that is missing is empty."""
    parsed = _json(text)
    return parsed if parsed is not None else _markdown(text)


def missing_part(artefact: Artefact, check: str) -> str:
    """Returns the part without which ``check`` would hold of nothing; empty if it is there."""
    if check in OF_ROWS and not artefact["rows"]:
        return "table of items"
    return "table of actions" if check in OF_ACTIONS and not artefact["actions"] else ""


def _empty() -> dict[str, Any]:
    return {
        "title": "", "body": "", "sections": [], "rows": [], "totals": {}, "values": {},
        "kpi": {"name": "", "value": ""}, "flagged": [], "citations": [], "actions": [],
        "metadata": {"signoffs": []},
    }  # fmt: skip


def _json(text: str) -> Artefact | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not {"title", "body", "sections", "rows"} & value.keys():
        return None
    return cast(Artefact, {**_empty(), **value})


def _markdown(text: str) -> Artefact:
    found = _empty()
    head, *parts = re.split(r"^## +", text, flags=re.MULTILINE)
    title = re.match(r"\s*# +(.*)", head)
    found["title"] = title[1].strip() if title else ""
    found["body"] = (head[title.end() :] if title else head).strip()
    for part in parts:
        name, _, inside = part.partition("\n")
        name, inside = name.strip().lower(), inside.strip()
        if name == "figures":
            _read_figures(found, inside)
        elif name in _TABLES:
            rows = _table(inside.splitlines())
            if name == "approvals":
                found["metadata"]["signoffs"] = rows
            elif name == "annex":
                found["rows"] += [{**row, "hidden": True} for row in rows]
            else:
                found[_TABLES[name]] = rows
        else:
            found["sections"].append({"name": name, "text": inside})
    found["citations"] = found["citations"] or sorted(set(_SOURCE.findall(text)))
    return cast(Artefact, found)


def _read_figures(found: dict[str, Any], text: str) -> None:
    for name, value in _FIGURE.findall(text):
        if name in _TOTALS:
            found["totals"][name] = number(value)
        elif name == "flagged":
            found["flagged"] = [] if value == "none" else [one.strip() for one in value.split(",")]
        elif name == "sources":
            found["citations"] = _SOURCE.findall(value)
        elif re.fullmatch(r"-?[0-9.eE+-]+", value.strip()):
            found["values"][name] = float(value)
        else:
            found["kpi"] = {"name": name, "value": value}


def _table(lines: Sequence[str]) -> list[dict[str, str]]:
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines if "|" in line]
    if len(rows) < 2:
        return []
    titles, *others = rows
    titles = [title.lower() for title in titles]
    return [
        dict(zip(titles, row, strict=False))
        for row in others
        if not all(re.fullmatch(r":?-+:?", cell) for cell in row)
    ]
