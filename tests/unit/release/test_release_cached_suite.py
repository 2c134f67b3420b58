"""Each policy plays the suite once, and no result outlives what it depends on."""

from __future__ import annotations

from release_world import FakeSuite

from onward.release.validation.trial import POLICIES, CachedSuite
from onward.release.validation.verdict import Rules, validate

RULES = Rules(("desk",))


def suites(**success: float) -> tuple[FakeSuite, CachedSuite]:
    inner = FakeSuite(success=dict(success), refusals={}, base="base-1")
    return inner, CachedSuite(inner)


async def test_the_candidate_of_one_release_is_not_played_again_as_current_of_the_next() -> None:
    inner, suite = suites(v0=0.2, v1=0.5, v2=0.6)
    first = await validate("v1", "v0", suite, RULES)
    second = await validate("v2", "v1", suite, RULES)
    assert inner.runs == 3  # v0, v1, v2
    assert (first["current"], first["candidate"]) == (0.2, 0.5)
    assert (second["current"], second["candidate"]) == (0.5, 0.6)


async def test_another_base_model_makes_another_policy_of_the_same_adapter() -> None:
    inner, suite = suites(v0=0.2)
    before = await suite.run_suite("desk", "v0")
    inner.base, inner.success["v0"] = "base-2", 0.9
    after = await suite.run_suite("desk", "v0")
    assert sum(task.success for task in before) == 20
    assert sum(task.success for task in after) == 90


async def test_only_the_last_policies_are_kept_and_the_least_recent_goes_first() -> None:
    inner, suite = suites()
    for number in range(POLICIES):
        await suite.run_suite("desk", f"v{number}")
    await suite.run_suite("desk", "v0")  # asked for again: v1 is the least recent now
    await suite.run_suite("desk", "new")
    assert inner.runs == POLICIES + 1
    await suite.run_suite("desk", "v0")
    assert inner.runs == POLICIES + 1
    await suite.run_suite("desk", "v1")
    assert inner.runs == POLICIES + 2


async def test_what_a_caller_does_to_a_result_stays_with_the_caller() -> None:
    _, suite = suites(v0=0.2)
    (await suite.run_suite("desk", "v0")).clear()
    (await suite.run_checks("v0")).clear()
    assert len(await suite.run_suite("desk", "v0")) == 100
    assert await suite.run_checks("v0")


async def test_a_policy_is_verified_and_loaded_again_each_time() -> None:
    inner, suite = suites(v0=0.2)
    await suite.run_suite("desk", "v0")
    await suite.prepare("v0", "prefix", "manifest")
    assert inner.committed == {"v0": "manifest"}
    await suite.finish()
    assert not inner.held


async def test_nothing_is_remembered_of_an_engine_that_does_not_name_its_base() -> None:
    inner, suite = suites(v0=0.2)
    inner.base = None
    await suite.run_suite("desk", "v0")
    await suite.run_suite("desk", "v0")
    assert inner.runs == 2
