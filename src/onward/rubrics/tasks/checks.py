"""The 24 checks by name: arguments, preference dimension, predicate, and two operators that break it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onward.errors import ConfigError
from onward.rubrics.check import Check
from onward.rubrics.tasks import table_checks as table
from onward.rubrics.tasks import text_checks as text
from onward.rubrics.tasks.artefacts import Artefact, Facts
from onward.spelling import closest_name

DIMENSIONS: tuple[str, ...] = (
    "accuracy",
    "completeness",
    "brevity",
    "compliance",
    "traceability",
    "actionability",
)
"""The six dimensions of a preference, in the order of every table."""
Predicate = Callable[[Artefact, str, Facts], bool]
Operator = Callable[[Artefact, str, Facts], None]


@dataclass(frozen=True)
class CheckKind:
    """A kind of check. ``breaks`` has the operator of the probe set and that of the hidden design."""

    name: str
    dimension: str
    args: tuple[str, ...]
    question: str
    holds: Predicate
    breaks: tuple[Operator, Operator]


_TABLE: tuple[CheckKind, ...] = (
    CheckKind(
        "has_section", "completeness",
        ("summary", "risks", "findings", "recommendations", "assumptions", "scope"),
        "Is there a section '{arg}' of ten words or more?",
        text.has_section, (text.rename_section, text.empty_section),
    ),
    CheckKind(
        "min_words", "completeness", ("20", "50", "100"), "Has the body {arg} words or more?",
        text.min_words, (text.drop_filler, text.cut_body),
    ),
    CheckKind(
        "max_words", "brevity", ("120", "200", "300"), "Has the whole text {arg} words or fewer?",
        text.max_words, (text.add_section, text.lengthen_remarks),
    ),
    CheckKind(
        "order_before", "brevity",
        ("background<analysis", "options<decision", "timeline<impact", "key points<notes"),
        "Are the two sections in the order {arg}?",
        text.order_before, (text.swap_sections, text.move_first_last),
    ),
    CheckKind(
        "contains_term", "completeness", tuple(text.SYNONYMS), "Does the text use the word '{arg}'?",
        text.contains_term, (text.replace_term, text.drop_term),
    ),
    CheckKind(
        "forbids_term", "brevity", text.FORBIDDEN, "Is the text free of the word '{arg}'?",
        text.forbids_term, (text.insert_term, text.insert_term_in_title),
    ),
    CheckKind(
        "sum_matches", "accuracy", ("total", "subtotal", "tax"), "Is the {arg} the sum of the rows?",
        table.sum_matches, (table.raise_total, table.lower_total),
    ),
    CheckKind(
        "no_duplicates", "traceability", ("id", "email"), "Has each row its own {arg}?",
        table.no_duplicates, (table.repeat_second, table.repeat_third),
    ),
    CheckKind(
        "date_iso", "compliance", ("",), "Is the date of each row written as year-month-day?",
        table.date_iso, (table.dotted_date, table.named_month),
    ),
    CheckKind(
        "currency_fmt", "compliance", ("",), "Is the amount of each row written as 'EUR 1,234.50'?",
        table.currency_fmt, (table.bare_amount, table.comma_amount),
    ),
    CheckKind(
        "unit_present", "accuracy", ("h", "kg", "%", "EUR"), "Has the key figure the unit {arg}?",
        text.unit_present, (text.strip_unit, text.wrong_unit),
    ),
    CheckKind(
        "cites_resource", "traceability", ("1", "2", "3"), "Is resource R{arg} cited?",
        text.cites_resource, (text.drop_citation, text.wrong_citation),
    ),
    CheckKind(
        "each_row_has", "completeness", ("owner", "status", "reason"), "Has each row its {arg}?",
        table.each_row_has, (table.blank_first_cell, table.dash_last_cell),
    ),
    CheckKind(
        "value_equals_input", "accuracy", ("largest", "average", "open"),
        "Is the figure '{arg}' the one that follows from the inputs?",
        table.value_equals_input, (table.raise_value, table.lower_value),
    ),
    CheckKind(
        "threshold_flagged", "accuracy", ("5", "10", "20"),
        "Are exactly the items flagged that deviate by more than {arg} %?",
        table.threshold_flagged, (table.drop_flag, table.extra_flag),
    ),
    CheckKind(
        "owner_assigned", "actionability", ("",), "Has each action an owner?",
        table.field_of_actions("owner"), (table.blank_action("owner", 0), table.blank_action("owner", -1)),
    ),
    CheckKind(
        "deadline_present", "actionability", ("",), "Has each action a deadline?",
        table.field_of_actions("deadline"),
        (table.blank_action("deadline", 0), table.blank_action("deadline", -1)),
    ),
    CheckKind(
        "next_step_present", "actionability", ("",), "Has each action a next step?",
        table.field_of_actions("next_step"),
        (table.blank_action("next_step", 0), table.blank_action("next_step", -1)),
    ),
    CheckKind(
        "signoff_present", "compliance", ("finance lead", "manager", "quality lead", "legal counsel"),
        "Is there a named and dated approval of the {arg}?",
        table.signoff_present, (table.unnamed_signoff, table.undated_signoff),
    ),
    CheckKind(
        "pii_masked", "compliance", ("email", "iban", "phone"), "Is each {arg} masked?",
        text.pii_masked, (text.unmask_first, text.unmask_second),
    ),
    CheckKind(
        "rounding", "accuracy", ("0", "2"), "Is the rate of each row written with {arg} decimals?",
        table.rounding, (table.longer_rate, table.one_digit_rate),
    ),
    CheckKind(
        "id_format", "traceability", ("",), "Is the identifier of each row written as 'AB-0001'?",
        table.id_format, (table.lower_id, table.slashed_id),
    ),
    # The two that move rows come last: the operators above address rows by their place.
    CheckKind(
        "sorted_by", "actionability", ("date", "amount", "id"), "Are the rows in the order of their {arg}?",
        table.sorted_by, (table.rotate_rows, table.reverse_rows),
    ),
    CheckKind(
        "row_count", "completeness", ("all", "top5", "flagged"), "Are as many rows shown as '{arg}' means?",
        table.row_count, (table.hide_last, table.hide_first),
    ),
)  # fmt: skip
CHECKS: dict[str, CheckKind] = {kind.name: kind for kind in _TABLE}
"""Name → kind, in the order in which operators are applied."""

_ONE_ARGUMENT = frozenset((
    "min_words", "max_words", "threshold_flagged", "rounding", "unit_present", "sorted_by", "row_count",
))  # fmt: skip
"""Checks that read one part of an artefact, whatever their argument: one a family."""


def conflict(one: Check, other: Check) -> str | None:
    """Returns why breaking one check would change the other, so no family has both; None if it would not."""
    if one == other:
        return "they are the same check"
    if one.name == other.name and one.name in _ONE_ARGUMENT:
        return f"{one.name} reads one part of the artefact, whatever its argument"
    given = {check.name: check.arg for check in (one, other)}
    if given == {"min_words": "100", "max_words": "120"}:
        return "a body of 100 words leaves no room for the sections within 120"
    if given == {"no_duplicates": "email", "pii_masked": "email"}:
        return "rows that show an address cannot have it masked"
    return None


def require_known(check: Check) -> CheckKind:
    """Returns the kind of ``check``. Raises ConfigError if its name or its argument is unknown."""
    kind = CHECKS.get(check.name)
    if kind is None:
        near = closest_name(check.name, CHECKS)
        hint = f"did you mean {near!r}?" if near else f"give one of {', '.join(CHECKS)}."
        raise ConfigError(f"There is no check {check.name!r}: {hint}")
    if check.arg not in kind.args:
        known = ", ".join(map(repr, kind.args))
        raise ConfigError(f"{check.name} has no argument {check.arg!r}: give one of {known}.")
    return kind


def describe(check: Check) -> str:
    """Returns the question that ``check`` asks, in words."""
    return require_known(check).question.format(arg=check.arg)
