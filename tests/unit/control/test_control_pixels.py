"""Catch, whose every number can be worked out by hand."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from onward.control.environments import make
from onward.control.environments.pixels import Catch, CatchDict, register


@pytest.mark.parametrize("env_id", ["onward/Catch-v0", "onward/CatchDict-v0"])
@pytest.mark.filterwarnings("ignore")
def test_gymnasiums_own_checker_is_content(env_id: str) -> None:
    register()
    register()
    check_env(gymnasium.make(env_id).unwrapped, skip_render_check=True)


def test_a_paddle_that_follows_the_ball_catches_every_one() -> None:
    env = Catch()
    for seed in range(30):
        frame, _ = env.reset(seed=seed)
        total, steps, over = 0.0, 0, False
        while not over:
            ball, paddle = int(frame[:-1].argmax() % 10), int(frame[-1].argmax())
            frame, reward, over, _, _ = env.step(1 + np.sign(ball - paddle))
            total, steps = total + reward, steps + 1
        assert (total, steps) == (1.0, 9)


def test_a_paddle_that_stays_misses_what_falls_elsewhere() -> None:
    env = Catch()
    env.reset(seed=0)
    env.column = 3
    rewards = [env.step(1)[1] for _ in range(9)]
    assert rewards == [0.0] * 8 + [-1.0]


def test_what_is_seen_by_hand() -> None:
    env: Any = CatchDict()
    env.reset(seed=0)
    env.column = 2
    obs, _, _, _, _ = env.step(0)
    expected = np.zeros((10, 10), np.uint8)
    expected[1, 2] = 255
    np.testing.assert_array_equal(obs["ball"], expected)
    assert obs["paddle"] == 4


def test_flattened_image_and_number() -> None:
    envs = make("onward/CatchDict-v0", 2)
    obs, _ = envs.reset(0)
    assert isinstance(obs, dict)
    assert envs.spec.layout.images == (("ball", (10, 10, 1)),)
    assert (envs.spec.threshold, envs.spec.layout.width) == (0.9, 10)
    np.testing.assert_array_equal(obs["vector"], np.eye(10, dtype=np.float32)[[5, 5]])
    assert obs["ball"].shape == (2, 10, 10, 1)
    assert obs["ball"].dtype == np.uint8


def test_the_dict_version_is_the_same_game() -> None:
    actions = np.random.default_rng(0).integers(0, 3, (40, 3))
    one, other = make("onward/Catch-v0", 3), make("onward/CatchDict-v0", 3)
    one.reset(4)
    other.reset(4)
    for action in actions:
        first, second = one.step(action), other.step(action)
        np.testing.assert_array_equal(first.reward, second.reward)
        assert isinstance(first.obs, dict)
        assert isinstance(second.obs, dict)
        np.testing.assert_array_equal(first.obs["image"][:, :-1], second.obs["ball"][:, :-1])
