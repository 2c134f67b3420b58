"""The rollout: what each step led to at the borders of episodes, and that a saved one goes on."""

from __future__ import annotations

import numpy as np

from onward.control.core.contract import Step
from onward.control.core.rollout import Rollout
from onward.control.core.spaces import ActionSpec, Layout

DISCRETE = ActionSpec("discrete", sizes=(2,))


def obs(*values):
    return np.float32(values)[:, None]


def flags(*values):
    return np.array(values, bool)


def three_steps() -> Rollout:
    """Slot 0 counts 0 1 2 3; slot 1 counts 10 11, is cut (final 12), goes on with 50 51."""
    rollout = Rollout(Layout(1), DISCRETE, 3, 2)
    none = flags(0, 0)
    rollout.add(obs(0, 10), np.array([0, 1]), Step(obs(1, 11), np.float32([1, 2]), none, none), None, None)
    cut = Step(obs(2, 50), np.float32([3, 4]), none, flags(0, 1), obs(12))
    rollout.add(obs(1, 11), np.array([1, 1]), cut, None, None)
    rollout.add(obs(2, 50), np.array([0, 0]), Step(obs(3, 51), np.float32([5, 6]), none, none), None, None)
    return rollout


def test_what_a_step_led_to_is_the_final_obs_not_the_next_episodes_first():
    rollout = three_steps()
    assert rollout.full
    np.testing.assert_array_equal(rollout.obs[..., 0], [[0, 10], [1, 11], [2, 50], [3, 51]])
    np.testing.assert_array_equal(rollout.next_obs()[..., 0], [[1, 11], [2, 12], [3, 51]])
    np.testing.assert_array_equal(rollout.ended, [[0, 0], [0, 1], [0, 0]])
    np.testing.assert_array_equal(rollout.obs[:-1, :, 0] != rollout.next_obs()[..., 0], True)


def test_a_truncated_step_is_bootstrapped_from_the_value_of_its_final_obs():
    of_obs, led_to = three_steps().values(lambda rows: rows * 100)
    np.testing.assert_array_equal(of_obs[..., 0], [[0, 1000], [100, 1100], [200, 5000], [300, 5100]])
    np.testing.assert_array_equal(led_to[..., 0], [[100, 1100], [200, 1200], [300, 5100]])


def test_arrays_are_allocated_once_and_what_was_given_may_change_afterwards():
    rollout = three_steps()
    arrays = [rollout.obs, rollout.actions, rollout.rewards]
    rollout.clear()
    given = obs(7, 8)
    rollout.add(
        given, np.array([0, 1]), Step(obs(9, 9), np.float32([0, 0]), flags(0, 0), flags(0, 0)), None, None
    )
    given[:] = -1
    np.testing.assert_array_equal(rollout.obs[0, :, 0], [7, 8])
    assert all(a is b for a, b in zip(arrays, [rollout.obs, rollout.actions, rollout.rewards], strict=True))
    assert not rollout.finals and rollout.rewards.dtype == np.float32


def test_masks_and_living_slots_are_those_of_the_observation_acted_on():
    rollout = Rollout(Layout(1), DISCRETE, 2, 2)
    step = Step(obs(1, 1), np.float32([0, 0]), flags(0, 0), flags(0, 0), alive=flags(1, 0))
    rollout.add(obs(0, 0), np.array([0, 0]), step, None, None)
    mask = np.array([[True, False], [True, True]])
    rollout.add(obs(1, 1), np.array([0, 0]), step, mask, step.alive)
    np.testing.assert_array_equal(rollout.alive, [[1, 1], [1, 0]])
    np.testing.assert_array_equal(rollout.masks, [np.ones((2, 2)), mask])


def test_images_beside_a_vector_stay_bytes():
    layout = Layout(1, (("eye", (4, 4, 1)),))
    rollout = Rollout(layout, ActionSpec("box", low=(-1.0, -1.0), high=(1.0, 1.0)), 1, 2)
    seen = {"vector": obs(1, 2), "eye": np.full((2, 4, 4, 1), 200, np.uint8)}
    final = {"vector": obs(9), "eye": np.full((1, 4, 4, 1), 7, np.uint8)}
    step = Step(seen, np.float32([0, 0]), flags(1, 0), flags(0, 0), final)
    rollout.add(seen, np.float32([[1.5, 0], [0, 0]]), step, None, None)
    assert rollout.obs["eye"].dtype == np.uint8
    assert rollout.next_obs()["eye"][0, :, 0, 0, 0].tolist() == [7, 200]
    assert rollout.actions[0, 0, 0] == 1.5


def test_a_rollout_saved_half_way_goes_on_as_it_was():
    whole, half = three_steps(), three_steps()
    half.clear()
    none = flags(0, 0)
    half.add(obs(0, 10), np.array([0, 1]), Step(obs(1, 11), np.float32([1, 2]), none, none), None, None)
    half.add(
        obs(1, 11),
        np.array([1, 1]),
        Step(obs(2, 50), np.float32([3, 4]), none, flags(0, 1), obs(12)),
        None,
        None,
    )
    other = Rollout(Layout(1), DISCRETE, 3, 2)
    other.load_state_dict(half.state_dict())
    other.add(obs(2, 50), np.array([0, 0]), Step(obs(3, 51), np.float32([5, 6]), none, none), None, None)
    np.testing.assert_array_equal(other.next_obs(), whole.next_obs())
    for name in ("obs", "actions", "rewards", "terminated", "truncated", "alive"):
        np.testing.assert_array_equal(getattr(other, name), getattr(whole, name))
