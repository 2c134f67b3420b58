"""The zoo's numbers, typed off from the fact file's tables once more, and the published ones."""

from __future__ import annotations

import pytest

from onward.control.core.config import CONFIGS
from onward.control.running import presets
from onward.errors import ControlError

PPO_COLUMNS = (
    "num_envs n_steps batch_size epochs gamma gae_lambda learning_rate lr_schedule clip clip_schedule "
    "entropy_coef"
)
PPO = {
    "CartPole-v1": "8 32 256 20 .98 .8 1e-3 linear .2 linear 0 100000",
    "Acrobot-v1": "16 256 64 4 .99 .94 3e-4 constant .2 constant 0 1000000",
    "MountainCar-v0": "16 16 64 4 .99 .98 3e-4 constant .2 constant 0 1000000",
    "LunarLander-v3": "16 1024 64 4 .999 .98 3e-4 constant .2 constant .01 1000000",
    "LunarLanderContinuous-v3": "16 1024 64 4 .999 .98 3e-4 constant .2 constant .01 1000000",
    "Pendulum-v1": "4 1024 64 10 .9 .95 1e-3 constant .2 constant 0 100000",
    "MountainCarContinuous-v0": "1 8 256 10 .9999 .9 7.77e-5 constant .1 constant .00429 20000",
    "BipedalWalker-v3": "32 2048 64 10 .999 .95 3e-4 constant .18 constant 0 5000000",
    "MiniGrid-DoorKey-5x5-v0": "8 128 64 10 .99 .95 2.5e-4 constant .2 constant 0 100000",
}
DQN_COLUMNS = (
    "learning_rate batch_size buffer_size learning_starts gamma target_every train_every gradient_steps "
    "epsilon_fraction epsilon_end"
)
DQN = {
    "CartPole-v1": "2.3e-3 64 100000 1000 .99 10 256 128 .16 .04 50000",
    "MountainCar-v0": "4e-3 128 10000 1000 .98 600 16 8 .2 .07 120000",
    "LunarLander-v3": "6.3e-4 128 50000 0 .99 250 4 -1 .12 .1 100000",
    "Acrobot-v1": "6.3e-4 128 50000 0 .99 250 4 -1 .12 .1 100000",
}
SAC_COLUMNS = (
    "learning_rate lr_schedule buffer_size batch_size temperature train_every gradient_steps gamma tau "
    "learning_starts hidden"
)
SAC = {
    "Pendulum-v1": "1e-3 constant 1000000 256 None 1 1 .99 .005 100 256,256 20000",
    "MountainCarContinuous-v0": "3e-4 constant 50000 512 .1 32 32 .9999 .01 0 64,64 50000",
    "LunarLanderContinuous-v3": "7.3e-4 linear 1000000 256 None 1 1 .99 .01 10000 400,300 500000",
    "BipedalWalker-v3": "7.3e-4 constant 300000 256 None 64 64 .98 .02 10000 400,300 500000",
    "HalfCheetah-v5": "3e-4 constant 1000000 256 None 1 1 .99 .005 10000 256,256 1000000",
}
DDPG_COLUMNS = "gamma buffer_size learning_starts action_noise noise_std learning_rate batch_size hidden"
DDPG = {
    "Pendulum-v1": ".98 200000 10000 gaussian .1 1e-3 256 400,300 20000",
    "LunarLanderContinuous-v3": ".98 200000 10000 gaussian .1 1e-3 256 400,300 300000",
    "BipedalWalker-v3": ".98 200000 10000 gaussian .1 1e-3 256 400,300 1000000",
    "MountainCarContinuous-v0": ".99 1000000 100 ou .5 1e-3 256 400,300 300000",
    "HalfCheetah-v5": ".99 1000000 10000 gaussian .1 1e-3 256 400,300 1000000",
}
A3C_COLUMNS = "workers num_envs n_steps gamma learning_rate lr_schedule entropy_coef value_coef gae_lambda"
A3C = {
    "CartPole-v1": "2 4 5 .99 7e-4 constant 0 .5 1 500000",
    "LunarLander-v3": "2 4 5 .995 8.3e-4 linear 1e-5 .5 1 200000",
    "Acrobot-v1": "2 8 5 .99 7e-4 constant 0 .5 1 500000",
    "MountainCar-v0": "2 8 5 .99 7e-4 constant 0 .5 1 1000000",
    "Pendulum-v1": "2 4 8 .9 7e-4 linear 0 .4 .9 1000000",
}
TABLES = {
    "ppo": (PPO_COLUMNS, PPO), "dqn": (DQN_COLUMNS, DQN), "sac": (SAC_COLUMNS, SAC),
    "ddpg": (DDPG_COLUMNS, DDPG), "td3": (DDPG_COLUMNS, DDPG), "a3c": (A3C_COLUMNS, A3C),
}  # fmt: skip


def typed(text: str) -> object:
    if "," in text:
        return tuple(int(part) for part in text.split(","))
    if text == "None" or text.isalpha():
        return None if text == "None" else text
    return float(text)


