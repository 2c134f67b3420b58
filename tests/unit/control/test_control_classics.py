"""The numpy tasks beside Gymnasium's originals, step by step, with the same seeds and actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from onward.control.core.contract import Environments
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import action_spec, layout_of, to_env
from onward.control.environments import make
from onward.control.environments.classics import TASKS
from onward.errors import ControlError

IDS = [env_id for env_id in TASKS if env_id != "CartPole-v0"]  # the older one is the same class
NUM = 4


def _actions(env_id: str, obs: Any, rng: np.random.Generator) -> NDArray[Any]:
    """Random ones; in the mountain cars most pushes go with the motion, to reach the flag."""
    spec = TASKS[env_id][1].actions
    if spec.kind == "discrete":
        actions = rng.integers(0, spec.sizes[0], NUM)
        with_motion = np.where(obs[:, 1] >= 0, 2, 0)
    else:
        actions = rng.uniform(-1.3, 1.3, (NUM, 1)).astype(np.float32)
        with_motion = np.where(obs[:, 1:2] >= 0, 1, -1).astype(np.float32)
    if not env_id.startswith("MountainCar"):
        return actions
    return np.where(rng.random(actions.shape) < 0.7, with_motion, actions)


@dataclass
class Met:
    """What a comparison has gone through."""

    terminated: int = 0
    truncated: int = 0


def _original(env_id: str, **kwargs: Any) -> Any:
    return gymnasium.make(env_id, disable_env_checker=True, **kwargs)


def _compare(env_id: str, envs: Environments, originals: list[Any], steps: int) -> Met:
    """Step both: equal flags, and numbers equal to the last bit (CartPole) or to 1e-6."""
    met = Met()
    obs, mask = envs.reset(3)
    assert mask is None
    seeds = Seeds(3).slots(NUM)
    ours: list[Any] = [obs]
    theirs: list[Any] = [[env.reset(seed=seed)[0] for env, seed in zip(originals, seeds, strict=True)]]
    rewards: list[Any] = []
    rng = np.random.default_rng(0)
    for _ in range(steps):
        actions = _actions(env_id, obs, rng)
        step = envs.step(actions)
        given = to_env(envs.spec.actions, actions)
        results = [env.step(action) for env, action in zip(originals, given, strict=True)]
        terminated = [over for _, _, over, _, _ in results]
        truncated = [cut and not over for _, _, over, cut, _ in results]
        assert (step.terminated.tolist(), step.truncated.tolist()) == (terminated, truncated)
        reached = [raw for raw, *_ in results]
        ended = zip(originals, reached, step.ended, strict=True)
        ours += [step.next_obs(), step.obs]
        theirs += [reached, [env.reset()[0] if over else raw for env, raw, over in ended]]
        rewards.append((step.reward, [reward for _, reward, *_ in results]))
        met.terminated += sum(terminated)
        met.truncated += sum(truncated)
        obs = step.obs
    close = {"rtol": 0, "atol": 0} if env_id == "CartPole-v1" else {"rtol": 1e-6, "atol": 1e-6}
    np.testing.assert_allclose(np.array(ours), np.array(theirs), **close)
    np.testing.assert_allclose(*np.array(rewards, np.float32).swapaxes(0, 1), **close)
    return met


@pytest.mark.parametrize("env_id", IDS)
def test_step_equal_to_gymnasiums_original(env_id: str) -> None:
    """750 random steps of 4 slots, over resets."""
    met = _compare(env_id, make(env_id, NUM), [_original(env_id) for _ in range(NUM)], 750)
    assert met.terminated + met.truncated > 0
    if env_id == "Pendulum-v1":
        assert (met.terminated, met.truncated) == (0, NUM * 3)
    if env_id.startswith("MountainCar"):
        assert met.terminated > 0


@pytest.mark.long
@pytest.mark.parametrize("env_id", IDS)
def test_step_equal_to_gymnasiums_original_for_long(env_id: str) -> None:
    """10,000 random steps of 4 slots."""
    _compare(env_id, make(env_id, NUM), [_original(env_id) for _ in range(NUM)], 10_000)


def test_cartpole_is_cut_at_its_limit_as_gymnasiums_is() -> None:
    """With a limit of 12 steps random episodes end both ways."""
    limit = {"max_episode_steps": 12}
    originals = [_original("CartPole-v1", **limit) for _ in range(NUM)]
    met = _compare("CartPole-v1", make("CartPole-v1", NUM, env_kwargs=limit), originals, 300)
    assert met.terminated > 0
    assert met.truncated > 0


CHANGED = {
    "CartPole-v1": {
        "length": 0.8,
        "masspole": 0.3,
        "masscart": 1.2,
        "force_mag": 7.0,
        "gravity": 9.0,
        "tau": 0.03,
    },
    "MountainCar-v0": {"force": 0.0013, "gravity": 0.003, "goal_velocity": 0.01},
    "MountainCarContinuous-v0": {"power": 0.0017, "goal_velocity": 0.01},
    "Acrobot-v1": {"LINK_LENGTH_1": 1.2, "LINK_MASS_1": 0.9, "LINK_MASS_2": 1.1, "LINK_COM_POS_2": 0.6},
    "Pendulum-v1": {"g": 9.0, "m": 1.3, "l": 0.8},
}


@pytest.mark.parametrize("env_id", CHANGED)
def test_changed_constants_are_gymnasiums_with_those_attributes(env_id: str) -> None:
    originals = [_original(env_id) for _ in range(NUM)]
    for env in originals:
        inner: Any = env.unwrapped
        for name, value in CHANGED[env_id].items():
            setattr(inner, name, value)
        if env_id == "CartPole-v1":
            inner.total_mass = inner.masspole + inner.masscart
            inner.polemass_length = inner.masspole * inner.length
    _compare(env_id, make(env_id, NUM, env_kwargs=CHANGED[env_id]), originals, 100)


def test_cartpole_with_the_reward_of_sutton_and_barto() -> None:
    kwargs = {"sutton_barto_reward": True}
    originals = [_original("CartPole-v1", **kwargs) for _ in range(NUM)]
    _compare("CartPole-v1", make("CartPole-v1", NUM, env_kwargs=kwargs), originals, 200)


@pytest.mark.parametrize("env_id", TASKS)
@pytest.mark.filterwarnings("ignore:.*out of date")
def test_what_is_known_beforehand_is_what_gymnasium_says(env_id: str) -> None:
    env = gymnasium.make(env_id)
    spec = make(env_id, 2).spec
    assert make(env_id).spec == spec
    assert env.spec is not None
    assert spec.id == env_id
    assert spec.layout == layout_of(env.observation_space)
    assert spec.actions == action_spec(env.action_space)
    assert spec.threshold == env.spec.reward_threshold
    assert spec.max_steps == env.spec.max_episode_steps


def _trace(envs: Environments, steps: int, rng: np.random.Generator) -> list[NDArray[Any]]:
    out: list[NDArray[Any]] = []
    kind, sizes = envs.spec.actions.kind, envs.spec.actions.sizes
    for _ in range(steps):
        actions = rng.integers(0, sizes[0], NUM) if kind == "discrete" else rng.uniform(-1, 1, (NUM, 1))
        step = envs.step(actions.astype(np.int64 if kind == "discrete" else np.float32))
        assert isinstance(step.obs, np.ndarray)
        out += [step.obs, step.reward, step.terminated, step.truncated, np.asarray(step.next_obs())]
    return out


@pytest.mark.parametrize("env_id", IDS)
def test_resumed_is_uninterrupted_bit_for_bit(env_id: str) -> None:
    kwargs = {"max_episode_steps": 40}
    whole = make(env_id, NUM, env_kwargs=kwargs)
    whole.reset(11)
    before = _trace(whole, 57, np.random.default_rng(1))
    state = whole.state_dict()
    after = _trace(whole, 100, np.random.default_rng(2))
    resumed = make(env_id, NUM, env_kwargs=kwargs)
    obs, _ = resumed.load_state_dict(state)
    np.testing.assert_array_equal(obs, before[-5])
    for one, other in zip(after, _trace(resumed, 100, np.random.default_rng(2)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("env_id", IDS)
def test_equal_seeds_give_equal_runs_and_others_do_not(env_id: str) -> None:
    runs = []
    for seed in (5, 5, 6):
        envs = make(env_id, NUM)
        obs, _ = envs.reset(seed)
        runs.append([np.asarray(obs), *_trace(envs, 50, np.random.default_rng(0))])
    assert all(np.array_equal(one, other) for one, other in zip(runs[0], runs[1], strict=True))
    assert not np.array_equal(runs[0][0], runs[2][0])


@pytest.mark.parametrize("env_id", IDS)
def test_no_array_is_a_view_of_what_steps_next(env_id: str) -> None:
    """Bug case 12: what was given stays as it was, however often the environment steps on."""
    envs = make(env_id, NUM, env_kwargs={"max_episode_steps": 7})
    obs, _ = envs.reset(0)
    given = [np.asarray(obs), *_trace(envs, 20, np.random.default_rng(0))]
    kept = [array.copy() for array in given]
    _trace(envs, 20, np.random.default_rng(1))
    envs.reset(1)
    assert all(np.array_equal(one, other) for one, other in zip(given, kept, strict=True))


def test_a_saved_state_is_not_a_view_either() -> None:
    envs = make("CartPole-v1", NUM)
    envs.reset(0)
    state = envs.state_dict()
    kept = state["states"].copy()
    _trace(envs, 5, np.random.default_rng(0))
    np.testing.assert_array_equal(state["states"], kept)


def test_an_unknown_constant_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ControlError, match="no parameter 'mass': choose among g, m, l"):
        make("Pendulum-v1", env_kwargs={"mass": 2.0})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"length": "abc"}, "length is 'abc': give a finite number"),
        ({"force_mag": float("nan")}, "force_mag is nan: give a finite number"),
        ({"max_episode_steps": "abc"}, "max_episode_steps is 'abc': give a whole number from 1 on"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0"),  # not: an episode without end
    ],
)
def test_a_constant_that_is_no_number_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ControlError, match=f"CartPole-v1: {sentence}"):
        make("CartPole-v1", 2, env_kwargs=given)


def test_a_step_before_the_first_reset_is_refused() -> None:
    with pytest.raises(ControlError, match=r"call reset\(seed\) first"):
        make("CartPole-v1", 2).step(np.zeros(2, np.int64))


def test_an_action_that_does_not_exist_is_refused() -> None:
    envs = make("CartPole-v1", 2)
    envs.reset(0)
    for wrong in ([0, 2], [0, -1]):  # −1 would be the last one, as numpy counts
        with pytest.raises(ControlError, match=r"cannot take the actions .*: give whole numbers from 0 to 1"):
            envs.step(np.array(wrong))


def test_a_state_of_another_number_of_slots_is_refused() -> None:
    envs = make("CartPole-v1", 2)
    envs.reset(0)
    with pytest.raises(ControlError, match="same environment and number of slots"):
        make("CartPole-v1", 3).load_state_dict(envs.state_dict())


def test_a_single_slot_has_the_episodes_of_slot_0_of_several() -> None:
    one, several = make("CartPole-v1"), make("CartPole-v1", 3)
    first, _ = one.reset(2)
    others, _ = several.reset(2)
    np.testing.assert_array_equal(np.asarray(first)[0], np.asarray(others)[0])
    for actions in np.random.default_rng(0).integers(0, 2, (200, 3)):
        step, wide = one.step(actions[:1]), several.step(actions)
        np.testing.assert_array_equal(np.asarray(step.obs)[0], np.asarray(wide.obs)[0])
        assert step.terminated[0] == wide.terminated[0]
