"""Each row that is trained on is admitted by rule; each refusal is counted under its name."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from scored_trajectories import freeze, sampling, task

from onward.errors import TrainingError
from onward.training.data import dataset


def test_refusals_are_counted_by_reason_and_never_trained(tmp_path: Path) -> None:
    forged = {**sampling(), "token_ids": [9, 9]}
    frozen = freeze(
        tmp_path,
        [
            task("good-1", sampling()),
            task("good-2", sampling(), success=False),
            task("unscored", sampling(), rewarded=False),
            task("text only", None),
            task("other", sampling("d2")),
            task("mixed", sampling("d1"), sampling("d2")),
            task("void", sampling(tokens_void=True, token_ids=[], logprobs=[], prompt_ids=[])),
            task("top-p", sampling(top_p=0.9)),
            task("top-k", sampling(top_k=50)),
            task("forged", forged),
        ],
    )
    assert frozen.excluded == {
        "unscored": 1,
        "no_tokens": 1,
        "other_policy": 1,
        "mixed_policies": 1,
        "tokens_void": 1,
        "truncated_support": 2,
        "bad_signature": 1,
    }
    kept = [(line["trajectory_id"], line["outcome"]) for line in dataset.read(frozen.path)]
    assert kept == [("good-1", 1.0), ("good-2", 0.25)]


def _void(**changes: Any) -> dict[str, Any]:
    return sampling(tokens_void=True, token_ids=[], logprobs=[], prompt_ids=[], **changes)


def test_case_18_a_job_that_would_train_on_a_remnant_of_what_was_sampled_fails(tmp_path: Path) -> None:
    """Case 18 (rllm#352): the fallback masked everything and the run trained on nothing."""
    gone = _void()
    scored = [
        task("a", sampling(), gone, sampling(continues=gone["generation_id"])),  # 2 of 3 are masked
        task("b", sampling(), success=False),
        task("c", _void(), _void()),  # 2 of 2, excluded as tokens_void
    ]
    frozen = freeze(tmp_path, scored, max_masked_share=0.7)
    assert (frozen.calls, frozen.masked_calls) == (6, 4) and frozen.excluded == {"tokens_void": 1}
    with pytest.raises(
        TrainingError, match=r"4 of 6 sampled answers .* training\.max_masked_share"
    ) as caught:
        freeze(tmp_path, scored)
    assert caught.value.code == "DATA"


def test_case_18_does_not_concern_what_learns_from_text(tmp_path: Path) -> None:
    scored = [task(name, sampling(), _void(), _void(), _void()) for name in ("a", "b")]
    assert freeze(tmp_path, scored, algorithm="sft").samples == 2


def test_the_dataset_says_which_answers_could_not_be_parsed(tmp_path: Path) -> None:
    bad = task("bad", sampling(), success=False, unparsable=True)
    frozen = freeze(tmp_path, [task("good", sampling()), bad])
    assert [line["unparsable"] for line in dataset.read(frozen.path)] == [False, True]


def test_an_unscored_trajectory_is_not_a_zero_and_too_many_fail_the_job(tmp_path: Path) -> None:
    scored = [
        task("a", sampling()),
        task("b", sampling()),
        task("c", sampling(), rewarded=False),
    ]
    assert [line["outcome"] for line in dataset.read(freeze(tmp_path, scored).path)] == [1.0, 1.0]
    with pytest.raises(TrainingError, match="1 of 3 trajectories are unscored") as caught:
        freeze(tmp_path, scored, max_unscored_share=0.2)
    assert caught.value.code == "DATA"


def test_work_that_nobody_judged_is_left_out_and_fails_no_job(tmp_path: Path) -> None:
    unjudged = task("c", sampling(), rewarded=False)
    unjudged.trajectory["metadata"] = {"capture": {"source": "gateway", "closed": "answer"}}
    scored = [task("a", sampling()), task("b", sampling()), unjudged]
    frozen = freeze(tmp_path, scored, max_unscored_share=0.2)
    assert frozen.excluded == {"no_outcome": 1}
    assert [line["outcome"] for line in dataset.read(frozen.path)] == [1.0, 1.0]


def test_nothing_to_train_on_says_what_was_excluded(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="2 other_policy"):
        freeze(tmp_path, [task("a", sampling("d2")), task("b", sampling("d2"))])


def test_a_voided_call_leaves_the_others_of_its_trajectory(tmp_path: Path) -> None:
    void = sampling(tokens_void=True, token_ids=[], logprobs=[], prompt_ids=[])
    frozen = freeze(tmp_path, [task("a", sampling(), void), task("b", sampling())])
    calls = dataset.read(frozen.path)[0]["calls"]
    assert [len(call["token_ids"]) for call in calls] == [2, 0]


def test_the_file_is_named_by_its_content(tmp_path: Path) -> None:
    scored = [task("a", sampling()), task("b", sampling())]
    first, again = freeze(tmp_path, scored), freeze(tmp_path, scored)
    assert first.sha256 == again.sha256
    assert json.loads(first.path.read_text().splitlines()[0])["calls"][0]["token_ids"] == [3, 4]


def test_a_replayed_generation_record_trains_once(tmp_path: Path) -> None:
    record = sampling()
    frozen = freeze(
        tmp_path,
        [task("a", record), task("b", record), task("c", sampling())],
    )
    assert frozen.excluded == {"replayed": 1}


def test_a_call_that_goes_on_from_elsewhere_is_excluded_not_fatal(tmp_path: Path) -> None:
    first, orphan = sampling(), sampling(continues="g-elsewhere")
    chained = sampling(continues=first["generation_id"])
    frozen = freeze(
        tmp_path,
        [
            task("a", first, chained),
            task("b", orphan),
            task("c", sampling()),
        ],
    )
    assert frozen.excluded == {"broken_chain": 1}
    assert frozen.samples == 2


def test_groups_are_kept_or_dropped_whole(tmp_path: Path) -> None:
    """min_reward looks at the best member: a failure beside a success carries the gradient."""
    scored = [
        task("a1", sampling(), context={"group_id": "a"}),
        task("a2", sampling(), success=False, context={"group_id": "a"}),
        task("b1", sampling(), success=False, context={"group_id": "b"}),
        task("b2", sampling(), success=False, context={"group_id": "b"}),
        task("c1", sampling(), context={"group_id": "c"}),
        task("d", sampling()),
    ]
    frozen = freeze(tmp_path, scored, algorithm="rloo", filters={"min_reward": 0.5})
    assert [line["trajectory_id"] for line in dataset.read(frozen.path)] == ["a1", "a2"]
    assert frozen.excluded == {"below_min_reward": 2, "group_of_one": 1, "no_group": 1}


def test_the_requests_filter_is_applied_by_name(tmp_path: Path) -> None:
    scored = [
        task("a", sampling()),
        task("b", sampling()),
        task("long", sampling(), sampling(), sampling()),
        task("coding", sampling(), context={"domain": "coding"}),
    ]
    filters = {"max_trajectory_length": 2, "task_domains": ["general"]}
    assert freeze(tmp_path, scored, filters=filters).excluded == {"too_long": 1, "other_domain": 1}
    early = {"date_range": {"end": datetime(2026, 2, 1, tzinfo=UTC)}}
    with pytest.raises(TrainingError, match="4 outside_dates"):
        freeze(tmp_path, scored, filters=early)


def test_greedy_answers_are_left_out_and_do_not_fail_the_job(tmp_path: Path) -> None:
    frozen = freeze(
        tmp_path,
        [
            task("a", sampling()),
            task("b", sampling(), success=False),
            task("greedy", sampling(temperature=0.0)),
        ],
    )
    assert [line["trajectory_id"] for line in dataset.read(frozen.path)] == ["a", "b"]
    assert frozen.excluded == {"greedy": 1}
