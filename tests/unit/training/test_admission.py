"""DESIGN 7, "Data and policies": what is admitted besides the rows of the policy that serves."""

import json
from pathlib import Path
from typing import Any

import pytest
from scored_trajectories import KEY, freeze, sampling, task

from onward.errors import TrainingError
from onward.lm.tokens import rows_from_calls
from onward.training.data import admission, conversations, dataset
from onward.training.data.admission import AdmissionRules, ScoredTrajectory


def _with_text(item: ScoredTrajectory) -> ScoredTrajectory:
    for number, turn in enumerate(item.trajectory["turns"], 1):
        turn |= {"turn_id": number, "result": {"success": True}}
        turn["observation"] = {"type": "user_message", "content": "2 + 2?"}
        turn["action"]["raw_response"] = "4"
    return item


def test_rows_of_the_policy_before_are_admitted_only_when_asked_for_and_say_so(tmp_path: Path) -> None:
    scored = [
        task("new", sampling("d2")),
        task("old", sampling("d1")),
        task("older", sampling("d0")),
    ]
    frozen = freeze(tmp_path, scored, policy_digest="d2", older_digest="d1")
    assert [(line["trajectory_id"], line["staleness"]) for line in dataset.read(frozen.path)] == [
        ("new", 0),
        ("old", 1),
    ]
    assert frozen.excluded == {"other_policy": 1}
    with pytest.raises(TrainingError, match="2 other_policy"):
        freeze(tmp_path, scored, policy_digest="d2")


def test_a_trajectory_of_two_admitted_policies_is_still_mixed(tmp_path: Path) -> None:
    scored = [
        task("a", sampling("d2")),
        task("b", sampling("d2")),
        task("mixed", sampling("d2"), sampling("d1")),
    ]
    assert freeze(tmp_path, scored, policy_digest="d2", older_digest="d1").excluded == {"mixed_policies": 1}


def test_attempts_of_two_policies_are_never_one_group(tmp_path: Path) -> None:
    group: dict[str, Any] = {"context": {"group_id": "a"}}
    scored = [
        task("a1", sampling("d2"), **group),
        task("a2", sampling("d2"), success=False, **group),
        task("a3", sampling("d1"), **group),
    ]
    frozen = freeze(tmp_path, scored, policy_digest="d2", older_digest="d1", algorithm="grpo")
    kept = [line["trajectory_id"] for line in dataset.read(frozen.path)]
    assert kept == ["a1", "a2"] and frozen.excluded == {"group_of_one": 1}


def test_another_panel_seed_or_start_state_is_another_group() -> None:
    keys = {
        admission.group_key(context)
        for context in (
            {"group_id": "t"},
            {"group_id": "t", "panel_hash": "1"},
            {"group_id": "t", "panel_hash": "2"},
            {"group_id": "t", "panel_hash": "1", "seed": 3},
            {"group_id": "t", "start_state": "s"},
        )
    }
    assert len(keys) == 5 and "t" in keys
    assert admission.group_key({"panel_hash": "1"}) is None


@pytest.mark.parametrize(
    ("record", "algorithm", "remedy"),
    [
        (None, "ppo", "or train with dpo or sft"),
        ({"top_p": 0.9}, "ppo", "sample with top_p 1 and no top_k"),
        ({"top_k": 40}, "rloo", "sample with top_p 1 and no top_k"),
        ({"temperature": 0.0}, "reinforce", "temperature above 0"),
    ],
)
def test_a_policy_gradient_without_usable_tokens_fails_with_the_remedy(
    tmp_path: Path, record: dict[str, Any] | None, algorithm: str, remedy: str
) -> None:
    scored = [
        task(name, None if record is None else sampling(**record), context={"group_id": "g"})
        for name in ("a", "b")
    ]
    with pytest.raises(TrainingError, match=remedy) as caught:
        freeze(tmp_path, scored, algorithm=algorithm)
    assert caught.value.code == "DATA"


def test_groups_of_one_are_refused_by_group_methods_with_the_remedy(tmp_path: Path) -> None:
    scored = [task(name, sampling(), context={"group_id": name}) for name in ("a", "b")]
    with pytest.raises(TrainingError, match=r"2 group_of_one.*use reinforce or ppo"):
        freeze(tmp_path, scored, algorithm="rloo")


def test_preferences_take_text_and_truncated_support_but_no_void_or_forged_record(tmp_path: Path) -> None:
    scored = [
        _with_text(task("text", None)),
        _with_text(task("top-p", sampling(top_p=0.9), success=False)),
        _with_text(task("other", sampling("d9"))),
        _with_text(task("void", sampling(tokens_void=True, token_ids=[], logprobs=[], prompt_ids=[]))),
        _with_text(task("forged", {**sampling(), "token_ids": [9, 9]})),
    ]
    frozen = freeze(tmp_path, scored, algorithm="dpo")
    lines = {line["trajectory_id"]: line for line in dataset.read(frozen.path)}
    assert lines["text"]["messages"] == [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
    ]
    assert set(lines) == {"text", "top-p", "other"} and "calls" in lines["top-p"]
    assert frozen.excluded == {"tokens_void": 1, "bad_signature": 1}


