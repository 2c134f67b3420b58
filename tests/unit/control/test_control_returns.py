"""Returns and advantages: closed forms, and a slow reference that goes episode by episode."""

from __future__ import annotations

import numpy as np
import pytest

from onward.control.core.returns import gae, normalise_advantages, reward_to_go

NO, YES = False, True


def column(*values):
    return np.array(values)[:, None]


def floats(*values):
    return column(*values).astype(np.float32)


def slow_gae(rewards, values, next_values, terminated, truncated, gamma, lam):
    """Equation 16 of Schulman et al. 2016 as a double sum, one slot at a time."""
    steps, slots = rewards.shape
    out = np.zeros((steps, slots))
    for n in range(slots):
        for start in range(steps):
            for t in range(start, steps):
                after = 0.0 if terminated[t, n] else next_values[t, n]
                delta = rewards[t, n] + gamma * after - values[t, n]
                out[start, n] += (gamma * lam) ** (t - start) * delta
                if terminated[t, n] or truncated[t, n]:
                    break
    return out


# Two steps with rewards 1 and 2, values 10 and 20, γ = 0.5, λ = 0.5. The first step led to value 20 or, where
# it ended, to final_obs of value 30; the second step led to value 40. Worked out by hand:
#   δ_1 = 2 + 0.5·40 − 20 = 2; A_1 = 2
#   not ended:  δ_0 = 1 + 0.5·20 − 10 = 1,  A_0 = 1 + 0.25·2 = 1.5
#   terminated: δ_0 = 1 − 10 = −9,          A_0 = −9 (nothing after, recursion cut)
#   truncated:  δ_0 = 1 + 0.5·30 − 10 = 6,  A_0 = 6  (V(final_obs) bootstrapped, recursion cut)
#   both:       termination wins: −9
@pytest.mark.parametrize(
    ("terminated", "truncated", "led_to", "expected"),
    [(NO, NO, 20, 1.5), (YES, NO, 30, -9.0), (NO, YES, 30, 6.0), (YES, YES, 30, -9.0)],
)
def test_gae_of_all_four_endings(terminated, truncated, led_to, expected):
    flags = column(terminated, NO), column(truncated, NO)
    out = gae(floats(1, 2), floats(10, 20), floats(led_to, 40), *flags, 0.5, 0.5)
    np.testing.assert_allclose(out, floats(expected, 2))
    assert out.dtype == np.float32


def test_gae_of_random_rollouts_equals_the_double_sum():
    rng = np.random.default_rng(0)
    shape = (40, 5)
    rewards, values, led_to = (rng.normal(size=shape).astype(np.float32) for _ in range(3))
    terminated = rng.random(shape) < 0.1
    truncated = (rng.random(shape) < 0.1) & ~terminated
    arguments = (rewards, values, led_to, terminated, truncated, 0.97, 0.9)
    np.testing.assert_allclose(gae(*arguments), slow_gae(*arguments), rtol=1e-4, atol=1e-5)


def test_gae_with_lambda_one_is_the_bootstrapped_return_minus_the_value():
    rng = np.random.default_rng(1)
    rewards, values, led_to = (rng.normal(size=(30, 3)).astype(np.float32) for _ in range(3))
    terminated = rng.random((30, 3)) < 0.1
    # With consistent values: what a step led to is the next value unless an episode ended.
    led_to[:-1] = np.where(terminated[:-1], led_to[:-1], values[1:])
    never = np.zeros((30, 3), bool)
    advantages = gae(rewards, values, led_to, terminated, never, 0.9, 1.0)
    returns = rewards + np.float32(0.9) * np.where(terminated, 0, led_to)
    for t in range(28, -1, -1):
        returns[t] = np.where(terminated[t], rewards[t], rewards[t] + 0.9 * returns[t + 1])
    np.testing.assert_allclose(advantages + values, returns, rtol=1e-4, atol=1e-5)


def test_a_perfect_value_of_an_endless_task_has_no_advantage_when_cut():
    """Reward 1 for ever, γ = 0.99: V = 1/(1 − γ) = 100. A time limit changes nothing; an end does."""
    steps, gamma = 20, 0.99
    ones, value = np.ones((steps, 1), np.float32), np.full((steps, 1), 100, np.float32)
    cut, never = np.zeros((steps, 1), bool), np.zeros((steps, 1), bool)
    cut[[4, 11, 19]] = True
    np.testing.assert_allclose(gae(ones, value, value, never, cut, gamma, 0.95), 0, atol=1e-4)
    ended = gae(ones, value, value, cut, never, gamma, 0.95)
    np.testing.assert_allclose(ended[4], 1 - 100, rtol=1e-5)


def test_what_comes_after_a_truncation_does_not_leak_into_what_came_before():
    rewards, values = floats(1, 1, 1, 1), floats(5, 6, 7, 8)
    led_to, cut, never = floats(6, 50, 8, 9), column(NO, YES, NO, NO), column(NO, NO, NO, NO)
    before = gae(rewards, values, led_to, never, cut, 0.9, 0.9)[:2]
    rewards[2:], values[2:], led_to[2:] = 1000, -1000, 1000
    np.testing.assert_array_equal(gae(rewards, values, led_to, never, cut, 0.9, 0.9)[:2], before)


def test_the_last_step_of_a_rollout_is_bootstrapped_from_what_it_led_to():
    out = gae(floats(1), floats(3), floats(7), column(NO), column(NO), 0.9, 0.95)
    np.testing.assert_allclose(out, floats(1 + 0.9 * 7 - 3), rtol=1e-6)


def test_dead_steps_have_no_advantage_and_pass_none_on():
    rewards, values = floats(1, 0, 1), np.array([[2], [np.nan], [4]], np.float32)
    led_to, terminated = np.array([[np.nan], [np.nan], [5]], np.float32), column(YES, NO, NO)
    alive = column(YES, NO, YES)
    out = gae(rewards, values, led_to, terminated, column(NO, NO, NO), 0.9, 0.9, alive)
    np.testing.assert_allclose(out, floats(1 - 2, 0, 1 + 4.5 - 4), rtol=1e-6)


def test_reward_to_go_discounts_and_goes_on_with_the_last_value():
    np.testing.assert_allclose(reward_to_go(np.float32([1, 2, 4]), 0.0, 0.5), [3, 4, 4])
    np.testing.assert_allclose(reward_to_go(np.float32([1, 2, 4]), 8.0, 0.5), [4, 6, 8])


def test_advantages_are_normalised_over_living_steps_only():
    advantages = np.float32([[1, 3], [5, 1e6]])
    alive = np.array([[YES, YES], [YES, NO]])
    out = normalise_advantages(advantages, alive)
    deviation = np.sqrt(8 / 3)
    np.testing.assert_allclose(out, [[-2 / deviation, 0], [2 / deviation, 0]], atol=1e-6)


@pytest.mark.parametrize("advantages", [[[7.0]], [[3.0, 3.0], [3.0, 3.0]]])
def test_one_advantage_or_equal_ones_normalise_to_zero_not_nan(advantages):
    np.testing.assert_array_equal(normalise_advantages(np.float32(advantages)), np.zeros_like(advantages))


def test_a_rollout_of_dead_slots_normalises_to_zero():
    assert not normalise_advantages(np.ones((2, 2), np.float32), np.zeros((2, 2), bool)).any()
