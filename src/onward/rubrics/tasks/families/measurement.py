"""Families of measurement: readings, and their limits with the method."""

from __future__ import annotations

from collections.abc import Sequence

from onward.rubrics.tasks.artefacts import Contact
from onward.rubrics.tasks.family import Family, pick
from onward.rubrics.tasks.inputs import Record, TaskInput, Words, policy, table


def readings(
    words: Words,
    records: Sequence[Record],
    contacts: Sequence[Contact],
    threshold: str,
    names: tuple[str, ...],
) -> tuple[TaskInput, ...]:
    read = {
        "id": "id",
        "date": "date",
        words.amount: "amount",
        "tax": "tax",
        "rate": "rate",
        "status": "status",
    }
    source = {"id": "id", "source": "name", words.expected: "expected", "owner": "owner", "email": "email",
              "reason": "reason"}  # fmt: skip
    in_time = sorted(records, key=lambda one: one.date)
    return (
        table("R1", names[0], words, read, in_time),
        table("R2", names[1], words, source, records),
        policy("R3", names[2], words, threshold, contacts),
    )


FAMILIES = (
    Family(
        "lab_sample_log",
        "sample log",
        (
            "Log the samples of the laboratory with their results.",
            "Document the samples of the week and mark results beyond the limit.",
            "The laboratory hands over its samples to the customer.",
        ),
        ("readings", "limits", "test method"),
        ("enter the readings", "compare with limits", "write the log"),
        Words(
            "sample",
            "SMP",
            ("river water", "soil", "milk", "paint"),
            ("second test needed", "diluted", "seal was open", "near the limit"),
            "reading",
            "limit",
            20,
            500,
            "mg",
        ),
        readings,
        "mass tested",
        (
            pick("unit_present", 3, "kg", "%"),
            pick("threshold_flagged", 2, "5", "20", "10"),
            pick("rounding", 2, "2", "0"),
            pick("row_count", 3, "all", "flagged"),
            pick("each_row_has", 2, "status", "owner"),
            pick("max_words", 1, "200", "120"),
            pick("date_iso", 3),
            pick("signoff_present", 2, "quality lead", "manager"),
            pick("id_format", 3),
            pick("no_duplicates", 2, "id", "email"),
            pick("next_step_present", 2),
        ),
    ),
    Family(
        "etl_quality_report",
        "quality report",
        (
            "Report on the data that the nightly load brought.",
            "Say which feeds of the warehouse lost rows last night.",
            "The data team wants the state of every feed.",
        ),
        ("loads", "row targets", "load manual"),
        ("count rows", "compare with targets", "write the report"),
        Words(
            "feed",
            "FD",
            ("orders", "clicks", "stock", "payroll"),
            ("late file", "schema changed", "duplicates removed", "empty partition"),
            "loaded rows",
            "expected rows",
            100,
            9000,
            "rows",
        ),
        readings,
        "complete feeds",
        (
            pick("sum_matches", 3, "subtotal", "total"),
            pick("threshold_flagged", 3, "10", "5"),
            pick("value_equals_input", 1, "average", "open", "largest"),
            pick("has_section", 2, "findings", "recommendations"),
            pick("row_count", 2, "flagged", "all"),
            pick("max_words", 2, "200", "300"),
            pick("date_iso", 3),
            pick("no_duplicates", 3, "id", "email"),
            pick("cites_resource", 2, "1", "2"),
            pick("owner_assigned", 3),
            pick("deadline_present", 2),
        ),
    ),
    Family(
        "ab_readout",
        "readout",
        (
            "Report the outcome of the experiment on the shop page.",
            "Two versions of the page were tried; say which won.",
            "The product team awaits the result of its experiment.",
        ),
        ("measurements", "controls", "experiment plan"),
        ("compare variants", "test the difference", "write the readout"),
        Words(
            "segment",
            "AB",
            ("new visitors", "returning visitors", "mobile", "desktop"),
            ("novelty effect", "sample is small", "tracking gap", "campaign week"),
            "conversions",
            "control conversions",
            20,
            3000,
            "orders",
        ),
        readings,
        "uplift",
        (
            pick("value_equals_input", 3, "average", "largest"),
            pick("rounding", 2, "2", "0"),
            pick("unit_present", 2, "%", "h"),
            pick("has_section", 2, "assumptions", "findings"),
            pick("min_words", 2, "50", "20"),
            pick("order_before", 2, "background<analysis", "options<decision"),
            pick("forbids_term", 1, "guarantee", "perfect"),
            pick("signoff_present", 2, "manager", "quality lead"),
            pick("cites_resource", 3, "3", "1"),
            pick("next_step_present", 3),
            pick("owner_assigned", 2),
        ),
    ),
    Family(
        "sla_report",
        "service report",
        (
            "Report how well the help desk kept its promises.",
            "Show the customer which tickets took longer than agreed.",
            "The service contract asks for a report on tickets.",
        ),
        ("tickets", "agreed times", "service contract"),
        ("measure times", "find late tickets", "write the report"),
        Words(
            "ticket",
            "TCK",
            ("network", "printer", "mail", "accounts"),
            ("waited for parts", "wrong team", "reopened", "night shift"),
            "hours used",
            "hours agreed",
            5,
            80,
            "h",
        ),
        readings,
        "kept in time",
        (
            pick("value_equals_input", 3, "open", "largest", "average"),
            pick("threshold_flagged", 2, "20", "5"),
            pick("unit_present", 1, "%", "h"),
            pick("row_count", 3, "flagged", "all", "top5"),
            pick("has_section", 2, "recommendations", "summary"),
            pick("max_words", 2, "200", "120", "300"),
            pick("date_iso", 2),
            pick("signoff_present", 3, "manager", "quality lead"),
            pick("cites_resource", 3, "2", "1"),
            pick("deadline_present", 2),
            pick("sorted_by", 2, "amount", "date"),
        ),
    ),
)
