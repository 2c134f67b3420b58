"""Families of finance: two ledgers that are matched by identifier, and a policy."""

from __future__ import annotations

from collections.abc import Sequence

from onward.rubrics.tasks.artefacts import Contact
from onward.rubrics.tasks.family import Family, pick
from onward.rubrics.tasks.inputs import Record, Resource, Words, policy, table


def ledgers(
    words: Words,
    records: Sequence[Record],
    contacts: Sequence[Contact],
    threshold: str,
    names: tuple[str, ...],
) -> tuple[Resource, ...]:
    actual = {
        "id": "id", "name": "name", "date": "date", words.amount: "amount", "tax": "tax", "rate": "rate",
        "owner": "owner", "email": "email", "status": "status", "reason": "reason",
    }  # fmt: skip
    return (
        table("R1", names[0], actual, records),
        table(
            "R2", names[1], {"id": "id", words.expected: "expected"}, sorted(records, key=lambda one: one.id)
        ),
        policy("R3", names[2], words, threshold, contacts),
    )


FAMILIES = (
    Family(
        "invoice_po_reconciliation",
        "reconciliation",
        (
            "Match each invoice with its purchase order and report the differences.",
            "Compare invoices with purchase orders and list what does not agree.",
            "Our supplier invoices must be checked against the orders that we placed.",
        ),
        ("invoices", "purchase orders", "payment policy"),
        ("match invoices and orders", "compute the differences", "write the reconciliation"),
        Words(
            "invoice",
            "INV",
            ("Northwind Paper", "Brandt Tools", "Oslo Freight", "Delta Print"),
            ("price differs from the order", "quantity differs", "no receipt of the goods", "freight added"),
            "invoiced amount",
            "ordered amount",
        ),
        ledgers,
        "time to match",
        (
            pick("sum_matches", 3, "total", "subtotal", "tax"),
            pick("value_equals_input", 2, "largest", "open", "average"),
            pick("threshold_flagged", 1, "10", "20", "5"),
            pick("row_count", 3, "all", "flagged", "top5"),
            pick("has_section", 2, "summary", "findings"),
            pick("max_words", 2, "200", "120", "300"),
            pick("signoff_present", 3, "finance lead", "manager"),
            pick("pii_masked", 2, "iban", "email"),
            pick("cites_resource", 3, "1", "2", "3"),
            pick("id_format", 1),
            pick("next_step_present", 2),
        ),
    ),
    Family(
        "expense_audit",
        "audit note",
        (
            "Audit the expense claims of the staff against their travel approvals.",
            "Go through the expense claims and say which ones exceed what was approved.",
            "Travel claims have to be tested against the approvals.",
        ),
        ("expense claims", "travel approvals", "travel policy"),
        ("test the claims", "collect the exceptions", "write the note"),
        Words(
            "claim",
            "EXP",
            ("hotel", "train", "taxi", "client dinner"),
            ("receipt is missing", "above the daily rate", "private part", "booked late"),
            "claimed amount",
            "approved amount",
            30,
            900,
        ),
        ledgers,
        "share of claims with receipt",
        (
            pick("sum_matches", 3, "subtotal", "tax", "total"),
            pick("threshold_flagged", 2, "10", "5", "20"),
            pick("each_row_has", 3, "reason", "status"),
            pick("has_section", 2, "findings", "scope", "summary"),
            pick("max_words", 1, "200", "300"),
            pick("forbids_term", 1, "blame", "obviously", "roughly"),
            pick("signoff_present", 3, "manager", "finance lead"),
            pick("currency_fmt", 2),
            pick("cites_resource", 2, "2", "3"),
            pick("no_duplicates", 3, "id", "email"),
            pick("owner_assigned", 2),
        ),
    ),
    Family(
        "budget_variance",
        "variance report",
        (
            "Explain how spending differs from the budget of the departments.",
            "Compare the cost centres with their budget and name the causes.",
            "Show the management where money was spent beyond the plan.",
        ),
        ("actual costs", "approved budget", "planning guide"),
        ("join costs and budget", "rank the variances", "explain the causes", "write the report"),
        Words(
            "cost centre",
            "CC",
            ("energy", "licences", "training", "cleaning"),
            ("volume rose", "price rose", "shifted from last quarter", "one-off repair"),
            "actual cost",
            "budget",
            900,
            60000,
        ),
        ledgers,
        "budget used",
        (
            pick("sum_matches", 2, "subtotal", "total"),
            pick("value_equals_input", 3, "average", "largest"),
            pick("threshold_flagged", 3, "5", "10", "20"),
            pick("row_count", 2, "flagged", "all", "top5"),
            pick("order_before", 2, "background<analysis", "options<decision"),
            pick("currency_fmt", 2),
            pick("signoff_present", 2, "finance lead", "manager"),
            pick("cites_resource", 3, "1", "2", "3"),
            pick("owner_assigned", 2),
            pick("deadline_present", 1),
            pick("sorted_by", 2, "amount", "id"),
        ),
    ),
    Family(
        "capital_summary",
        "capital summary",
        (
            "Sum up the own funds of the bank by instrument for the risk committee.",
            "The committee wants to see the capital instruments and their use.",
            "Present the capital position with each instrument and its limit.",
        ),
        ("capital instruments", "regulatory limits", "reporting manual"),
        ("collect the instruments", "compare with limits", "write the summary"),
        Words(
            "instrument",
            "CAP",
            ("ordinary shares", "reserves", "subordinated loan", "hybrid bond"),
            ("maturity is near", "limit was lowered", "new issue", "redemption planned"),
            "book value",
            "limit",
            4000,
            90000,
        ),
        ledgers,
        "capital ratio",
        (
            pick("sum_matches", 3, "total", "subtotal"),
            pick("value_equals_input", 3, "largest", "average"),
            pick("unit_present", 1, "%", "EUR"),
            pick("has_section", 2, "assumptions", "summary", "risks"),
            pick("min_words", 2, "50", "20"),
            pick("max_words", 2, "200", "300"),
            pick("currency_fmt", 2),
            pick("signoff_present", 3, "quality lead", "finance lead"),
            pick("cites_resource", 3, "2", "1"),
            pick("no_duplicates", 1, "id"),
            pick("next_step_present", 2),
        ),
    ),
    Family(
        "grant_budget",
        "grant budget",
        (
            "Draw up the budget of the research grant by work package.",
            "The funder needs a budget that follows its own cost rules.",
            "Turn the cost plan of the project into a budget for the funder.",
        ),
        ("cost plan", "funder limits", "cost rules"),
        ("group the costs", "apply the limits", "write the budget"),
        Words(
            "work package",
            "WP",
            ("staff", "equipment", "field trips", "open access fees"),
            ("overhead rate changed", "partner left", "second field trip", "device became cheaper"),
            "planned cost",
            "limit",
            500,
            30000,
        ),
        ledgers,
        "own contribution",
        (
            pick("sum_matches", 3, "total", "tax", "subtotal"),
            pick("rounding", 2, "2", "0"),
            pick("row_count", 2, "all", "top5"),
            pick("contains_term", 1, "baseline", "retention", "materiality"),
            pick("has_section", 2, "assumptions", "scope"),
            pick("max_words", 3, "300", "200"),
            pick("signoff_present", 2, "manager", "legal counsel"),
            pick("currency_fmt", 3),
            pick("cites_resource", 3, "3", "2"),
            pick("deadline_present", 3),
            pick("owner_assigned", 2),
        ),
    ),
)