@pytest.mark.parametrize(
    ("algorithm", "env"), [(name, env) for name, (_, rows) in TABLES.items() for env in rows]
)
def test_zoo_presets_hold_the_numbers_of_the_table(algorithm: str, env: str) -> None:
    columns, rows = TABLES[algorithm]
    *expected, timesteps = (typed(text) for text in rows[env].split())
    name, found = presets.preset("zoo", algorithm, env)
    settings = presets.settings(algorithm, found, {})
    assert (name, found.timesteps) == ("zoo", timesteps)
    assert [getattr(settings, column) for column in columns.split()] == expected


@pytest.mark.parametrize(
    "env", ["Acrobot-v1", "MountainCar-v0", "BipedalWalker-v3", "MountainCarContinuous-v0"]
)
def test_what_the_zoo_normalises_is_normalised(env: str) -> None:
    """VecNormalize standardises observations and scales rewards."""
    settings = presets.preset("zoo", "ppo", env)[1].settings
    assert (settings["normalise_obs"], settings["scale_rewards"]) == (True, True)
    assert "normalise_obs" not in presets.preset("zoo", "ppo", "CartPole-v1")[1].settings


def test_the_zoo_has_no_double_q_learning() -> None:
    assert all(not found.settings["double"] for found in presets.ZOO["dqn"].values())


def test_the_rest_of_the_row_of_the_continuous_mountain_car() -> None:
    found = presets.preset("zoo", "ppo", "MountainCarContinuous-v0")[1]
    assert (found.settings["log_std"], found.settings["value_coef"], found.settings["max_grad_norm"]) == (
        -3.29, 0.19, 5.0,
    )  # fmt: skip
    assert "gSDE" in found.note


@pytest.mark.parametrize("env", ["CartPole-v1", "Anything-v0"])
def test_the_published_dqn(env: str) -> None:
    """S3: memory 10,000, epsilon 1 → 0.01 by 0.995 per update, 1e-3, batch 32, 256-256 ReLU, plain MSE."""
    settings = presets.settings("dqn", presets.preset("published", "dqn", env)[1], {}).as_dict()
    expected = {
        "num_envs": 1, "buffer_size": 10_000, "epsilon_start": 1.0, "epsilon_end": 0.01,
        "epsilon_decay": 0.995, "learning_rate": 1e-3, "gamma": 0.99, "batch_size": 32,
        "learning_starts": 32, "train_every": 1, "gradient_steps": 1, "hidden": [256, 256],
        "activation": "relu", "double": False, "dueling": False, "prioritised": False, "loss": "mse",
        "n_step": 1, "tau": 1.0, "max_grad_norm": 0.0,
    }  # fmt: skip
    assert {name: settings[name] for name in expected} == expected


def test_the_published_ppo() -> None:
    """S3: clip 0.2, gamma 0.99, lambda 0.95, entropy 0.01, value 0.5, norm 0.5; 3e-4, 2,048 steps."""
    settings = presets.settings("ppo", presets.preset("published", "ppo", "CartPole-v1")[1], {})
    assert (settings.clip, settings.gamma, settings.gae_lambda) == (0.2, 0.99, 0.95)
    assert (settings.entropy_coef, settings.value_coef, settings.max_grad_norm) == (0.01, 0.5, 0.5)
    assert (settings.learning_rate, settings.num_envs * settings.n_steps) == (3e-4, 2048)


def test_every_preset_makes_valid_settings() -> None:
    for table in (
        presets.ZOO,
        presets.CLEANRL,
        presets.OURS,
        {name: {"": p} for name, p in presets.PUBLISHED.items()},
    ):
        for algorithm, envs in table.items():
            for found in envs.values():
                presets.settings(algorithm, found, {})


def test_the_first_preset_that_there_is_is_taken() -> None:
    assert presets.preset(None, "ppo", "BipedalWalker-v3")[0] in ("ours", "zoo")
    assert presets.preset(None, "ppo", "Unheard-v0") == ("default", presets.Preset(100_000, {}))
    assert presets.settings("ppo", presets.Preset(1, {"clip": 0.3}), {"clip": 0.4}).clip == 0.4


def test_the_old_name_of_the_published_preset_is_still_taken() -> None:
    assert presets.preset("seed", "ppo", "X-v0") == presets.preset("published", "ppo", "X-v0")


def test_a_preset_that_there_is_not_names_those_that_there_are() -> None:
    with pytest.raises(
        ControlError, match=r"no preset 'zoo' for ppo on X-v0: use published or default; zoo and ours know"
    ):
        presets.preset("zoo", "ppo", "X-v0")
    with pytest.raises(ControlError, match="no preset 'published' for sac on Pendulum-v1: use"):
        presets.preset("published", "sac", "Pendulum-v1")
    with pytest.raises(ControlError, match="There is no algorithm 'ppp': choose one of q_learning"):
        presets.preset(None, "ppp", "X-v0")


def test_every_algorithm_has_settings_and_every_environment_of_the_tables_a_preset() -> None:
    listed = presets.environments()
    assert {env for _, rows in TABLES.values() for env in rows} <= set(listed)
    assert set(TABLES) <= set(CONFIGS)
