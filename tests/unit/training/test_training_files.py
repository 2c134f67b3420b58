"""Files of one's own: every form, the newest reward, and one sentence for what cannot be read."""

import json
from pathlib import Path
from typing import Any

import pytest
from scored_trajectories import sampling, task

from onward.errors import ConfigError, TrainingError
from onward.training.data import files


def _file(folder: Path, *records: Any, name: str = "data.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def _trajectory(name: str, *samplings: Any, **changes: Any) -> dict[str, Any]:
    return dict(task(name, *samplings, **changes).trajectory)


def test_rewards_in_records_of_their_own_find_their_trajectory_and_the_newest_counts(tmp_path: Path) -> None:
    def reward(revision: int, completion: float) -> dict[str, Any]:
        outcome = {"completion": completion, "success": completion == 1.0}
        metadata = {"revision": revision, "outcome": outcome, "raw_total": completion / 2}
        return {"trajectory_id": "a", "timestamp": "2026-01-01T00:00:00Z", "reward_components": {},
                "metadata": metadata}  # fmt: skip

    path = _file(tmp_path, reward(2, 1.0), _trajectory("a", sampling()), reward(1, 0.0), reward(0, 0.5))
    (line,), excluded = files.read([path], "ppo")
    assert (line["outcome"], line["raw_total"], line["success"]) == (1.0, 0.5, True)
    assert not excluded


def test_without_a_reward_the_told_outcome_counts_and_silence_is_unscored(tmp_path: Path) -> None:
    told = {**_trajectory("a", sampling()), "metadata": {"outcome": {"status": "completed_successfully"}}}
    half = {
        **_trajectory("b", sampling()),
        "metadata": {"outcome": {"status": "partial_completion", "completion_percentage": 40}},
    }
    silent = _trajectory("c", sampling())
    lines, excluded = files.read([_file(tmp_path, told, half, silent)], "reinforce", max_unscored_share=0.5)
    assert [(line["outcome"], line["success"]) for line in lines] == [(1.0, True), (0.4, None)]
    assert excluded == {"unscored": 1}
    with pytest.raises(TrainingError, match=r"1 of 3 trajectories are unscored.*in files give each a reward"):
        files.read([_file(tmp_path, told, half, silent)], "reinforce")


def test_conversations_and_pairs_are_text(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    path = _file(
        tmp_path, {"messages": said, "reward": 1}, {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}
    )
    lines, _ = files.read([path], "dpo")
    assert [line["outcome"] for line in lines] == [1.0, 1.0, 0.0]
    assert lines[1]["group_key"] == lines[2]["group_key"] != lines[0]["group_key"]
    assert lines[2]["messages"][-1] == {"role": "assistant", "content": "5"}


def test_a_conversation_without_a_reward_is_a_demonstration_for_sft_and_unscored_for_the_rest(
    tmp_path: Path,
) -> None:
    """It was taken for a success: dpo would have raised it against every attempt that somebody scored."""
    said = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    scored = [{"messages": said, "reward": n % 2, "group": "g"} for n in range(4)]
    path = _file(tmp_path, {"messages": said, "group": "g"}, *scored)
    assert [line["outcome"] for line in files.read([path], "sft")[0]] == [1, 0, 1, 0, 1]
    for algorithm, behaviour in (("dpo", "recorded"), ("rloo", "recompute")):
        lines, excluded = files.read([path], algorithm, behaviour=behaviour)
        assert [line["outcome"] for line in lines] == [0, 1, 0, 1] and excluded == {"unscored": 1}


def test_a_success_without_a_reward_is_the_reward(tmp_path: Path) -> None:
    """A conversation that says that it failed is no example to imitate."""
    said = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    records = [{"messages": said, "success": told, "group": "a"} for told in (False, True, 0, 1)]
    for algorithm in ("sft", "dpo"):
        lines, excluded = files.read([_file(tmp_path, *records)], algorithm)
        assert [line["outcome"] for line in lines] == [line["raw_total"] for line in lines] == [0, 1, 0, 1]
        assert [line["success"] for line in lines] == [False, True, False, True] and not excluded
    (graded,), _ = files.read([_file(tmp_path, {"messages": said, "success": False, "reward": 0.5})], "sft")
    assert (graded["outcome"], graded["success"]) == (0.5, False)


def test_case_18_files_that_hold_a_remnant_of_what_was_sampled_are_refused(tmp_path: Path) -> None:
    void = {"tokens_void": True, "token_ids": [], "logprobs": [], "prompt_ids": []}
    told = {"metadata": {"outcome": {"status": "failed"}}}
    path = _file(
        tmp_path,
        {**_trajectory("a", sampling(), sampling(**void)), **told},
        {**_trajectory("b", sampling(**void)), **told},
    )
    with pytest.raises(TrainingError, match=r"2 of 3 sampled answers"):
        files.read([path], "reinforce")
    assert files.read([path], "reinforce", max_masked_share=0.7)[1] == {"tokens_void": 1}


def test_text_is_left_out_of_a_policy_gradient_and_counted(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path = _file(tmp_path, {"messages": said, "reward": 1})
    assert files.read([path], "ppo") == ([], {"no_tokens": 1})
    assert len(files.read([path], "ppo", behaviour="recompute")[0]) == 1


def test_work_of_two_policies_is_not_one_policys(tmp_path: Path) -> None:
    outcome = {"metadata": {"outcome": {"status": "failed"}}}
    path = _file(
        tmp_path,
        {**_trajectory("a", sampling("d1")), **outcome},
        {**_trajectory("b", sampling("d2")), **outcome},
    )
    with pytest.raises(TrainingError, match="work of 2 policies"):
        files.read([path], "rloo")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("{not json}\n", "line 1, is not JSON"),
        ("[1]", "record 1, is a int"),
        ('{"a": 1}\n', "is no trajectory, reward, conversation or pair"),
        ('{"messages": "hello"}\n', "not a list of"),
        ('{"messages": [], "reward": "high"}\n', "reward that is no number"),
        ('{"trajectory_id": "t", "turns": []}\n', "as published"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        files.read([path], "sft")
    assert "data.jsonl" in str(caught.value) or "'t'" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no file .*none\.jsonl: give JSON or JSON lines\."):
        files.read([tmp_path / "none.jsonl"], "sft")
