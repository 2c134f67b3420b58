"""Each row that is trained on is admitted by rule; each refusal is counted under its name."""

import json
from pathlib import Path
from typing import Any

import pytest

from onward.capture import provenance
from onward.errors import TrainingError
from onward.training import dataset

KEY = b"k" * 32


def _sampling(digest: str = "d1", **changes: Any) -> dict[str, Any]:
    record = {
        "generation_id": "g1",
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


def _scored(name: str, *samplings: dict[str, Any] | None, success: bool = True, rewarded: bool = True) -> Any:
    turns = [{"action": {"type": "response", **({"sampling": s} if s else {})}} for s in samplings]
    trajectory = {
        "trajectory_id": name,
        "session_id": "s",
        "turns": turns,
        "task_context": {"task_type": "lookup"},
    }
    outcome = {"success": success, "completion": 1.0 if success else 0.25, "unparsable": False}
    reward = {"metadata": {"raw_total": 0.7, "outcome": outcome}} if rewarded else None
    return dataset.Scored(trajectory, reward)


def _freeze(tmp_path: Path, scored: list[Any], **changes: Any) -> dataset.Dataset:
    options: dict[str, Any] = {
        "policy_digest": "d1",
        "signing_key": KEY,
        "sample_size": 100,
        "max_turns": None,
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


def test_an_unscored_trajectory_is_not_a_zero_and_too_many_fail_the_job(tmp_path: Path) -> None:
    scored = [_scored("a", _sampling()), _scored("b", _sampling()), _scored("c", _sampling(), rewarded=False)]
    assert _freeze(tmp_path, scored).mean_return == 1.0
    with pytest.raises(TrainingError, match="1 of 3 trajectories are unscored") as caught:
        _freeze(tmp_path, scored, max_unscored_share=0.2)
    assert caught.value.code == "DATA"


def test_nothing_to_train_on_says_what_was_excluded(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="2 other_policy"):
        _freeze(tmp_path, [_scored("a", _sampling("d2")), _scored("b", _sampling("d2"))])


def test_a_voided_call_leaves_the_others_of_its_trajectory(tmp_path: Path) -> None:
    void = _sampling(generation_id="g2", tokens_void=True, token_ids=[], logprobs=[], prompt_ids=[])
    frozen = _freeze(tmp_path, [_scored("a", _sampling(), void), _scored("b", _sampling())])
    assert [len(line["calls"]) for line in dataset.read(frozen.path)] == [1, 1]


def test_the_file_is_named_by_its_content(tmp_path: Path) -> None:
    first = _freeze(tmp_path, [_scored("a", _sampling()), _scored("b", _sampling())])
    again = _freeze(tmp_path, [_scored("a", _sampling()), _scored("b", _sampling())])
    assert first.sha256 == again.sha256
    assert json.loads(first.path.read_text().splitlines()[0])["calls"][0]["token_ids"] == [3, 4]
