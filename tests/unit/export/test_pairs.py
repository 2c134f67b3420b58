"""Preference pairs: who is compared with whom, worked out by hand, and what TRL makes of them."""

from __future__ import annotations

import json
from typing import Any

from trajectory_store import TOOLS, reward, trajectory

from onward.export.pairs import Pairs, Rules
from onward.export.records import Record


def attempt(name: str, completion: float, answer: str | None = None, **changes: Any) -> Record:
    """An attempt at the task ``g``. Its raw total is a tenth of its completion, so that the two differ."""
    document = trajectory(name, answer=answer or f"Answer {name}.", **({"group_id": "g"} | changes))
    return Record(document, reward(name, completion / 10, success=completion == 1.0, completion=completion))


def named(pairs: Pairs, records: list[Record]) -> list[tuple[str, str, float]]:
    made = pairs.of_group(records)
    return [(one["chosen_id"], one["rejected_id"], round(one["margin"], 6)) for one in made]


def test_the_widest_differences_come_first_and_equal_attempts_are_no_pair() -> None:
    pairs = Pairs(Rules(per_task=4))
    group = [attempt("a", 1.0), attempt("b", 0.5), attempt("c", 0.0), attempt("d", 0.5)]
    made = named(pairs, group)
    assert made[0] == ("a", "c", 1.0)
    assert {pair[:2] for pair in made[1:]} <= {("a", "b"), ("a", "d"), ("b", "c"), ("d", "c")}
    assert len(made) == 4 and all(width == 0.5 for *_, width in made[1:])
    assert len(named(Pairs(Rules(per_task=99)), group)) == 5
    assert named(Pairs(Rules(margin=0.5)), group) == [("a", "c", 1.0)]
    assert named(Pairs(Rules(min_reward=0.6, per_task=1)), group) == [("a", "c", 1.0)]


def test_only_attempts_at_the_same_prompt_are_compared() -> None:
    other = attempt("b", 0.0)
    other.trajectory["turns"][0]["observation"]["content"]["messages"][1]["content"] = "What is 17 times 24?"
    pairs = Pairs(Rules())
    assert named(pairs, [attempt("a", 1.0), other]) == []
    assert pairs.left_out == {"alone": 2}
    other = attempt("b", 0.0)
    other.trajectory["task_context"]["start_state"] = "another"
    assert named(Pairs(Rules()), [attempt("a", 1.0), other]) == []


def test_the_same_answer_is_no_pair_and_an_unscored_attempt_no_zero() -> None:
    pairs = Pairs(Rules())
    same = [attempt("a", 1.0, "391"), attempt("b", 0.0, "391"), Record(attempt("c", 0.0).trajectory)]
    assert named(pairs, same) == []
    assert +pairs.left_out == {"in_no_pair": 2, "unscored": 1}


def test_raw_totals_are_compared_where_they_sum_the_same_components() -> None:
    one, two, three = attempt("a", 1.0), attempt("b", 0.5), attempt("c", 0.0)
    assert three.reward is not None
    del three.reward["reward_components"]["efficiency"]
    pairs = Pairs(Rules(return_from="raw_total"))
    assert named(pairs, [one, two, three]) == [("a", "b", 0.05)]
    assert +pairs.left_out == {"alone": 1}


def test_a_pair_in_trls_form() -> None:
    (pair,) = Pairs(Rules()).of_group([attempt("a", 1.0), attempt("b", 0.0)])
    assert [message["role"] for message in pair["prompt"]] == ["system", "user"]
    assert [message["role"] for message in pair["chosen"]] == ["assistant", "tool", "assistant"]
    assert pair["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"expression": "17 * 23"}
    assert (pair["chosen"][2]["content"], pair["rejected"][2]["content"]) == ("Answer a.", "Answer b.")
    assert json.loads(pair["tools"]) == TOOLS
