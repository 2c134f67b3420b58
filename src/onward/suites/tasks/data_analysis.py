"""The task ``data_analysis``: questions about small tables. A program computes each answer from the table."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from onward.suites.tasks.task import Complete, Item, Judgement, Messages, ask, digest_of, rows

_SYSTEM = "You answer questions about a table. Give the answer only."
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_NAMES = {"value": "lookup", "argmax": "comparison", "argmin": "comparison", "count": "count"}
_OTHER = "calculation"


class DataAnalysis:
    """Questions of four kinds: lookup, comparison, count, calculation."""

    name = "data_analysis"
    max_tokens = 64

    def items(self) -> Sequence[Item]:
        return list(_items())

    async def check(self) -> None:
        """Needs nothing."""

    def digest(self) -> str:
        return digest_of("data_analysis", data=["data_analysis"])


def compute(table: Sequence[Mapping[str, str]], question: Mapping[str, Any]) -> str:
    """Returns the answer to a question of the shipped form, as text without needless digits."""
    where = question.get("where", {})
    chosen = [row for row in table if all(row[column] == value for column, value in where.items())]
    match question["op"]:
        case "count":
            return str(len(chosen))
        case "value":
            return chosen[0][question["column"]]
        case "argmax" | "argmin" as op:
            best = max if op == "argmax" else min
            return best(chosen, key=lambda row: float(row[question["column"]]))[question["of"]]
        case op:
            total = math.fsum(float(row[question["column"]]) for row in chosen)
            return f"{total / len(chosen) if op == 'mean' else total:g}"


def judge(answer: str, expected: str, alternatives: set[str]) -> Judgement:
    """Judges an answer. A number must be the last one that it has; a name must stand there, and none of the
    table's other names of that column."""
    if _NUMBER.fullmatch(expected):
        found = _NUMBER.findall(_THOUSANDS.sub("", answer))
        right = bool(found) and math.isclose(float(found[-1]), float(expected), abs_tol=0.005)
    else:
        right = _has(answer, expected) and not any(_has(answer, one) for one in alternatives - {expected})
    return Judgement(float(right), f"The answer is {expected}.")


def _has(answer: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", answer, re.IGNORECASE) is not None


def _items() -> Iterator[Item]:
    for row in rows("data_analysis"):
        table = list(csv.DictReader(row["table"].splitlines()))
        for number, (request, question) in enumerate(row["questions"]):
            expected = compute(table, question)
            names = (
                {line[question.get("of", question.get("column", ""))] for line in table}
                if (not _NUMBER.fullmatch(expected))
                else set()
            )
            yield Item(
                f"{row['id']}-{number}",
                _NAMES.get(question["op"], _OTHER),
                (
                    {"role": "system", "content": _SYSTEM},
                    {"role": "user", "content": f"{row['table']}\n\n{request}"},
                ),
                (expected,),
                ("I do not know.",),
                partial(_play, expected=expected, alternatives=names),
            )


async def _play(
    messages: Messages, complete: Complete, *, expected: str, alternatives: set[str]
) -> Judgement:
    return judge(await ask(messages, complete), expected, alternatives)
