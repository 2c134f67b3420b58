"""A policy that writes rubrics gives the reward of a domain without a program that judges."""

from __future__ import annotations

from reward_documents import trajectory, turn

from onward.rubrics.policy.episodes import Player
from onward.rubrics.trajectories import Rubrics
from onward.rubrics.trajectories.engine import ChecksRubric, checks_named
from onward.rubrics.trajectories.written import RubricWriter, in_this_process

CHECKS = ["has_section(summary)", "min_words(20)", "date_iso", "owner_assigned", "forbids_term(obviously)"]
ANSWER = """# Minutes

We met for an hour, and spoke about the budget of the next year and the people whom we need for it.

## Actions

| action | owner |
|---|---|
| call the bank | Ada |
"""
HOLDS = {
    "has_section(summary)": 0.0, "min_words(20)": 1.0, "date_iso": 0.0, "owner_assigned": 1.0,
    "forbids_term(obviously)": 1.0,
}  # fmt: skip


async def test_a_trained_policy_weighs_the_checks_of_a_task_that_it_never_saw(player: Player) -> None:
    writer = RubricWriter(in_this_process(player))
    engine = Rubrics([(frozenset(), ChecksRubric("minutes", checks_named(CHECKS), writer))])
    item = trajectory(turns=[turn(1, output=ANSWER)])
    found = await engine.result(item)
    assert found is not None and found.unknown == () and 3 <= len(found.criteria) <= 7
    assert found.criteria == {name: HOLDS[name] for name in found.criteria}
    weighed = sum(found.weights[name] * HOLDS[name] for name in found.criteria)
    assert abs(found.score - weighed) < 1e-9 and abs(sum(found.weights.values()) - 1) < 1e-9
    assert await engine.result(item) == found
