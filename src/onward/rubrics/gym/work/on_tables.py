"""Operations on tables: clean, merge, filter, join, derive, flag, rank, summarise, mask, assign, schedule."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta

from onward.rubrics.gym.files import Requirement
from onward.rubrics.gym.files.cells import Row, aggregate, evaluate, iso_date, matches, money, number
from onward.rubrics.gym.files.formats import write_table
from onward.rubrics.gym.parts import Task
from onward.rubrics.gym.work.operation import Job, declare

Wanted = Iterator[Requirement]


def _write(job: Job, rows: list[Row]) -> bytes:
    return write_table(rows, rows[0] if rows else job.table()[0] if job.table() else ())


def _out(task: Task) -> str:
    return task.outputs[0]


def clean(job: Job) -> bytes:
    """One row per ``key``, dates in ISO form."""
    rows: dict[str, Row] = {}
    for row in job.table():
        rows.setdefault(row[job.given["key"]], {name: iso_date(cell) for name, cell in row.items()})
    return _write(job, list(rows.values()))


def _clean(task: Task) -> Wanted:
    key, file = task.arguments["key"], _out(task)
    yield Requirement.of(file, "keeps_all", column=key, source=task.inputs[0], where="")
    yield Requirement.of(file, "unique", column=key)
    for column in task.arguments.get("dates", ()):
        yield Requirement.of(file, "iso_dates", column=column)


declare("clean", clean, _clean)


def merge(job: Job) -> bytes:
    """Rows of every input, below each other."""
    return _write(job, [row for place in range(len(job.task.inputs)) for row in job.table(place)])


def _merge(task: Task) -> Wanted:
    for source in task.inputs:
        yield Requirement.of(_out(task), "keeps_all", column=task.arguments["key"], source=source, where="")


declare("merge", merge, _merge)


def select(job: Job) -> bytes:
    """Rows that satisfy ``where``."""
    return _write(job, [row for row in job.table() if matches(job.given["where"], row)])


def _select(task: Task) -> Wanted:
    given = {"source": task.inputs[0], "where": task.arguments["where"]}
    yield Requirement.of(_out(task), "keeps_all", column=task.arguments["key"], **given)
    yield Requirement.of(_out(task), "only", **given)


declare("filter", select, _select)


def join(job: Job) -> bytes:
    """Columns ``add`` of the second table, found by ``key``."""
    key, second = job.given["key"], job.table(1)
    known = {row[key]: row for row in reversed(second)}
    return _write(job, [
        row | {name: known[row[key]][name] if row[key] in known else "" for name in job.given["add"]}
        for row in job.table()
    ])  # fmt: skip


def _join(task: Task) -> Wanted:
    first, second = task.inputs[:2]
    key = task.arguments["key"]
    for column in task.arguments["add"]:
        yield Requirement.of(_out(task), "looked_up", column=column, key=key, source=second)
    yield Requirement.of(_out(task), "keeps_all", column=key, source=first, where="")


declare("join", join, _join)


def derive(job: Job) -> bytes:
    """A new column ``column``: ``formula`` over the others, with two decimals."""
    column, formula = job.given["column"], job.given["formula"]
    return _write(job, [row | {column: money(evaluate(formula, row))} for row in job.table()])


def _derive(task: Task) -> Wanted:
    given = task.arguments
    yield Requirement.of(_out(task), "computed", column=given["column"], formula=given["formula"])
    yield Requirement.of(_out(task), "two_decimals", column=given["column"])


declare("derive", derive, _derive)


def flag(job: Job) -> bytes:
    """A new column ``column``: yes for rows that satisfy ``where``, else no."""
    column, where = job.given["column"], job.given["where"]
    return _write(job, [row | {column: "yes" if matches(where, row) else "no"} for row in job.table()])


def _flag(task: Task) -> Wanted:
    given = task.arguments
    yield Requirement.of(_out(task), "flagged", column=given["column"], where=given["where"])


declare("flag", flag, _flag)


def rank(job: Job) -> bytes:
    """The ``rows`` rows with the largest ``by``, the largest first."""
    return _write(
        job, sorted(job.table(), key=lambda row: -number(row[job.given["by"]]))[: job.given["rows"]]
    )


def _rank(task: Task) -> Wanted:
    given = task.arguments
    yield Requirement.of(_out(task), "sorted_by", column=given["by"])
    yield Requirement.of(_out(task), "row_count", rows=given["rows"], source=task.inputs[0])


declare("rank", rank, _rank)


def summarise(job: Job) -> bytes:
    """One row for each value of ``by``, with the aggregate ``value`` in ``column``."""
    by, value, rows = job.given["by"], job.given["value"], job.table()
    groups = sorted({row[by] for row in rows})
    return write_table([
        {by: one, job.given["column"]: money(aggregate(value, [row for row in rows if row[by] == one]))}
        for one in groups
    ])  # fmt: skip


def _summarise(task: Task) -> Wanted:
    given, source = task.arguments, task.inputs[0]
    yield Requirement.of(_out(task), "keeps_all", column=given["by"], source=source, where="")
    yield Requirement.of(_out(task), "group_sums", **given, source=source)


declare("summarise", summarise, _summarise)


def masked(text: str) -> str:
    """Returns a contact of which no person can be reached: first letter and domain, or first digits."""
    head, at, domain = text.partition("@")
    return f"{head[:1]}***{at}{domain}" if at else f"{text[:3]} ***"


def mask(job: Job) -> bytes:
    """Columns ``columns`` with personal contacts hidden."""
    return _write(
        job, [row | {name: masked(row[name]) for name in job.given["columns"]} for row in job.table()]
    )


def _mask(task: Task) -> Wanted:
    for column in task.arguments["columns"]:
        yield Requirement.of(_out(task), "masked", column=column)


declare("mask", mask, _mask)


def assign(job: Job) -> bytes:
    """Columns ``owner`` (people of ``roles`` in turn) and ``due`` (``every`` days from ``start``)."""
    owners = [job.person(role) for role in job.given["roles"]]
    start, every = date.fromisoformat(job.given["start"]), int(job.given.get("every", 1))
    return _write(job, [
        row | {
            "owner": owners[place % len(owners)],
            "due": (start + timedelta(days=every * (place + 1))).isoformat(),
        }
        for place, row in enumerate(job.table())
    ])  # fmt: skip


def _assign(task: Task) -> Wanted:
    yield Requirement.of(_out(task), "filled", column="owner")
    yield Requirement.of(_out(task), "iso_dates", column="due")


declare("assign", assign, _assign)


def schedule(job: Job) -> bytes:
    """A plan of the rows in order: column ``days`` is the length of each, from ``start`` on."""
    day, rows = date.fromisoformat(job.given["start"]), []
    for row in job.table():
        end = day + timedelta(days=max(1, round(number(row[job.given["days"]]))))
        rows.append(row | {"start": day.isoformat(), "end": end.isoformat()})
        day = end
    return _write(job, rows)


def _schedule(task: Task) -> Wanted:
    yield Requirement.of(_out(task), "in_order")
    yield Requirement.of(_out(task), "ends_by", date=task.arguments["until"])


declare("schedule", schedule, _schedule)
