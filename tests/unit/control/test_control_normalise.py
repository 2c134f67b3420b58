"""Running statistics against numpy over all rows at once, and what they may learn from."""

from __future__ import annotations

import numpy as np
import pytest

from onward.control.core.normalise import ReturnScale, RunningNorm
from onward.control.environments import make
from onward.errors import ControlError


def _rows() -> np.ndarray:
    return np.random.default_rng(0).normal(3.0, [0.1, 5.0, 1e-3], (1000, 3))


def test_batches_of_any_size_give_the_statistics_of_all_rows() -> None:
    rows, norm = _rows(), RunningNorm(3)
    for part in np.split(rows, [1, 2, 10, 500, 500, 999]):
        norm.update(part)
    assert norm.count == 1000
    np.testing.assert_allclose(norm.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(norm.var, rows.var(axis=0), rtol=1e-10)
    np.testing.assert_allclose(norm.std, rows.std(axis=0), rtol=1e-10)


def test_a_large_offset_does_not_swallow_the_variance() -> None:
    """Float32, or the mean of squares less the square of the mean, would give 0 or worse here."""
    rows = 1e8 + np.array([[0.0], [1.0], [2.0], [3.0]] * 100)
    norm = RunningNorm(1)
    for row in rows:
        norm.update(row[None])
    np.testing.assert_allclose(norm.var, [1.25], rtol=1e-6)


def test_merged_workers_know_what_one_would() -> None:
    rows = _rows()
    one, other = RunningNorm(3), RunningNorm(3)
    one.update(rows[:300])
    other.update(rows[300:])
    one.merge(other)
    one.merge(RunningNorm(3))
    np.testing.assert_allclose(one.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(one.var, rows.var(axis=0), rtol=1e-10)


def test_normalised_by_hand_and_clipped() -> None:
    norm = RunningNorm(1)
    norm.update(np.array([[1.0], [3.0]]))  # mean 2, variance 1
    out = norm.normalise(np.array([[4.0], [2.0], [100.0]]), clip=5.0)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, [[2.0], [0.0], [5.0]], rtol=1e-6)


def test_nothing_learned_yet_changes_nothing() -> None:
    np.testing.assert_allclose(RunningNorm(2).normalise(np.array([[0.5, -2.0]])), [[0.5, -2.0]], rtol=1e-6)


def test_frozen_in_evaluation() -> None:
    norm, rows = RunningNorm(3), _rows()
    norm.update(rows)
    norm.frozen = True
    before = norm.state_dict()
    norm.update(rows + 100)
    norm.merge(norm)
    norm.normalise(rows + 100)
    after = norm.state_dict()
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_learns_from_acting_observations_only() -> None:
    """Bug case 8: every observation that is acted on counts once; final_obs and dead slots never do."""
    envs, norm, seen = make("CartPole-v1", 3, env_kwargs={"max_episode_steps": 9}), RunningNorm(4), []
    obs, _ = envs.reset(0)
    rng = np.random.default_rng(0)
    finals = 0
    for _ in range(50):
        norm.update_obs(obs)
        seen.append(np.asarray(obs))
        step = envs.step(rng.integers(0, 2, 3))
        finals += int(step.ended.sum())
        obs = step.obs
    assert finals > 10
    assert norm.count == 150
    np.testing.assert_allclose(norm.mean, np.concatenate(seen).mean(axis=0, dtype=np.float64), rtol=1e-9)
    norm.update_obs(np.full((3, 4), 1e9), alive=np.array([False, False, False]))
    assert norm.count == 150


def test_images_are_left_alone() -> None:
    norm = RunningNorm(1)
    image = np.full((2, 4, 4, 1), 200, np.uint8)
    obs = {"vector": np.array([[1.0], [3.0]], np.float32), "image": image}
    norm.update_obs(obs)
    out = norm.normalise_obs(obs)
    assert isinstance(out, dict)
    np.testing.assert_allclose(out["vector"], [[-1.0], [1.0]], rtol=1e-6)
    assert out["image"] is image
    norm.update_obs({"image": image})
    assert norm.normalise_obs({"image": image}) == {"image": image}
    assert norm.count == 2


def test_return_starts_anew_on_either_flag() -> None:
    """Bug case 9: gamma 0.5 and rewards of 1; slot 0 is cut, slot 1 terminates, slot 2 goes on."""
    scale = ReturnScale(3, gamma=0.5)
    ones = np.ones(3, np.float32)
    terminated, truncated = np.array([False, True, False]), np.array([True, False, False])
    scale.update(ones, np.zeros(3, bool))
    scale.update(ones, terminated | truncated)
    scale.update(ones, np.zeros(3, bool))
    np.testing.assert_allclose(scale.returns, [1.0, 1.0, 1.75])
    seen = np.array([1, 1, 1, 1.5, 1.5, 1.5, 1, 1, 1.75])
    np.testing.assert_allclose(scale.norm.var, [seen.var()])
    np.testing.assert_allclose(scale.scale(ones), ones / seen.std(), rtol=1e-6)


def test_scaled_rewards_keep_their_sign_and_are_clipped() -> None:
    scale = ReturnScale(1, gamma=0.0)
    for reward in (10.0, 12.0):
        scale.update(np.array([reward]), np.array([False]))
    np.testing.assert_allclose(scale.scale(np.array([5.0, -3.0, 99.0])), [5.0, -3.0, 10.0], rtol=1e-6)


def test_frozen_returns_learn_nothing() -> None:
    scale = ReturnScale(1, gamma=0.9)
    scale.norm.frozen = True
    scale.update(np.array([5.0]), np.array([False]))
    assert (scale.norm.count, scale.returns[0]) == (0, 0.0)


def test_state_goes_on_bit_for_bit() -> None:
    rows, flags = _rows(), np.zeros(3, bool)
    whole, resumed = ReturnScale(3, 0.9), ReturnScale(3, 0.9)
    for row in rows[:50]:
        whole.update(row, flags)
    resumed.load_state_dict(whole.state_dict())
    for row in rows[50:]:
        whole.update(row, flags)
        resumed.update(row, flags)
    np.testing.assert_array_equal(whole.returns, resumed.returns)
    np.testing.assert_array_equal(whole.norm.var, resumed.norm.var)


def test_statistics_of_another_size_are_refused() -> None:
    with pytest.raises(ControlError, match="same environment"):
        RunningNorm(3).load_state_dict(RunningNorm(4).state_dict())
    with pytest.raises(ControlError, match="same number of environments"):
        ReturnScale(3, 0.9).load_state_dict(ReturnScale(2, 0.9).state_dict())
