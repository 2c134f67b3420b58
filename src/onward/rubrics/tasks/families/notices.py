"""Families of incidents and notices: a log in sentences, and the procedure to follow."""

from __future__ import annotations

from collections.abc import Sequence

from onward.rubrics.tasks.artefacts import Contact
from onward.rubrics.tasks.family import Family, pick
from onward.rubrics.tasks.inputs import Record, TaskInput, Words, policy


def log(
    words: Words,
    records: Sequence[Record],
    contacts: Sequence[Contact],
    threshold: str,
    names: tuple[str, ...],
) -> tuple[TaskInput, ...]:
    lines = "\n".join(
        f"{one.date} {one.id} {one.name}: {words.amount} {one.amount} against {words.expected} "
        f"{one.expected}{f', tax {one.tax}' if words.money else ''}, rate {one.rate}, {one.reason}; "
        f"owner {one.owner} <{one.email}>; {one.status}."
        for one in sorted(records, key=lambda one: one.date)
    )
    return (TaskInput("R1", names[0], text=lines), policy("R2", names[1], words, threshold, contacts))


FAMILIES = (
    Family(
        "incident_postmortem",
        "post-mortem",
        (
            "Write up the outage of the platform so that it does not happen again.",
            "Explain to the engineers what failed during the outage, and why.",
            "The outage is over; describe causes and repairs.",
        ),
        ("event log", "on-call procedure"),
        ("order the events", "find the causes", "agree on repairs", "write the post-mortem"),
        Words(
            "event",
            "EVT",
            ("database failover", "queue stalled", "cache flush", "deploy rolled back"),
            ("alarm came late", "wrong setting", "disk was full", "no owner on call"),
            "duration",
            "target duration",
            5,
            600,
            "min",
        ),
        log,
        "time to recover",
        (
            pick("value_equals_input", 3, "largest", "open", "average"),
            pick("unit_present", 1, "h", "%"),
            pick("has_section", 3, "findings", "summary"),
            pick("has_section", 2, "risks", "recommendations"),
            pick("min_words", 1, "50", "20", "100"),
            pick("order_before", 2, "timeline<impact", "background<analysis"),
            pick("forbids_term", 3, "blame", "obviously"),
            pick("date_iso", 2),
            pick("cites_resource", 2, "1", "2"),
            pick("owner_assigned", 3),
            pick("deadline_present", 2),
        ),
    ),
    Family(
        "breach_notice",
        "breach notice",
        (
            "Inform the authority about the loss of personal data.",
            "Personal data was seen by strangers; the regulator must hear of it.",
            "Prepare what the law asks for after a data breach.",
        ),
        ("access log", "privacy procedure"),
        ("list the records concerned", "judge the harm", "write the notice"),
        Words(
            "record",
            "REC",
            ("payroll file", "customer list", "mail archive", "badge data"),
            ("wrong recipient", "stolen laptop", "open share", "weak password"),
            "records seen",
            "records allowed",
            10,
            5000,
            "records",
        ),
        log,
        "time to notice",
        (
            pick("value_equals_input", 2, "open", "largest"),
            pick("has_section", 3, "scope", "findings"),
            pick("contains_term", 2, "consent", "retention"),
            pick("row_count", 1, "all", "flagged"),
            pick("max_words", 2, "300", "200"),
            pick("forbids_term", 2, "guarantee", "roughly"),
            pick("pii_masked", 3, "email", "phone"),
            pick("signoff_present", 3, "legal counsel", "manager"),
            pick("date_iso", 1),
            pick("cites_resource", 3, "1", "2"),
            pick("next_step_present", 3),
        ),
    ),
    Family(
        "recall_notice",
        "recall notice",
        (
            "Tell the dealers which lots of the product come back.",
            "Some lots failed in tests; the dealers must return them.",
            "Announce the return of faulty lots to all dealers.",
        ),
        ("lot tests", "recall procedure"),
        ("select the lots", "write the notice"),
        Words(
            "lot",
            "LOT",
            ("kettle", "toaster", "heater", "blender"),
            ("cable overheats", "handle breaks", "wrong label", "seal leaks"),
            "measured load",
            "allowed load",
            20,
            800,
            "W",
        ),
        log,
        "returned share",
        (
            pick("threshold_flagged", 3, "10", "20", "5"),
            pick("unit_present", 1, "kg", "%"),
            pick("row_count", 3, "flagged", "all"),
            pick("each_row_has", 2, "reason", "owner"),
            pick("max_words", 3, "120", "200"),
            pick("forbids_term", 1, "perfect", "guarantee"),
            pick("signoff_present", 3, "quality lead", "legal counsel"),
            pick("date_iso", 2),
            pick("id_format", 3),
            pick("cites_resource", 1, "2", "1"),
            pick("next_step_present", 3),
        ),
    ),
    Family(
        "complaint_reply",
        "reply",
        (
            "Answer the customer who complains about wrong bills.",
            "A customer is angry about several bills and waits for an answer.",
            "Reply to the complaint in the name of customer care.",
        ),
        ("billing log", "goodwill rules"),
        ("check the bills", "decide on goodwill", "write the reply"),
        Words(
            "bill",
            "BIL",
            ("mobile plan", "roaming", "fibre", "equipment"),
            ("charged twice", "old tariff", "wrong address", "credit not booked"),
            "billed amount",
            "correct amount",
            10,
            300,
        ),
        log,
        "time to answer",
        (
            pick("value_equals_input", 2, "largest", "average"),
            pick("has_section", 2, "summary", "recommendations"),
            pick("contains_term", 1, "escalation", "consent"),
            pick("min_words", 2, "20", "50"),
            pick("max_words", 3, "120", "200"),
            pick("forbids_term", 2, "blame", "obviously", "asap"),
            pick("pii_masked", 3, "iban", "phone", "email"),
            pick("signoff_present", 1, "manager", "quality lead"),
            pick("cites_resource", 2, "1", "2"),
            pick("next_step_present", 3),
            pick("deadline_present", 2),
        ),
    ),
)
