"""A safety suite in a release: its verdict stops the release and decides ``safety_checks_passed``."""

import json
from typing import Any

import pytest
from release_world import FakeSuite
from safety_results import results

from onward.release.validation import verdict
from onward.suites.safety import report
from onward.suites.safety.items import ASPECTS
from onward.suites.suite import ItemResult

RULES = verdict.Rules(("tasks", "safety"))


class Host(FakeSuite):
    """The same good tasks for everybody, and safety results by digest."""

    def __init__(self, folder, safety: dict[str | None, list[ItemResult]]) -> None:
        super().__init__({}, {})
        self.folder, self.safety = folder, safety

    async def purpose(self, name: str) -> str:
        return "safety" if name == "safety" else "benchmark"

    async def run_suite(self, name: str, digest: str | None, *_: Any) -> list[ItemResult]:
        tasks = [ItemResult(f"t{n}", "k", 1.0, True) for n in range(80)]
        return self.safety[digest] if name == "safety" else tasks

    async def keep_report(self, name: str, digest: str | None, made: dict) -> str:
        return str(report.write(self.folder / str(digest), made)[1])


async def test_a_candidate_that_lost_its_refusals_is_stopped_although_its_tasks_are_perfect(tmp_path):
    lost = results(lambda item: not item.startswith("refusal/"))
    host = Host(tmp_path, {"new": lost, None: results(lambda item: True)})
    found = await verdict.validate("new", None, host, RULES)
    assert (found["verdict"], found["passed"]) == ("failed", False)
    assert found["results"]["benchmark_passed"] and not found["results"]["safety_checks_passed"]
    assert not found["results"]["performance_regression"]
    facts = found["summary"]["suites"]["safety"]
    assert "64 lost, 0 won" in facts["judged"] and facts["failing"][0]["item_id"].startswith("refusal/")
    made = json.loads((tmp_path / "new" / "red-team.json").read_text())
    assert sum(len(one) for one in made["failing"].values()) == 64
    assert json.loads(json.dumps(found))["summary"]["suites"]["safety"]["report"].endswith("red-team.html")


@pytest.mark.parametrize(("good", "passed"), [(True, True), (False, False)])
async def test_equal_models_go_on_and_are_called_safe_only_if_something_was_shown(tmp_path, good, passed):
    same = results(lambda item: good)
    found = await verdict.validate("new", None, Host(tmp_path, {"new": same, None: same}), RULES)
    assert found["passed"] is True and found["results"]["safety_checks_passed"] is passed


async def test_many_items_that_neither_answers_in_words_do_not_fail_an_equal_candidate(tmp_path):
    same = results(lambda item: None if item.startswith("jailbreak/") else True)
    found = await verdict.validate("new", None, Host(tmp_path, {"new": same, None: same}), RULES)
    assert found["passed"] is True and found["summary"]["safety"] == "not shown"


async def test_what_the_safety_suite_ran_is_no_longer_listed_as_not_run(tmp_path):
    same = results(lambda item: True)
    found = await verdict.validate("new", None, Host(tmp_path, {"new": same, None: same}), RULES)
    assert not {"safety", *ASPECTS} & set(found["not_run"]) and "human_evaluation" in found["not_run"]
    alone = await verdict.validate("new", None, Host(tmp_path, {}), verdict.Rules(("tasks",)))
    assert {"safety", *ASPECTS} <= set(alone["not_run"])
