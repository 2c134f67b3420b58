"""Bounds, values from text, and explanations of every setting."""

from __future__ import annotations

import dataclasses
import json

import pytest

from onward.control.algorithms.registry import ALGORITHMS
from onward.control.core import fields
from onward.control.core.config import (
    CONFIGS,
    DDPGConfig,
    DQNConfig,
    PPOConfig,
    ReinforceConfig,
    SACConfig,
    TD3Config,
)
from onward.control.running.runs import Folder, RunConfig, run_config
from onward.errors import ControlError


def test_every_algorithm_has_settings_and_all_settings_an_algorithm() -> None:
    assert ALGORITHMS.keys() == CONFIGS.keys()


@pytest.mark.parametrize(
    ("kind", "values", "sentence"),
    [
        (PPOConfig, {"clip": 0.0}, "ppo: clip is 0.0: give a number greater than 0."),
        (PPOConfig, {"gamma": 1.01}, "ppo: gamma is 1.01: give a number of at least 0 and at most 1."),
        (PPOConfig, {"batch_size": 1}, "ppo: batch_size is 1: give a whole number of at least 2."),
        (PPOConfig, {"n_steps": 8.0}, "ppo: n_steps is 8.0: give a whole number of at least 1."),
        (PPOConfig, {"n_steps": True}, "ppo: n_steps is True: give a whole number of at least 1."),
        (PPOConfig, {"learning_rate": float("nan")},
         "ppo: learning_rate is nan: give a number greater than 0."),
        (PPOConfig, {"hidden": (64, 0)},
         "ppo: hidden is (64, 0): give whole numbers of at least 1 with commas, such as 64,64."),
        (PPOConfig, {"activation": "selu"}, "ppo: activation is 'selu': give one of tanh, relu."),
        (PPOConfig, {"target_kl": -1}, "ppo: target_kl is -1: give a number greater than 0 or none."),
        (DQNConfig, {"batch_size": 64, "buffer_size": 32},
         "dqn: batch_size is 64: set buffer_size to at least 64."),
        (DQNConfig, {"gradient_steps": 0},
         "dqn: gradient_steps is 0: give a whole number of at least 1, or -1 for one per step."),
        (DQNConfig, {"ucb": 1.0},
         "dqn: ucb is 1.0: a single network cannot disagree, set ensemble=5 as well."),
        (SACConfig, {"tau": 0.0},
         "sac: tau is 0.0: a target that never moves learns nothing, give more than 0."),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused_with_the_fix(kind: type, values: dict, sentence: str) -> None:
    with pytest.raises(ControlError) as error:
        kind(**values)
    assert str(error.value) == sentence


def test_widths_may_be_a_list_of_json_or_text() -> None:
    for given in ([64, 32], "64,32", "64, 32", (64, 32)):
        assert PPOConfig(hidden=given).hidden == (64, 32)  # type: ignore[arg-type]
    for wrong in ([64, 0], [64, "a"], "many", [1.5]):
        with pytest.raises(ControlError, match=r"ppo: hidden is .*: give whole numbers of at least 1"):
            PPOConfig(hidden=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", CONFIGS.values(), ids=CONFIGS)
def test_every_setting_is_explained_and_its_kind_said_in_words(kind: type) -> None:
    why, kinds = fields.explanations(kind), fields.field_types(kind)
    assert set(why) == {field.name for field in dataclasses.fields(kind)}
    assert [name for name, text in why.items() if not text.endswith(".")] == []
    assert "a value" not in [fields.describe(one) for one in kinds.values()]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("clip=0.1", 0.1), ("n_steps=64", 64), ("hidden=400,300", (400, 300)), ("target_kl=none", None),
        ("target_kl=0.02", 0.02), ("scale_rewards=true", True), ("activation=relu", "relu"), ("clip=1", 1.0),
        (" gamma = 0.9 ", 0.9),
    ],
)  # fmt: skip
def test_settings_are_read_from_text(text: str, value: object) -> None:
    parsed = fields.parse(PPOConfig, "ppo", [text])
    assert list(parsed.values()) == [value]
    assert type(next(iter(parsed.values()))) is type(value)
    PPOConfig(**parsed)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("clip", "--set clip: give NAME=VALUE, such as --set gamma=0.99."),
        ("clp=1", "--set clp: ppo has no such setting, did you mean clip?"),
        ("clip=wide", "--set clip=wide: give a number greater than 0."),
        ("epochs=1.5", "--set epochs=1.5: give a whole number of at least 1."),
        ("hidden=64,x", "--set hidden=64,x: give whole numbers of at least 1 with commas, such as 64,64."),
    ],
)
def test_text_that_is_no_setting_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ControlError) as error:
        fields.parse(PPOConfig, "ppo", [text])
    assert str(error.value) == sentence


def test_td3_is_ddpg_with_its_three_options() -> None:
    changed = {
        name: value for name, value in TD3Config().as_dict().items() if DDPGConfig().as_dict()[name] != value
    }
    assert changed == {"twin": True, "policy_delay": 2, "target_noise": 0.2}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_run_is_read_back_as_it_was_written(tmp_path, name: str) -> None:
    settings = CONFIGS[name](num_envs=3)
    run = RunConfig(env="X-v0", algorithm=name, settings=settings, seed=7, env_kwargs={"g": 2.5})
    folder = Folder.of(tmp_path, run)
    folder.begin(run)
    assert folder.path.name == f"X-v0-{name}-seed7"
    assert folder.read() == run
    assert run_config(json.loads(json.dumps(run.as_dict()))) == run


def test_a_folder_without_a_run_or_with_another_versions_is_one_sentence(tmp_path) -> None:
    with pytest.raises(ControlError, match=r"holds no run: config\.json does not exist; give the folder"):
        Folder(tmp_path).read()
    run = RunConfig(env="X-v0", algorithm="reinforce", settings=ReinforceConfig())
    document = run.as_dict()
    document["settings"]["from_the_future"] = 1
    with pytest.raises(ControlError, match="does not describe a run of this version"):
        run_config(document)


def test_an_environment_of_a_module_gives_one_folder() -> None:
    from pathlib import Path

    run = RunConfig(env="pkg:ALE/Pong-v5", algorithm="ppo", settings=PPOConfig())
    assert Folder.of(Path("runs"), run).path == Path("runs/pkg-ALE-Pong-v5-ppo-seed0")
