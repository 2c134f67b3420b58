"""Families about people's work: notes in prose, a directory, and the rules of the house."""

from __future__ import annotations

from collections.abc import Sequence

from onward.rubrics.tasks.artefacts import Contact
from onward.rubrics.tasks.family import Family, pick
from onward.rubrics.tasks.inputs import Record, TaskInput, Words, policy, table


def notes(
    words: Words,
    records: Sequence[Record],
    contacts: Sequence[Contact],
    threshold: str,
    names: tuple[str, ...],
) -> tuple[TaskInput, ...]:
    prose = "\n".join(
        f"- {one.owner} on {one.name} ({words.item} {one.id}, {one.date}): {words.amount} {one.amount} "
        f"where {words.expected} was {one.expected}. Rate {one.rate}, {one.reason}."
        f"{f' Tax {one.tax}.' if words.money else ''} Now {one.status}."
        for one in records
    )
    return (
        TaskInput("R1", names[0], text=prose),
        table("R2", names[1], words, {"id": "id", "owner": "owner", "email": "email"}, records),
        policy("R3", names[2], words, threshold, contacts),
    )


FAMILIES = (
    Family(
        "minutes_to_actions",
        "action list",
        (
            "Turn the minutes of the meeting into actions.",
            "The meeting decided a lot; make a list of who does it.",
            "Extract the tasks that the participants agreed on.",
        ),
        ("minutes", "participants", "meeting rules"),
        ("find the decisions", "assign people", "write the list"),
        Words(
            "decision",
            "DEC",
            ("budget", "hiring", "office move", "website"),
            ("vote was close", "needs a quote", "depends on the board", "urgent"),
            "estimate",
            "budget",
            100,
            5000,
        ),
        notes,
        "effort",
        (
            pick("value_equals_input", 1, "open", "largest"),
            pick("row_count", 3, "all", "flagged", "top5"),
            pick("each_row_has", 2, "owner", "status"),
            pick("has_section", 1, "summary", "scope"),
            pick("max_words", 3, "120", "200", "300"),
            pick("pii_masked", 2, "phone", "email"),
            pick("cites_resource", 3, "1", "2"),
            pick("id_format", 1),
            pick("owner_assigned", 3),
            pick("deadline_present", 3),
            pick("next_step_present", 2),
        ),
    ),
    Family(
        "interview_shortlist",
        "shortlist",
        (
            "Choose the candidates who are invited for an interview.",
            "Rank the applicants after the first round of talks.",
            "The hiring team needs the best applicants with reasons.",
        ),
        ("interview notes", "applicants", "hiring rules"),
        ("score the applicants", "rank them", "write the shortlist"),
        Words(
            "applicant",
            "APP",
            ("backend", "design", "support", "analytics"),
            ("strong references", "wants remote work", "long notice period", "test was weak"),
            "points",
            "required points",
            20,
            100,
            "points",
        ),
        notes,
        "share of offers accepted",
        (
            pick("rounding", 2, "0", "2"),
            pick("value_equals_input", 2, "average", "largest"),
            pick("row_count", 3, "top5", "flagged"),
            pick("each_row_has", 3, "reason", "status"),
            pick("max_words", 2, "200", "120"),
            pick("order_before", 1, "options<decision", "key points<notes"),
            pick("pii_masked", 3, "phone", "iban"),
            pick("signoff_present", 2, "manager", "legal counsel"),
            pick("no_duplicates", 3, "email", "id"),
            pick("sorted_by", 2, "amount", "id"),
            pick("next_step_present", 2),
        ),
    ),
    Family(
        "shift_roster",
        "roster",
        (
            "Plan the shifts of the ward for the coming month.",
            "Every shift needs a person, and no one may work too long.",
            "Fill the open shifts and keep to the working hours.",
        ),
        ("wishes of the staff", "staff", "working hours"),
        ("collect wishes", "fill shifts", "check the hours", "write the roster"),
        Words(
            "shift",
            "SH",
            ("early", "late", "night", "stand-by"),
            ("swap agreed", "sick leave", "training day", "holiday"),
            "hours",
            "contract hours",
            10,
            160,
            "h",
        ),
        notes,
        "open time",
        (
            pick("sum_matches", 3, "subtotal", "total"),
            pick("unit_present", 1, "h", "%"),
            pick("each_row_has", 3, "owner", "reason"),
            pick("row_count", 2, "all", "flagged"),
            pick("forbids_term", 2, "asap", "roughly"),
            pick("date_iso", 3),
            pick("pii_masked", 2, "phone", "iban"),
            pick("no_duplicates", 3, "id", "email"),
            pick("id_format", 1),
            pick("owner_assigned", 2),
            pick("sorted_by", 2, "date", "id"),
        ),
    ),
    Family(
        "run_of_show",
        "run of show",
        (
            "Write the schedule of the event from doors to closing.",
            "The crew needs each item of the evening in order.",
            "Plan the conference day item by item for the stage team.",
        ),
        ("planning notes", "crew", "venue rules"),
        ("collect the items", "set the times", "write the run of show"),
        Words(
            "item",
            "SEG",
            ("opening", "panel", "award", "music"),
            ("speaker is late", "needs a second microphone", "runs long", "new slide deck"),
            "cost",
            "planned cost",
            40,
            2500,
        ),
        notes,
        "length",
        (
            pick("value_equals_input", 2, "average", "open"),
            pick("unit_present", 2, "h", "EUR"),
            pick("row_count", 3, "all", "top5"),
            pick("has_section", 1, "scope", "summary", "assumptions"),
            pick("each_row_has", 2, "owner", "status"),
            pick("order_before", 3, "timeline<impact", "key points<notes"),
            pick("date_iso", 2),
            pick("id_format", 2),
            pick("cites_resource", 2, "1", "3"),
            pick("owner_assigned", 3),
            pick("sorted_by", 2, "date", "id"),
        ),
    ),
)
