"""The request: valid, honest about the algorithm, silent about numbers nobody set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from onward.config import Settings, TrainingSettings, load
from onward.contracts import TrainingRequest, decode, encode, to_document
from onward.coordinator import training_request
from onward.coordinator.triggers import Train

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def make(settings: Settings, groups=(None, None)) -> TrainingRequest:
    return training_request.build(
        settings,
        Train("threshold_reached", "normal"),
        digest="d1",
        since=10,
        until=300,
        rewarded=256,
        group_ids=groups,
        previous_job="p1",
        now=NOW,
    )


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([], "reinforce"),
        ([None, None], "reinforce"),
        (["a", "a", None], "reinforce"),
        (["a", "b", "c"], "reinforce"),
        (["a", "b", "b"], "reinforce"),
        (["a", "a", "b", "b"], "rloo"),
        (["a", "a", "b"], "rloo"),
    ],
)
def test_the_data_decides_where_no_algorithm_is_set_and_the_notes_say_so(groups, expected):
    chosen, note = training_request.algorithm(TrainingSettings.model_validate({}), groups)
    assert chosen == expected
    assert note is not None and "no algorithm is set" in note


def test_an_algorithm_that_was_asked_for_is_passed_on_unchanged():
    for name in ("dpo", "ppo"):
        assert training_request.algorithm(TrainingSettings.model_validate({"algorithm": name}), []) == (
            name,
            None,
        )


def test_enough_corrections_ask_for_dpo_whatever_the_groups_and_a_set_algorithm_stays():
    settings = TrainingSettings.model_validate({"min_corrections": 3})
    assert training_request.algorithm(settings, ["a", "a"], corrected=2)[0] == "rloo"
    chosen, note = training_request.algorithm(settings, ["a", "a"], corrected=3)
    assert chosen == "dpo" and note is not None and "3 answers were corrected" in note
    asked = TrainingSettings.model_validate({"algorithm": "grpo", "min_corrections": 3})
    assert training_request.algorithm(asked, ["a", "a"], corrected=100) == ("grpo", None)
    assert training_request.algorithm(TrainingSettings.model_validate({}), [], corrected=63)[0] == "reinforce"
    assert training_request.algorithm(TrainingSettings.model_validate({}), [], corrected=64)[0] == "dpo"


def test_request_is_valid_and_carries_policy_and_window():
    made = decode(encode(make(Settings())), TrainingRequest).model_dump(mode="json", exclude_none=True)
    assert made["timestamp"].startswith("2026-01-02T03:04:05")
    assert made["training_config"]["dataset"]["source"] == "clickhouse"
    assert made["training_config"]["base_model"] == Settings().model.base
    assert made["priority"] == "normal" and made["trigger_reason"] == "threshold_reached"
    for key, value in {
        "model_digest": "d1",
        "since": 10,
        "until": 300,
        "previous_training_job": "p1",
    }.items():
        assert made["metadata"][key] == value


def test_numbers_nobody_set_are_left_to_the_recipe():
    plain = make(Settings()).training_config.hyperparameters.model_dump(exclude_none=True)
    assert plain == {}
    chosen = Settings.model_validate({"training": {"learning_rate": 3e-4, "epochs": 2}})
    assert make(chosen).training_config.hyperparameters.model_dump(exclude_none=True) == {
        "learning_rate": 3e-4,
        "epochs": 2,
    }


def test_the_id_is_the_same_for_the_same_policy_and_snapshot_only():
    assert training_request.job_id("d", 5) == training_request.job_id("d", 5)
    assert (
        len(
            {
                training_request.job_id("d", 5),
                training_request.job_id("d", 6),
                training_request.job_id("e", 5),
            }
        )
        == 3
    )


def test_the_preset_seed_is_the_profiles_request_word_for_word() -> None:
    """S0, phase 3: PPO, min_reward 0.5, 50 turns, 30 days, balanced, 1e-5, 32, 3 epochs, 2 A100, bf16."""
    asked = to_document(make(load(environ={}, overrides={"training": {"preset": "seed"}}), ("g", "g")))
    training = asked["training_config"]
    assert training["algorithm"] == "ppo"
    assert training["hyperparameters"] == {"learning_rate": 1e-5, "batch_size": 32, "epochs": 3}
    assert training["compute"] == {"gpu_count": 2, "gpu_type": "a100", "mixed_precision": "bf16"}
    chosen = training["dataset"]
    assert chosen["sampling"] == "balanced" and chosen["sample_size"] == 10_000
    period = chosen["filter"].pop("date_range")
    assert chosen["filter"] == {"min_reward": 0.5, "max_trajectory_length": 50}
    start, end = (datetime.fromisoformat(period[name]) for name in ("start", "end"))
    assert (end, end - start) == (NOW, timedelta(days=30))
    assert asked["evaluation"]["enabled"] is True


def test_settings_of_ones_own_take_precedence_over_the_preset() -> None:
    own = {"preset": "seed", "algorithm": "rloo", "learning_rate": 1e-4}
    asked = to_document(make(load(environ={}, overrides={"training": own})))
    assert asked["training_config"]["algorithm"] == "rloo"
    assert asked["training_config"]["hyperparameters"] == {
        "learning_rate": 1e-4,
        "batch_size": 32,
        "epochs": 3,
    }
