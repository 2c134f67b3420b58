"""The report on a run: the seed's form, numbers of the run's own files, YAML that another library reads."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from onward import control
from onward.control.solution import solution, yaml_text
from onward.errors import ControlError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A short run, noted as solved in its 40th episode, and one from its weights in another environment."""
    folder = tmp_path_factory.mktemp("runs")
    small = {"num_envs": 4, "n_steps": 32}
    short: dict[str, Any] = {"timesteps": 512, "eval_episodes": 2}
    first = control.train("CartPole-v1", "ppo", folder=folder / "a", settings=small, **short)
    solved = {**first.summary, "solved": {"episode": 40, "step": 400, "seconds": 1.0}}
    (first.folder / "summary.json").write_text(json.dumps(solved))
    other = {"sutton_barto_reward": True}
    second = control.train("CartPole-v1", start=first.folder, folder=folder / "b", env_kwargs=other, **short)
    return first.folder, second.folder


def test_it_has_the_form_of_the_seed_and_the_numbers_of_the_run(runs: tuple[Path, Path]) -> None:
    report = solution(runs[0])["rl_training_solution"]
    summary = json.loads((runs[0] / "summary.json").read_text())
    found = report["training_results"]
    assert found["episodes_to_solve"] == 40 and found["episodes"] == summary["episodes"]
    assert found["final_success_rate"] == summary["final"]["success"]
    assert found["average_episode_reward"] == pytest.approx(summary["final"]["return"], abs=1e-3)
    assert found["training_time_hours"] * 3600 == pytest.approx(summary["seconds"], abs=0.01)
    shown = report["training_configuration"]["hyperparameters"]
    assert (shown["clip_epsilon"], shown["gamma"], shown["gae_lambda"], shown["num_envs"]) == (
        0.2,
        0.99,
        0.95,
        4,
    )
    assert report["training_configuration"]["reward_design"]["exploration_bonus"] == "none"


def test_stages_are_the_runs_that_led_here(runs: tuple[Path, Path]) -> None:
    report = solution(runs[1])["rl_training_solution"]
    stages = report["curriculum_stages"]
    assert [stage["stage"] for stage in stages] == [
        "CartPole-v1",
        'CartPole-v1 {"sutton_barto_reward": true}',
    ]
    assert report["training_results"]["episodes_to_solve"] is None
    assert "sutton_barto_reward=True" in report["deployment_code"]


def test_its_code_plays_the_policy(runs: tuple[Path, Path]) -> None:
    names: dict[str, Any] = {"folder": runs[0]}
    exec(solution(runs[0])["rl_training_solution"]["deployment_code"], names)
    played = control.evaluate(runs[0], "CartPole-v1", episodes=1)
    assert names["done"] and 8 <= names["total"] <= 500
    assert len(played.returns) == 1


def test_another_library_reads_the_same_document(runs: tuple[Path, Path]) -> None:
    for run in runs:
        assert yaml.safe_load(yaml_text(solution(run))) == solution(run)


def test_texts_numbers_and_lists_survive_yaml() -> None:
    document = {
        "plain": "PPO with rnd", "reserved": ["yes", "null", "3"],
        "odd": ["a: b", "#x", "- y", " z", "", "é\u2028"],
        "numbers": [1e-05, 3e-4, 1e20, -0.5, 7], "empty": {}, "none": None, "yes": True,
        "list": [{"a": 1, "b": {"c": [1, 2]}}, {"a": "x\ty"}], "block": "one\n  two\n\nthree\n",
    }  # fmt: skip
    read = yaml.safe_load(yaml_text(document))
    assert read == document
    assert all(isinstance(one, float) for one in read["numbers"][:4]) and math.isclose(
        read["numbers"][0], 1e-5
    )


@pytest.mark.parametrize(
    "value",
    [
        " lead\nx", "no end\nof line", "two\nends\n\n", "space \nat the end\n", "a\x85b", "\x7f",
        "\u2028", "😀\n\x00", "零 é", "def f():\n    return 1\n\n\nf()\n", float("inf"), -float("inf"), 1e-5,
        1e22, "1e5", "~", "a: b", "- x",
    ],
)  # fmt: skip
def test_odd_texts_and_numbers_are_read_back_as_they_were(value: object) -> None:
    document = {"k": value, "list": [{"first": 1, "second": value}]}
    assert yaml.safe_load(yaml_text(document)) == document


def test_what_is_no_number_is_none_in_yaml_either() -> None:
    assert math.isnan(yaml.safe_load(yaml_text({"k": float("nan")}))["k"])


def test_a_run_without_a_result_is_refused(tmp_path: Path, runs: tuple[Path, Path]) -> None:
    (tmp_path / "config.json").write_bytes((runs[0] / "config.json").read_bytes())
    with pytest.raises(ControlError, match="has no result yet"):
        solution(tmp_path)
