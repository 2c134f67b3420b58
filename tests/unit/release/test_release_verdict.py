"""The verdict on a validation: several suites, the two rules, what is not shown, what was not run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from release_world import FakeSuite, World

from onward.config import Settings, load
from onward.errors import ConfigError
from onward.ids import model_key
from onward.release import wording
from onward.release.adding import request_release
from onward.release.record import Model
from onward.release.validation import comparison
from onward.release.validation.verdict import Rules, judge, not_validated, validate
from onward.release.versions import note_human_score
from onward.suites.suite import ItemResult

POINT = Rules(("a",), regression="point")
INTERVAL = Rules(("a",))


def results(marks: str) -> list[ItemResult]:
    """``1`` solved, ``0`` not, ``-`` not judged by a fault of the judge, ``!`` by one of the policy."""
    return [
        ItemResult(
            f"t{n}",
            "k",
            None if mark in "-!" else float(mark),
            mark == "1",
            note="timed out" if mark == "!" else "",
            fault="judge" if mark == "-" else "policy",
        )
        for n, mark in enumerate(marks)
    ]


class Marks(FakeSuite):
    """Marks by (suite, digest), and a purpose by suite."""

    def __init__(self, marks: dict[tuple[str, str], str], **purposes: str) -> None:
        super().__init__({}, {})
        self.marks, self.purposes = marks, purposes

    async def purpose(self, name: str) -> Any:
        return self.purposes.get(name, "benchmark")

    async def run_suite(self, name: str, digest: str | None, *_: Any) -> list[ItemResult]:
        return results(self.marks[name, str(digest)])


def test_the_lower_end_decides_by_default_and_the_difference_by_the_seeds_rule() -> None:
    """One of 40 lost: -0.025. Of 40 items a model that loses 5 % loses at most one in 40 % of all runs
    (0.95^40 + 40 · 0.05 · 0.95^39), so nothing of the kind is excluded."""
    new, old = results("0" + "1" * 39), results("1" * 40)
    assert judge("a", new, old, POINT).verdict == "passed"
    assert judge("a", new, old, INTERVAL).verdict == "failed"


def test_few_items_without_a_difference_show_nothing_and_73_show_it() -> None:
    """A model that loses 5 % loses none of n items with a chance of 0.95^n: 0.86 of 3 items, 0.024 of 73."""
    found = judge("a", results("111"), results("111"), INTERVAL)
    assert (found.verdict, found.facts["needed"]) == ("not shown", 73)
    few = "3 items are too few to show that it is not worse: it takes about 73"
    assert found.facts["judged"] == (
        f"the lower end of the interval is below -0.05, the difference is not, {few}"
    )
    assert judge("a", results("1" * 72), results("1" * 72), INTERVAL).verdict == "not shown"
    assert judge("a", results("1" * 73), results("1" * 73), INTERVAL).verdict == "passed"


def test_equal_models_that_fail_for_want_of_items_are_told_how_many_it_takes() -> None:
    """15 won and 15 lost of 100. At a difference of -0.05 the likeliest share of lost items is
    (√(40² - 8 · 100 · 0.7875) + 40) / 400 = 0.17786, the variance 2 · 0.17786 - 0.0525 = 0.30322, and
    1.96² · 0.30322 / 0.05² = 465.9 items."""
    new, old = results("1" * 15 + "0" * 15 + "1" * 70), results("0" * 15 + "1" * 15 + "1" * 70)
    found = judge("a", new, old, INTERVAL)
    assert (found.verdict, found.facts["needed"]) == ("failed", 466)
    few = "100 items are too few to show that it is not worse: it takes about 466"
    assert found.facts["judged"].endswith(f"is below -0.05, the difference is not, {few}")
    assert few in wording.suite_failure("a", found.facts)
    worse = judge("a", results("0" * 10 + "1" * 90), results("1" * 100), INTERVAL)
    assert worse.verdict == "failed" and "needed" not in worse.facts


async def test_what_hardly_any_item_could_show_counts_for_no_improvement() -> None:
    """Judged: 2 of 10 items, both won. The other suite is equal, so the improvement is 0 and not 0.5."""
    marks = {
        ("a", "new"): "11--------",
        ("a", "old"): "00--------",
        ("b", "new"): "1" * 80,
        ("b", "old"): "1" * 80,
    }
    found = await validate("new", "old", Marks(marks), Rules(("a", "b")))
    assert (found["summary"]["suites"]["a"]["verdict"], found["improvement"]) == ("not shown", 0.0)


def test_zero_against_zero_is_not_shown() -> None:
    found = judge("a", results("0" * 20), results("0" * 20), INTERVAL)
    assert (found.verdict, found.facts["judged"]) == ("not shown", "neither model solves any item")


def test_an_item_without_a_judgement_leaves_both_sides() -> None:
    found = judge("a", results("-" + "1" * 99), results("1" * 100), INTERVAL)
    assert (found.verdict, found.facts["tasks"]) == ("passed", 99)
    assert found.facts["unscored"] == {
        "candidate": 1, "current": 0, "items": 1, "left_out": ["t0"], "failed": [], "failed_current": [],
    }  # fmt: skip
    assert judge("a", results("!" + "1" * 99), results("!" + "1" * 99), INTERVAL).facts["tasks"] == 99


def test_a_candidate_that_answers_nothing_on_its_hardest_items_has_failed_them() -> None:
    """It dies on 8 of 100, fewer than ``max_unscored``; left out, the other 92 would be equal."""
    new, old = results("!" * 8 + "1" * 92), results("1" * 100)
    found = judge("a", new, old, INTERVAL)
    assert (found.verdict, found.facts["difference"], found.facts["tasks"]) == ("failed", -0.08, 100)
    assert found.facts["failing"][0]["note"] == "not judged, so failed: timed out"
    (words,) = wording.item_notes(found.facts)
    assert words == (
        "8 items could not be judged for the candidate, which counts as failed: t0, t1, t2, t3, t4 and 3 more"
    )
    other = judge("a", old, new, INTERVAL)
    assert (other.verdict, other.facts["difference"]) == ("passed", 0.08), "the same holds for current"
    assert judge("a", results("!1"), results("01"), INTERVAL).facts["difference"] == 0, "both failed it"


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
    words = "b: success 0.00, current 1.00, difference -1.00 [-1.00, -0.02], limit -0.05, lost t0, t1, t2, t3"
    assert wording.why_not_released(found) == words


async def test_another_task_may_stop_a_release_and_never_counts_for_the_improvement() -> None:
    marks = {
        ("a", "new"): "1" * 20,
        ("a", "old"): "01" * 10,
        ("b", "new"): "1111",
        ("b", "old"): "0000",
    }
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


async def test_a_persons_score_is_in_the_entry_and_in_the_events_of_a_later_release() -> None:
    world = World(time_scale=0.01, validation={"suites": ["desk"]})
    await world.install()
    added = Model(model_id="mine", adapter_digest="d1", object_prefix="p", training_job_id="j", state="added")
    bus: Any = world.bus
    await bus.bucket("rl_models").create(model_key("mine"), added.dump())
    await note_human_score(bus, "mine", 0.8, clock=world.clock)
    await request_release(bus, "mine", clock=world.clock)
    await world.until(lambda: world.record.serving, sessions=0, seconds=1)
    event = next(one for one in world.deployed if one["metadata"]["event"] == "candidate")
    assert event["validation_results"]["human_eval_score"] == 0.8
    assert event["validation_results"]["benchmark_passed"]
    assert "human_evaluation" not in event["metadata"]["not_run"]
    stored = json.loads(bus.bucket("rl_models").data[model_key("mine")][0])
    assert stored["validation"]["human_eval_score"] == 0.8
    await note_human_score(bus, "mine", 0.6, clock=world.clock)
    await world.run(3)
    stored = json.loads(bus.bucket("rl_models").data[model_key("mine")][0])
    assert stored["validation"]["human_eval_score"] == 0.6, "the release leaves it as it is"


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
