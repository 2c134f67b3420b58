"""Families of sales and supply: one wide table, and a sheet of plans."""

from __future__ import annotations

from collections.abc import Sequence

from onward.rubrics.tasks.artefacts import Contact
from onward.rubrics.tasks.family import Family, pick
from onward.rubrics.tasks.inputs import Record, TaskInput, Words, policy, table


def wide_table(
    words: Words,
    records: Sequence[Record],
    contacts: Sequence[Contact],
    threshold: str,
    names: tuple[str, ...],
) -> tuple[TaskInput, ...]:
    columns = {
        "id": "id", "product": "name", "date": "date", words.amount: "amount", words.expected: "expected",
        "tax": "tax", "rate": "rate", "owner": "owner", "email": "email", "status": "status",
        "reason": "reason",
    }  # fmt: skip
    newest = sorted(records, key=lambda one: one.date, reverse=True)
    return (table("R1", names[0], words, columns, newest), policy("R2", names[1], words, threshold, contacts))


FAMILIES = (
    Family(
        "weekly_sales_summary",
        "sales summary",
        (
            "Sum up the sales of the week for the regional team.",
            "Write the weekly overview of sales with the largest orders.",
            "The regional team meets on Monday and wants last week's sales.",
        ),
        ("sales of the week", "sales targets"),
        ("add up the sales", "compare with targets", "write the summary"),
        Words(
            "order",
            "SO",
            ("desk lamps", "office chairs", "cable trays", "monitors"),
            ("campaign", "bulk order", "late delivery", "new customer"),
            "revenue",
            "target",
            200,
            9000,
        ),
        wide_table,
        "growth",
        (
            pick("sum_matches", 3, "total", "subtotal", "tax"),
            pick("value_equals_input", 2, "largest", "average", "open"),
            pick("unit_present", 2, "%", "EUR"),
            pick("row_count", 2, "top5", "all", "flagged"),
            pick("has_section", 2, "summary", "findings"),
            pick("max_words", 3, "120", "200"),
            pick("order_before", 1, "key points<notes", "background<analysis"),
            pick("currency_fmt", 2),
            pick("cites_resource", 3, "1", "2"),
            pick("sorted_by", 2, "amount", "date"),
            pick("next_step_present", 2),
        ),
    ),
    Family(
        "reorder_plan",
        "reorder plan",
        (
            "Plan which goods the warehouse orders again, and when.",
            "Work out what has to be ordered before stock runs out.",
            "The store manager needs the list of goods to order.",
        ),
        ("stock list", "reorder levels"),
        ("find low stock", "set quantities", "write the plan"),
        Words(
            "good",
            "SKU",
            ("screws", "gloves", "batteries", "filters"),
            ("demand rose", "supplier is slow", "season begins", "safety stock used"),
            "stock value",
            "level",
            50,
            3000,
        ),
        wide_table,
        "weight to order",
        (
            pick("value_equals_input", 2, "open", "average", "largest"),
            pick("threshold_flagged", 3, "20", "10", "5"),
            pick("unit_present", 2, "kg", "EUR"),
            pick("each_row_has", 2, "owner", "reason"),
            pick("row_count", 3, "flagged", "all"),
            pick("forbids_term", 2, "roughly", "asap", "guarantee"),
            pick("date_iso", 2),
            pick("id_format", 2),
            pick("cites_resource", 2, "1", "2"),
            pick("deadline_present", 3),
            pick("owner_assigned", 2),
        ),
    ),
    Family(
        "vendor_comparison",
        "vendor comparison",
        (
            "Compare the offers of the vendors and propose one.",
            "The buyer has several offers and needs a proposal.",
            "Rate the vendors by offer and delivery, then recommend.",
        ),
        ("vendor offers", "rating guide"),
        ("read the offers", "rate the vendors", "write the comparison"),
        Words(
            "offer",
            "OF",
            ("Kern Metals", "Sunrise Plastics", "Alba Logistics", "Fjord Cables"),
            ("short delivery", "cheaper by volume", "no certificate", "longer warranty"),
            "price",
            "list price",
            300,
            20000,
        ),
        wide_table,
        "delivery on time",
        (
            pick("value_equals_input", 3, "average", "largest"),
            pick("rounding", 2, "0", "2"),
            pick("has_section", 3, "recommendations", "risks"),
            pick("contains_term", 1, "baseline", "deviation"),
            pick("each_row_has", 1, "reason", "status"),
            pick("order_before", 3, "options<decision", "background<analysis"),
            pick("max_words", 2, "200", "300"),
            pick("pii_masked", 3, "phone", "email", "iban"),
            pick("cites_resource", 3, "1", "2"),
            pick("next_step_present", 2),
            pick("sorted_by", 1, "amount", "id"),
        ),
    ),
)
