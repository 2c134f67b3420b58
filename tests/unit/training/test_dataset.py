"""Each row that is trained on is admitted by rule; each refusal is counted under its name."""

import itertools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from onward.capture import provenance
from onward.errors import TrainingError
from onward.training.data import dataset

KEY = b"k" * 32


_numbers = itertools.count()


def _sampling(digest: str = "d1", **changes: Any) -> dict[str, Any]:
    record = {
        "generation_id": f"g{next(_numbers)}",
        "continues": None,
        "prompt_ids": [1, 2],
        "token_ids": [3, 4],
        "logprobs": [-0.5, -0.25],
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": None,
        "finish_reason": "stop",
        "model_digest": digest,
        **changes,
    }
    return {**record, "signature": provenance.sign(record, KEY)}


def _scored(
    name: str,
    *samplings: dict[str, Any] | None,
    success: bool = True,
    unparsable: bool = False,
    rewarded: bool = True,
    context: Any = None,
) -> Any:
    turns = [{"action": {"type": "response", **({"sampling": s} if s else {})}} for s in samplings]
    trajectory = {
        "trajectory_id": name,
        "session_id": "s",
        "turns": turns,
        "start_timestamp": "2026-03-01T12:00:00Z",
        "task_context": {"task_type": "lookup", "domain": "general", **(context or {})},
    }
    outcome = {"success": success, "completion": 1.0 if success else 0.25, "unparsable": unparsable}
    raw_total = 0.7 if success else 0.2
    reward = {"metadata": {"raw_total": raw_total, "outcome": outcome}} if rewarded else None
    return dataset.Scored(trajectory, reward)


def _freeze(tmp_path: Path, scored: list[Any], **changes: Any) -> dataset.Dataset:
    options: dict[str, Any] = {
        "policy_digest": "d1",
        "signing_key": KEY,
        "sample_size": 100,
        "max_unscored_share": 0.5,
        "return_from": "outcome",
        **changes,
    }
    return dataset.freeze(scored, tmp_path, **options)


