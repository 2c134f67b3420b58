"""The shipped tasks: each item's reference solution scores 1 and a wrong one 0; judges see each fault."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from chat_server import ChatServer, text

from onward.errors import EngineError, NotFoundError
from onward.suites.finding import Sources, find
from onward.suites.suite import Endpoint
from onward.suites.tasks import data_analysis, research_synthesis
from onward.suites.tasks.code_generation import CodeGeneration, program, same
from onward.suites.tasks.shipped import TASKS, ShippedSuite, task
from onward.suites.tasks.task import Item, Judgement, Messages, rows


async def judgement_of(item: Item, answers: tuple[str, ...]) -> Judgement:
    turns = count()

    async def complete(messages: Messages) -> str:
        return answers[next(turns)]

    return await item.play([dict(message) for message in item.messages], complete)


@pytest.mark.parametrize("name", list(TASKS))
async def test_each_reference_solution_scores_one_and_each_wrong_one_zero(name: str) -> None:
    items = task(name).items()
    assert len(items) >= 40
    assert len({item.item_id for item in items}) == len(items)
    assert len({item.messages[-1]["content"] for item in items}) == len(items)
    judged = await asyncio.gather(
        *(judgement_of(item, answers) for item in items for answers in (item.reference, item.wrong))
    )
    for item, right, wrong in zip(items, judged[::2], judged[1::2], strict=True):
        assert (right.score, right.success) == (1.0, True), (item.item_id, right)
        assert (wrong.score, wrong.success) == (0.0, False), (item.item_id, wrong)


async def test_no_single_answer_solves_more_than_a_few_items() -> None:
    for name in ("data_analysis", "research_synthesis"):
        items = task(name).items()
        for guess in ("3", "Brook", "yes", "[D1] [D2]", "8 12 25 84 91 1931 1958"):
            solved = [(await judgement_of(item, (guess,))).success for item in items]
            assert sum(solved) <= 4, (name, guess)


def test_answers_of_tables_are_those_counted_by_hand() -> None:
    by_hand = {
        "shop-2": "76", "shop-3": "cheese", "shop-4": "5", "sales-1": "62", "sales-3": "14", "team-5": "Omar",
        "team-4": "34", "rain-1": "40", "rain-3": "2", "orders-2": "95", "orders-4": "75", "orders-5": "30",
        "planets-3": "Belos", "planets-4": "Dorn", "servers-1": "1200", "servers-4": "30", "library-2": "2",
        "library-4": "20", "library-5": "550",
    }  # fmt: skip
    answers = {item.item_id: item.reference[0] for item in data_analysis.DataAnalysis().items()}
    assert {name: answers[name] for name in by_hand} == by_hand


@pytest.mark.parametrize(
    ("answer", "expected", "others", "right"),
    [
        ("The total is 1,200 requests.", "1200", set(), True),
        ("500 + 300 = 800", "1200", set(), False),
        ("12 and 30", "30", set(), True),
        ("30 of 12", "30", set(), False),
        ("It is Cheese.", "cheese", {"tea", "bread"}, True),
        ("cheese or tea", "cheese", {"tea", "bread"}, False),
        ("cheesecake", "cheese", {"tea"}, False),
        ("5.00", "5", set(), True),
    ],
)
def test_an_answer_about_a_table_is_read_as_a_person_would(
    answer: str, expected: str, others: set[str], right: bool
) -> None:
    assert data_analysis.judge(answer, expected, others).success is right


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("310 kg [D5] and 205 kg [D6].", 1.0),
        ("310 kg and 205 kg [D5, D6].", 1.0),
        ("310 kg [d6] and 205 kg [D5].", 1.0),
        ("310 and 205", 0.5),
        ("310 and 205 [D5]", 0.5),
        ("310 and 205 [D5] [D6] [D2]", 0.5),
        ("310 [D5] [D6]", 0.0),
        ("3105 and 205 [D5] [D6]", 0.0),
        ("310, 205 or 910 [D5] [D6]", 0.0),
    ],
)
def test_a_synthesis_needs_all_facts_no_foreign_one_and_exactly_its_sources(
    answer: str, score: float
) -> None:
    row = next(row for row in rows("research_synthesis") if row["id"] == "batteries-weights")
    assert research_synthesis.judge(answer, row).score == score


def test_a_document_number_is_no_fact() -> None:
    row = next(row for row in rows("research_synthesis") if row["id"] == "harsk-price")
    assert research_synthesis.judge("[D8] [D13]", row).score == 0.0


def test_every_document_that_is_asked_for_is_shown_and_exists() -> None:
    corpus = {row["id"]: row["text"] for row in rows("research_corpus")}
    for row in rows("research_synthesis"):
        assert set(row["sources"]) <= set(row["shown"]) <= set(corpus)
        sources = " ".join(corpus[one] for one in row["sources"])
        assert all(any(way in sources for way in ways) for ways in row["facts"]), row["id"]


def test_code_is_taken_from_fences_and_from_a_plain_answer() -> None:
    assert program("Sure:\n```python\ndef f(): pass\n```\nDone.") == "def f(): pass\n"
    assert program("```\na = 1\n```\nand\n```py\nb = 2\n```") == "a = 1\n\nb = 2\n"
    assert program("def f(): pass") == "def f(): pass"
    assert program("```python\ndef f(): pass") == "def f(): pass"  # cut at the limit of an answer


def test_true_is_not_one_and_rounding_is_no_error() -> None:
    assert same(0.1 + 0.2, 0.3) and same(3.0, 3) and same([1, [2]], [1, [2]])
    assert not same(True, 1) and not same(1, True) and not same("1", 1) and not same([1], [1, 1])


@pytest.mark.parametrize(
    "answer",
    [
        "import sys\nprint([5, -3, 0])\nsys.exit()",
        "import os, sys\nsys.stdout.write('[5]')\nsys.stdout.flush()\nos._exit(0)",
        "class Equal(int):\n    def __eq__(self, other): return True\ndef add(a, b): return Equal(1)",
        "def add(a, b): return float('nan')",
        "def add(a, b): return [].__class__",
        "def add(a, b: ",
        "",
    ],
)
async def test_a_program_that_does_not_compute_scores_zero(answer: str) -> None:
    add = next(item for item in CodeGeneration().items() if item.item_id == "add")
    assert (await judgement_of(add, (answer,))).score == 0.0


@contextmanager
def answering(reply: str | int) -> Iterator[tuple[ChatServer, Endpoint]]:
    with ChatServer(lambda _: text(reply) if isinstance(reply, str) else reply).running() as server:
        yield server, Endpoint(server.url, "m", "key")


async def test_a_suite_asks_every_item_once_with_its_own_seed_and_repeats_itself() -> None:
    suite = ShippedSuite(task("data_analysis"), 8, at_once=2)
    seen: list[str] = []
    with answering("cheese") as (server, policy):
        first = await suite.run(policy, seed=3, on_item=lambda result: seen.append(result.item_id))
        second = await suite.run(policy, seed=3)
    assert first == second and sorted(seen) == sorted(result.item_id for result in first)
    assert len(first) == suite.size == 8
    assert {result.kind for result in first} == {"lookup", "comparison", "count", "calculation"}
    assert [result.item_id for result in first if result.success] == ["shop-3", "shop-5"]
    assert first[0].transcript[-1] == {"role": "assistant", "content": "cheese"}
    seeds = [body["seed"] for body in server.requests]
    assert sorted(seeds[:8]) == sorted(seeds[8:]) and len(set(seeds)) == 8
    assert {body["max_tokens"] for body in server.requests} == {64}


async def test_an_endpoint_that_fails_ends_the_suite() -> None:
    with answering(500) as (_, policy), pytest.raises(EngineError):
        await ShippedSuite(task("research_synthesis"), 4, at_once=1).run(policy, seed=0)


async def test_suites_are_found_by_name_and_by_alias() -> None:
    sources = Sources(items=5)
    for name, real in (
        ("code_gen", "code_generation"),
        ("research", "research_synthesis"),
        *zip(TASKS, TASKS, strict=True),
    ):
        suite = await find(name, sources)
        assert (suite.name, suite.size, suite.purpose) == (real, 5, "benchmark")
    with pytest.raises(NotFoundError, match="choose one of code_generation"):
        task("cooking")


def test_the_digest_changes_with_the_task_and_with_the_number_of_items() -> None:
    suites = [ShippedSuite(task(name), size) for name in TASKS for size in (5, None)]
    assert len({suite.digest() for suite in suites}) == len(suites)
    assert all(len(suite.digest()) == 64 for suite in suites)
    assert ShippedSuite(task("tool_usage")).digest() == ShippedSuite(task("tool_usage")).digest()
