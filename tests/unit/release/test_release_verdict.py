"""The verdict on a validation: several suites, the two rules, what is not shown, what was not run."""

from __future__ import annotations

from typing import Any

import pytest
from release_world import FakeSuite, World

from onward.config import Settings, load
from onward.errors import ConfigError
from onward.release import wording
from onward.release.validation import comparison
from onward.release.validation.verdict import Rules, judge, not_validated, validate
from onward.suites.suite import ItemResult

POINT = Rules(("a",), regression="point")
INTERVAL = Rules(("a",))


def results(marks: str) -> list[ItemResult]:
    """``1`` solved, ``0`` not, ``-`` not judged."""
    return [
        ItemResult(f"t{n}", "k", None if mark == "-" else float(mark), mark == "1")
        for n, mark in enumerate(marks)
    ]


class Marks(FakeSuite):
    """Marks by (suite, digest), and a purpose by suite."""

    def __init__(self, marks: dict[tuple[str, str], str], **purposes: str) -> None:
        super().__init__({}, {})
        self.marks, self.purposes = marks, purposes

    async def purpose(self, name: str) -> Any:
        return self.purposes.get(name, "benchmark")

    async def run_suite(self, name: str, digest: str | None) -> list[ItemResult]:
        return results(self.marks[name, str(digest)])


def test_the_lower_end_decides_by_default_and_the_difference_by_the_seeds_rule() -> None:
    """One of 40 lost: -0.025. Draws with three or more of it (mean 1) are 8 %, so the end is below -0.05."""
    new, old = results("0" + "1" * 39), results("1" * 40)
    assert judge("a", new, old, POINT).verdict == "passed"
    assert judge("a", new, old, INTERVAL).verdict == "failed"
    assert judge("a", old, old, INTERVAL).verdict == "passed"


def test_equal_models_that_fail_for_want_of_items_are_told_how_many_it_takes() -> None:
    """15 won and 15 lost of 100: 1.96² · 0.3 / 0.05² = 460.99 items."""
    new, old = results("1" * 15 + "0" * 15 + "1" * 70), results("0" * 15 + "1" * 15 + "1" * 70)
    found = judge("a", new, old, INTERVAL)
    assert (found.verdict, found.facts["needed"]) == ("failed", 461)
    few = "100 items are too few to show that it is not worse: it takes about 461"
    assert found.facts["judged"].endswith(f"is below -0.05, the difference is not, {few}")
    assert few in wording.suite_failure("a", found.facts)
    worse = judge("a", results("0" * 10 + "1" * 90), results("1" * 100), INTERVAL)
    assert worse.verdict == "failed" and "needed" not in worse.facts
    assert comparison.differing_share(100, -0.05) == pytest.approx(0.0651, abs=1e-4)


async def test_what_hardly_any_item_could_show_counts_for_no_improvement() -> None:
    """Judged: 2 of 10 items, both won. The other suite is equal, so the improvement is 0 and not 0.5."""
    marks = {("a", "new"): "11--------", ("a", "old"): "00--------", ("b", "new"): "11", ("b", "old"): "11"}
    found = await validate("new", "old", Marks(marks), Rules(("a", "b")))
    assert (found["summary"]["suites"]["a"]["verdict"], found["improvement"]) == ("not shown", 0.0)


def test_zero_against_zero_is_not_shown() -> None:
    found = judge("a", results("0" * 20), results("0" * 20), INTERVAL)
    assert (found.verdict, found.facts["judged"]) == ("not shown", "neither model solves any item")


def test_an_item_without_a_judgement_leaves_both_sides() -> None:
    found = judge("a", results("-111111111"), results("1111111111"), INTERVAL)
    assert (found.verdict, found.facts["tasks"]) == ("passed", 9)
    assert found.facts["unscored"] == {"candidate": 1, "current": 0, "items": 1}


def test_too_many_items_without_a_judgement_show_nothing_and_fail_if_the_candidates_alone() -> None:
    assert judge("a", results("--11111111"), results("--11111111"), INTERVAL).verdict == "not shown"
    assert judge("a", results("--11111111"), results("1111111111"), INTERVAL).verdict == "failed"


async def test_a_regression_in_one_suite_fails_under_its_name_however_good_the_others_are() -> None:
    host = Marks(
        {("a", "new"): "1" * 20, ("a", "old"): "0" * 20, ("b", "new"): "0" * 4, ("b", "old"): "1" * 4}
    )
    found = await validate("new", "old", host, Rules(("a", "b")))
    assert (found["verdict"], found["passed"]) == ("failed", False)
    assert found["improvement"] == 0.0, "each suite has the same weight: (1 - 1) / 2"
    words = "b: success 0.00, current 1.00, difference -1.00 [-1.00, -1.00], limit -0.05, lost t0, t1, t2, t3"
    assert wording.why_not_released(found) == words


async def test_another_task_may_stop_a_release_and_never_counts_for_the_improvement() -> None:
    marks = {("a", "new"): "11", ("a", "old"): "10", ("b", "new"): "1111", ("b", "old"): "0000"}
    found = await validate("new", "old", Marks(marks), Rules(("a",), ("b",)))
    assert (found["verdict"], found["improvement"]) == ("passed", 0.5)
    assert found["summary"]["suites"]["b"]["role"] == "other"
    marks["b", "new"], marks["b", "old"] = "0000", "1111"
    found = await validate("new", "old", Marks(marks), Rules(("a",), ("b",)))
    assert found["verdict"] == "failed" and found["results"]["performance_regression"]


async def test_a_safety_suite_may_only_stop() -> None:
    marks = {("a", "new"): "00", ("a", "old"): "00", ("s", "new"): "1111", ("s", "old"): "0000"}
    found = await validate("new", "old", Marks(marks, s="safety"), Rules(("a", "s")))
    assert (found["verdict"], found["improvement"]) == ("not shown", 0.0)
    assert found["results"]["safety_checks_passed"] and not found["results"]["benchmark_passed"]


@pytest.mark.parametrize(("required", "passed"), [(False, True), (True, False)])
async def test_without_a_suite_nothing_is_validated_and_only_required_rejects(
    required: bool, passed: bool
) -> None:
    found = await validate("new", "old", FakeSuite({}, {}), Rules((), required=required))
    assert (found["verdict"], found["passed"]) == ("not validated", passed)
    assert not any(found["results"].values())
    assert bool(wording.why_not_released(found)) is required


def test_the_sign_test_is_mcnemars_exact_test() -> None:
    """Five only the candidate's, one only current's: 2 · (1 + 6) / 64."""
    pairs, _ = comparison.pair(results("1111101"), results("0000011"))
    found = comparison.compare(pairs)
    assert (found.better, found.worse, found.sign_p) == (5, 1, pytest.approx(14 / 64))


def test_what_moved_is_named_and_no_suite_is_the_default() -> None:
    assert Settings.model_validate({}).validation.suites == []
    with pytest.raises(ConfigError, match=r"validation\.suites"):
        load(environ={}, overrides={"release": {"suite_size": 10}})


async def test_a_release_without_a_suite_says_so_in_event_and_record() -> None:
    world = World(time_scale=0.01, validation={"suites": []})
    await world.install()
    await world.job("job-1", "d1")
    await world.until(lambda: len(world.records) > 1 and world.record.serving, sessions=0, seconds=1)
    assert (world.record.validation or {})["verdict"] == "not validated"
    event = next(one for one in world.deployed if one["metadata"]["event"] == "candidate")
    assert event["metadata"]["validation_verdict"] == "not validated"
    assert not event["validation_results"]["benchmark_passed"]
    assert not_validated("x", INTERVAL)["improvement"] == 0.0