def test_refusals_are_counted_by_reason_and_never_trained(tmp_path: Path) -> None:
    forged = {**_sampling(), "token_ids": [9, 9]}
    frozen = _freeze(
        tmp_path,
        [
            _scored("good-1", _sampling()),
            _scored("good-2", _sampling(), success=False),
            _scored("unscored", _sampling(), rewarded=False),
            _scored("text only", None),
            _scored("other", _sampling("d2")),
            _scored("mixed", _sampling("d1"), _sampling("d2")),
            _scored("void", _sampling(tokens_void=True, token_ids=[], logprobs=[], prompt_ids=[])),
            _scored("top-p", _sampling(top_p=0.9)),
            _scored("top-k", _sampling(top_k=50)),
            _scored("forged", forged),
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
    assert [line["trajectory_id"] for line in dataset.read(frozen.path)] == ["good-1", "good-2"]
    assert frozen.mean_return == pytest.approx((1.0 + 0.25) / 2)


def _void(**changes: Any) -> dict[str, Any]:
    return _sampling(tokens_void=True, token_ids=[], logprobs=[], prompt_ids=[], **changes)


def test_case_18_a_job_that_would_train_on_a_remnant_of_what_was_sampled_fails(tmp_path: Path) -> None:
    """Case 18 (rllm#352): the fallback masked everything and the run trained on nothing."""
    gone = _void()
    scored = [
        _scored("a", _sampling(), gone, _sampling(continues=gone["generation_id"])),  # 2 of 3 are masked
        _scored("b", _sampling(), success=False),
        _scored("c", _void(), _void()),  # 2 of 2, excluded as tokens_void
    ]
    frozen = _freeze(tmp_path, scored, max_masked_share=0.7)
    assert (frozen.calls, frozen.masked_calls) == (6, 4) and frozen.excluded == {"tokens_void": 1}
    with pytest.raises(
        TrainingError, match=r"4 of 6 sampled answers .* training\.max_masked_share"
    ) as caught:
        _freeze(tmp_path, scored)
    assert caught.value.code == "DATA"


def test_case_18_does_not_concern_what_learns_from_text(tmp_path: Path) -> None:
    scored = [_scored(name, _sampling(), _void(), _void(), _void()) for name in ("a", "b")]
    assert _freeze(tmp_path, scored, algorithm="sft").samples == 2


def test_the_dataset_says_which_answers_could_not_be_parsed(tmp_path: Path) -> None:
    bad = _scored("bad", _sampling(), success=False, unparsable=True)
    frozen = _freeze(tmp_path, [_scored("good", _sampling()), bad])
    assert [line["unparsable"] for line in dataset.read(frozen.path)] == [False, True]


def test_an_unscored_trajectory_is_not_a_zero_and_too_many_fail_the_job(tmp_path: Path) -> None:
    scored = [_scored("a", _sampling()), _scored("b", _sampling()), _scored("c", _sampling(), rewarded=False)]
    assert _freeze(tmp_path, scored).mean_return == 1.0
    with pytest.raises(TrainingError, match="1 of 3 trajectories are unscored") as caught:
        _freeze(tmp_path, scored, max_unscored_share=0.2)
    assert caught.value.code == "DATA"


def test_work_that_nobody_judged_is_left_out_and_fails_no_job(tmp_path: Path) -> None:
    unjudged = _scored("c", _sampling(), rewarded=False)
    unjudged.trajectory["metadata"] = {"capture": {"source": "gateway", "closed": "answer"}}
    scored = [_scored("a", _sampling()), _scored("b", _sampling()), unjudged]
    frozen = _freeze(tmp_path, scored, max_unscored_share=0.2)
    assert frozen.excluded == {"no_outcome": 1} and frozen.mean_return == 1.0


def test_nothing_to_train_on_says_what_was_excluded(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="2 other_policy"):
        _freeze(tmp_path, [_scored("a", _sampling("d2")), _scored("b", _sampling("d2"))])


def test_a_voided_call_leaves_the_others_of_its_trajectory(tmp_path: Path) -> None:
    void = _sampling(tokens_void=True, token_ids=[], logprobs=[], prompt_ids=[])
    frozen = _freeze(tmp_path, [_scored("a", _sampling(), void), _scored("b", _sampling())])
    calls = dataset.read(frozen.path)[0]["calls"]
    assert [len(call["token_ids"]) for call in calls] == [2, 0]


def test_the_file_is_named_by_its_content(tmp_path: Path) -> None:
    scored = [_scored("a", _sampling()), _scored("b", _sampling())]
    first, again = _freeze(tmp_path, scored), _freeze(tmp_path, scored)
    assert first.sha256 == again.sha256
    assert json.loads(first.path.read_text().splitlines()[0])["calls"][0]["token_ids"] == [3, 4]


def test_a_replayed_generation_record_trains_once(tmp_path: Path) -> None:
    record = _sampling()
    frozen = _freeze(tmp_path, [_scored("a", record), _scored("b", record), _scored("c", _sampling())])
    assert frozen.excluded == {"replayed": 1}


def test_a_call_that_goes_on_from_elsewhere_is_excluded_not_fatal(tmp_path: Path) -> None:
    first, orphan = _sampling(), _sampling(continues="g-elsewhere")
    chained = _sampling(continues=first["generation_id"])
    frozen = _freeze(
        tmp_path, [_scored("a", first, chained), _scored("b", orphan), _scored("c", _sampling())]
    )
    assert frozen.excluded == {"broken_chain": 1}
    assert frozen.samples == 2


def test_groups_are_kept_or_dropped_whole(tmp_path: Path) -> None:
    """min_reward looks at the best member: a failure beside a success carries the gradient."""
    scored = [
        _scored("a1", _sampling(), context={"group_id": "a"}),
        _scored("a2", _sampling(), success=False, context={"group_id": "a"}),
        _scored("b1", _sampling(), success=False, context={"group_id": "b"}),
        _scored("b2", _sampling(), success=False, context={"group_id": "b"}),
        _scored("c1", _sampling(), context={"group_id": "c"}),
        _scored("d", _sampling()),
    ]
    frozen = _freeze(tmp_path, scored, algorithm="rloo", filters={"min_reward": 0.5})
    assert [line["trajectory_id"] for line in dataset.read(frozen.path)] == ["a1", "a2"]
    assert frozen.excluded == {"below_min_reward": 2, "group_of_one": 1, "no_group": 1}


def test_the_requests_filter_is_applied_by_name(tmp_path: Path) -> None:
    scored = [
        _scored("a", _sampling()),
        _scored("b", _sampling()),
        _scored("long", _sampling(), _sampling(), _sampling()),
        _scored("coding", _sampling(), context={"domain": "coding"}),
    ]
    filters = {"max_trajectory_length": 2, "task_domains": ["general"]}
    assert _freeze(tmp_path, scored, filters=filters).excluded == {"too_long": 1, "other_domain": 1}
    early = {"date_range": {"end": datetime(2026, 2, 1, tzinfo=UTC)}}
    with pytest.raises(TrainingError, match="4 outside_dates"):
        _freeze(tmp_path, scored, filters=early)


def test_greedy_answers_are_left_out_and_do_not_fail_the_job(tmp_path: Path) -> None:
    frozen = _freeze(
        tmp_path,
        [
            _scored("a", _sampling()),
            _scored("b", _sampling(), success=False),
            _scored("greedy", _sampling(temperature=0.0)),
        ],
    )
    assert frozen.sources == ("a", "b")
    assert frozen.excluded == {"greedy": 1}
