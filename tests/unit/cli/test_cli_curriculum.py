"""``onward control curriculum``: stages from a file, results, and what is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onward.cli import main

SMALL = ["--set", "hidden=16", "--set", "n_steps=32", "--set", "batch_size=64", "--set", "num_envs=4"]
STAGES = [
    {"name": "Strong", "env_config": {"force_mag": 15.0, "max_episode_steps": 20}, "success_threshold": 1.0,
     "min_episodes": 5},
    {"name": "Normal", "env_config": {"max_episode_steps": 20}, "success_threshold": 1.0, "min_episodes": 5},
]  # fmt: skip


def onward(*arguments: str) -> int:
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    return int(done.value.code or 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "holds no list: give a list of stages"),
        ("[", "cannot be read as JSON"),
        ("[]", "The curriculum has no stage"),
        ('[{"name": "x"}]', "Stage 1 has name: give name, env_config"),
    ],
)
def test_a_file_that_holds_no_stages_is_one_sentence(tmp_path: Path, capsys, text: str, why: str) -> None:
    path = tmp_path / "stages.json"
    path.write_text(text)
    assert onward("control", "curriculum", "CartPole-v1", str(path)) == 2
    shown = capsys.readouterr()
    assert why in shown.err and "Traceback" not in shown.err


def test_an_argument_that_the_environment_does_not_take_is_named(tmp_path: Path, capsys) -> None:
    path = tmp_path / "stages.json"
    path.write_text(json.dumps([{**STAGES[0], "env_config": {"difficulty": 0.1}}]))
    assert onward("control", "curriculum", "CartPole-v1", str(path), "--out", str(tmp_path / "c")) == 2
    assert "CartPole-v1 has no parameter 'difficulty'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_stage_that_is_not_reached_ends_with_what_it_reached(tmp_path: Path, capsys) -> None:
    path = tmp_path / "stages.json"
    path.write_text(json.dumps(STAGES))  # a return of 475 is out of reach in 20 steps
    place = ("--out", str(tmp_path / "c"), "--timesteps", "512", "--json")
    assert onward("control", "curriculum", "CartPole-v1", str(path), *SMALL, *place) == 2
    told = capsys.readouterr().err
    assert told.startswith("Training Stage: Strong")
    assert "Stage 'Strong' ended after 512 steps with success rate 0.00, below 1" in told