def test_rewards_per_turn_keep_their_sum_when_a_turn_has_no_tokens() -> None:
    """Turn 2 was another model's: what it earned goes to the next turn of ours."""
    item = task("a", sampling(), None, sampling(), None)
    for number, turn in enumerate(item.trajectory["turns"], 1):
        turn["turn_id"] = number
    item.reward["metadata"]["dense"] = [
        {"turn_id": n, "reward": r} for n, r in ((1, 0.1), (2, 0.2), (3, 0.3), (4, 0.1))
    ]
    rules = AdmissionRules({"d1": 0}, KEY, {}, False, dense=True)
    made = admission.line(item, rules)
    assert isinstance(made, dict)
    assert made["turn_rewards"] == pytest.approx([0.1, 0.6])
    assert sum(made["turn_rewards"]) == pytest.approx(made["raw_total"])
    del item.reward["metadata"]["dense"]
    assert admission.line(item, rules) == "no_turn_rewards"


def test_tokens_of_a_voided_call_are_never_kept_since_nobody_signed_them() -> None:
    """A record that says void is not verified; tokens that it carries all the same must not be trained on."""
    forged = {**sampling(), "tokens_void": True, "token_ids": [666], "logprobs": [-1.0]}
    made = admission.line(task("a", sampling(), forged), AdmissionRules({"d1": 0}, KEY))
    assert isinstance(made, dict)
    assert [call["token_ids"] for call in made["calls"]] == [[3, 4], []]
    assert [call["logprobs"] for call in made["calls"]] == [[-0.5, -0.25], []]


def test_rewards_per_turn_fit_the_turns_that_rows_keep_when_a_call_goes_on_from_a_voided_one() -> None:
    void = sampling(tokens_void=True, token_ids=[], logprobs=[], prompt_ids=[])
    item = task("a", sampling(), void, sampling(continues=void["generation_id"]), sampling())
    for number, turn in enumerate(item.trajectory["turns"], 1):
        turn["turn_id"] = number
    item.reward["metadata"]["dense"] = [{"turn_id": n, "reward": n / 10} for n in (1, 2, 3, 4)]
    made = admission.line(item, AdmissionRules({"d1": 0}, KEY, {}, False, dense=True))
    assert isinstance(made, dict)
    assert made["turn_rewards"] == pytest.approx([0.1, 0.9])


def test_a_line_holds_no_more_than_the_job_needs(tmp_path: Path) -> None:
    frozen = freeze(tmp_path, [task("a", sampling()), task("b", sampling())])
    line = json.loads(frozen.path.read_text().splitlines()[0])
    assert set(line) == {
        "trajectory_id", "task_id", "session_id", "task_type", "group_key", "outcome", "success",
        "unparsable", "raw_total", "staleness", "calls",
    }  # fmt: skip


_MASK = {"constraint": {"kind": "tool_calls", "hash": "0" * 16}}


@pytest.mark.parametrize("shaped", [_MASK, {"presence_penalty": 0.5}, {"logit_bias": {"5": 1.0}}])
def test_tokens_of_a_grammar_a_penalty_or_a_bias_are_context_and_never_learned_from(
    tmp_path: Path, shaped: dict[str, Any]
) -> None:
    first = sampling(token_ids=[7, 8], logprobs=[-0.1, -0.2], **shaped)
    second = sampling(continues=first["generation_id"], prompt_ids=[3], token_ids=[9], logprobs=[-0.3])
    scored = [task("both", first, second), task("all", sampling(**shaped)), task("none", sampling())]
    frozen = freeze(tmp_path, scored)
    assert frozen.excluded == {"shaped_logits": 1}
    lines = {line["trajectory_id"]: line for line in dataset.read(frozen.path)}
    assert admission.masked(lines["both"]["calls"]) == {first["generation_id"]}
    (row,) = rows_from_calls(conversations.calls_of(lines["both"]))
    prompt = len(first["prompt_ids"])
    assert row.ids == [*first["prompt_ids"], 7, 8, 3, 9]
    assert row.sampled == [False] * (prompt + 3) + [True]
    assert row.logprobs[-1] == -0.3 and row.stretches() == [(1, 1)]


@pytest.mark.parametrize("drawn", [{"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 40}])
def test_how_a_call_that_is_context_alone_was_drawn_excludes_no_free_call_beside_it(
    tmp_path: Path, drawn: dict[str, Any]
) -> None:
    forced = sampling(**_MASK, **drawn)
    scored = [
        task("both", sampling(), forced),
        task("free", sampling(), sampling(**drawn)),
        task("a", sampling()),
    ]
    frozen = freeze(tmp_path, scored)
    lines = {line["trajectory_id"]: line for line in dataset.read(frozen.path)}
    assert set(lines) == {"both", "a"}
    assert frozen.excluded == {"greedy" if "temperature" in drawn else "truncated_support": 1}
    assert admission.masked(lines["both"]["calls"]) == {forced["generation_id"]}


def test_preferences_learn_from_shaped_answers_too(tmp_path: Path) -> None:
    scored = [_with_text(task(name, sampling(**_MASK), context={"group_id": "a"}, success=name == "good"))
              for name in ("good", "bad")]  # fmt: skip
    frozen = freeze(tmp_path, scored, algorithm="dpo")
    calls = [call for line in dataset.read(frozen.path) for call in line["calls"]]
    assert len(calls) == 2 and all("trains" not in call for call in calls)
