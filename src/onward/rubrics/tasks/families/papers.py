"""Families about papers: a register, the values that were agreed, and the document of the rules."""

from __future__ import annotations

from collections.abc import Sequence

from onward.rubrics.tasks.artefacts import Contact
from onward.rubrics.tasks.family import Family, pick
from onward.rubrics.tasks.inputs import Record, TaskInput, Words, policy, table


def register(
    words: Words,
    records: Sequence[Record],
    contacts: Sequence[Contact],
    threshold: str,
    names: tuple[str, ...],
) -> tuple[TaskInput, ...]:
    subjects = {"id": "id", "subject": "name", "date": "date", "owner": "owner", "email": "email",
                "status": "status", "reason": "reason"}  # fmt: skip
    values = {"id": "id", words.amount: "amount", words.expected: "expected", "tax": "tax", "rate": "rate"}
    return (
        table("R1", names[0], words, subjects, sorted(records, key=lambda one: one.id)),
        table("R2", names[1], words, values, records),
        policy("R3", names[2], words, threshold, contacts),
    )


FAMILIES = (
    Family(
        "clause_summary",
        "clause summary",
        (
            "Explain the clauses of the lease in plain language.",
            "The tenant wants to know which clauses bind him.",
            "Condense the contract into its important clauses.",
        ),
        ("clauses", "amounts of the clauses", "drafting guide"),
        ("sort the clauses", "write the summary"),
        Words(
            "clause",
            "CL",
            ("rent", "notice", "repairs", "liability"),
            ("unusual term", "limit is missing", "notice is short", "differs from the draft"),
            "agreed amount",
            "usual amount",
            50,
            7000,
        ),
        register,
        "notice time",
        (
            pick("value_equals_input", 2, "largest", "average", "open"),
            pick("has_section", 3, "risks", "summary"),
            pick("has_section", 2, "scope", "assumptions"),
            pick("contains_term", 2, "consent", "materiality", "retention"),
            pick("max_words", 3, "200", "120", "300"),
            pick("order_before", 1, "background<analysis", "key points<notes"),
            pick("signoff_present", 3, "legal counsel", "manager"),
            pick("pii_masked", 2, "email", "iban"),
            pick("cites_resource", 3, "1", "2", "3"),
            pick("id_format", 2),
            pick("deadline_present", 3),
        ),
    ),
    Family(
        "risk_register",
        "risk register",
        (
            "Bring the risks of the programme up to date.",
            "List what could go wrong in the programme and how large it is.",
            "Rate every risk of the programme anew.",
        ),
        ("risks", "exposure", "risk guide"),
        ("collect the risks", "rate exposure", "agree on owners", "write the register"),
        Words(
            "risk",
            "RSK",
            ("supplier fails", "key person leaves", "late permit", "price rise"),
            ("likelihood rose", "no counter-measure", "impact is larger", "insured now"),
            "exposure",
            "appetite",
            500,
            50000,
        ),
        register,
        "covered share",
        (
            pick("threshold_flagged", 3, "20", "10"),
            pick("rounding", 1, "2", "0"),
            pick("row_count", 2, "all", "flagged"),
            pick("each_row_has", 3, "owner", "reason", "status"),
            pick("has_section", 1, "assumptions", "risks"),
            pick("forbids_term", 2, "perfect", "guarantee", "roughly"),
            pick("signoff_present", 2, "quality lead", "manager"),
            pick("id_format", 2),
            pick("no_duplicates", 3, "id", "email"),
            pick("owner_assigned", 3),
            pick("deadline_present", 2),
        ),
    ),
    Family(
        "release_notes",
        "release notes",
        (
            "Describe the changes of the new version for its users.",
            "The new version is out; say what changed for users.",
            "List fixes and features of this version.",
        ),
        ("change list", "effort", "style guide"),
        ("select changes", "group them", "write the notes"),
        Words(
            "change",
            "CHG",
            ("export", "search", "login", "reports"),
            ("fixes a crash", "asked for by users", "removes an old option", "faster"),
            "effort",
            "planned effort",
            5,
            90,
            "h",
        ),
        register,
        "faster start",
        (
            pick("value_equals_input", 1, "open", "average"),
            pick("has_section", 3, "summary", "scope", "findings"),
            pick("contains_term", 2, "deviation", "baseline"),
            pick("row_count", 3, "top5", "all"),
            pick("max_words", 3, "120", "200"),
            pick("order_before", 2, "key points<notes", "options<decision"),
            pick("date_iso", 2),
            pick("signoff_present", 2, "quality lead", "manager"),
            pick("id_format", 3),
            pick("cites_resource", 2, "1", "3"),
            pick("next_step_present", 2),
        ),
    ),
    Family(
        "glossary_qa",
        "glossary check",
        (
            "Check the terms of the translated manual.",
            "Compare the translated terms with the approved ones.",
            "Find the terms in the manual that were translated wrongly.",
        ),
        ("terms", "counts", "style rules"),
        ("compare terms", "write the check"),
        Words(
            "term",
            "TRM",
            ("valve", "gasket", "torque", "housing"),
            ("two translations", "old spelling", "wrong gender", "not in the list"),
            "uses",
            "expected uses",
            5,
            400,
            "uses",
        ),
        register,
        "consistent terms",
        (
            pick("value_equals_input", 2, "largest", "open"),
            pick("row_count", 2, "flagged", "all"),
            pick("each_row_has", 3, "reason", "status"),
            pick("min_words", 1, "20", "50"),
            pick("forbids_term", 2, "obviously", "perfect"),
            pick("order_before", 2, "background<analysis", "timeline<impact"),
            pick("signoff_present", 2, "quality lead", "legal counsel"),
            pick("cites_resource", 2, "3", "1", "2"),
            pick("no_duplicates", 3, "id", "email"),
            pick("id_format", 2),
            pick("sorted_by", 3, "id", "amount"),
        ),
    ),
)
