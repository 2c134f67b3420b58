"""Everything that ``make`` takes, seen through the contract and beside plain Gymnasium environments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper
from numpy.typing import NDArray

from onward.control.core.contract import Environments
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import Obs
from onward.control.environments import NoisyObservations, make
from onward.control.environments.gym_slots import GymSlots
from onward.control.environments.vector_slots import VectorSlots
from onward.errors import ControlError

NUM = 2
SAME_STEP = AutoresetMode.SAME_STEP


def _cartpole() -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=15)


class Counter(gymnasium.Env[Any, Any]):
    """Shows how often it was stepped, always in the same array; ends after ``length`` steps in either way."""

    def __init__(self, length: int = 3, ending: str = "truncated") -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = spaces.Discrete(2)
        self.length, self.ending = length, ending
        self.shown = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.shown[:] = 0
        return self.shown, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.shown += 1
        over = bool(self.shown[0] >= self.length)
        terminated, truncated = over and "term" in self.ending, over and "trunc" in self.ending
        return self.shown, 1.0, terminated, truncated, {"steps": int(self.shown[0])}


ADAPTERS: dict[str, Callable[[], Environments]] = {
    "numpy": lambda: make("CartPole-v1", NUM, env_kwargs={"max_episode_steps": 15}),
    "function": lambda: make(_cartpole, NUM),
    "list": lambda: make([_cartpole() for _ in range(NUM)]),
    "sync vector": lambda: make(SyncVectorEnv([_cartpole] * NUM, autoreset_mode=SAME_STEP)),
    "wrapped vector": lambda: make(VectorWrapper(SyncVectorEnv([_cartpole] * NUM, autoreset_mode=SAME_STEP))),
    "async vector": lambda: make(AsyncVectorEnv([_cartpole] * NUM, autoreset_mode=SAME_STEP)),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_adapter_tells_what_plain_environments_do(name: str) -> None:
    """At every border ``obs`` is of the next episode, ``next_obs`` of the ended one, and they differ."""
    envs = ADAPTERS[name]()
    try:
        plain = [_cartpole() for _ in range(NUM)]
        obs, _ = envs.reset(9)
        seeds = Seeds(9).slots(NUM)
        first = [env.reset(seed=seed)[0] for env, seed in zip(plain, seeds, strict=True)]
        np.testing.assert_array_equal(obs, np.stack(first))
        cut = over = 0
        given: list[tuple[Any, Any]] = []
        for actions in np.random.default_rng(0).integers(0, 2, (120, NUM)):
            step = envs.step(actions)
            results = [env.step(int(action)) for env, action in zip(plain, actions, strict=True)]
            reached = np.stack([raw for raw, *_ in results])
            following = reached.copy()
            for slot in np.flatnonzero(step.ended):
                following[slot] = plain[slot].reset()[0]
                assert not np.array_equal(np.asarray(step.next_obs())[slot], np.asarray(step.obs)[slot])
            np.testing.assert_array_equal(step.next_obs(), reached)
            np.testing.assert_array_equal(step.obs, following)
            assert step.terminated.tolist() == [result[2] for result in results]
            assert step.truncated.tolist() == [result[3] and not result[2] for result in results]
            assert step.reward.tolist() == [1.0] * NUM
            assert (step.final_obs is None) == (not step.ended.any())
            cut, over = cut + int(step.truncated.sum()), over + int(step.terminated.sum())
            given.append((np.asarray(step.obs), following))
        assert cut > 0
        assert over > 0
        for array, kept in given:  # bug case 12: nothing given was a view of what stepped on
            np.testing.assert_array_equal(array, kept)
    finally:
        envs.close()


@pytest.mark.parametrize("vector", [False, True])
def test_final_obs_is_copied_before_the_reset_overwrites_it(vector: bool) -> None:
    """Bug case 10 (Gymnasium#1132, #1680), with an environment that shows one array for ever."""
    source: Any = SyncVectorEnv([Counter] * NUM, autoreset_mode=SAME_STEP) if vector else Counter
    envs = make(source, NUM)
    envs.reset(0)
    steps = [envs.step(np.zeros(NUM, np.int64)) for _ in range(4)]
    np.testing.assert_array_equal(np.asarray([step.obs for step in steps])[:, 0, 0], [1, 2, 0, 1])
    np.testing.assert_array_equal(np.asarray([step.next_obs() for step in steps])[:, 0, 0], [1, 2, 3, 1])
    np.testing.assert_array_equal(steps[2].final_obs, [[3, 3], [3, 3]])
    assert steps[2].info["final_info"][0] == {"steps": 3}


def test_final_obs_has_rows_of_ended_slots_only_in_slot_order() -> None:
    envs = make([Counter(5), Counter(2), Counter(2)])
    envs.reset(0)
    envs.step(np.zeros(3, np.int64))
    step = envs.step(np.zeros(3, np.int64))
    np.testing.assert_array_equal(step.ended, [False, True, True])
    np.testing.assert_array_equal(step.final_obs, [[2, 2], [2, 2]])
    np.testing.assert_array_equal(step.obs, [[2, 2], [0, 0], [0, 0]])


def test_an_end_by_both_is_a_termination() -> None:
    envs = make([Counter(1, "terminated and truncated"), Counter(1, "truncated")])
    envs.reset(0)
    step = envs.step(np.zeros(2, np.int64))
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([True, False], [False, True])


def test_next_step_resets_are_refused_with_the_remedy() -> None:
    """Bug case 7: the step after an ending would be trained on."""
    for envs in (SyncVectorEnv([_cartpole]), gymnasium.make_vec("CartPole-v1", 2)):
        with pytest.raises(ControlError, match=r"NEXT_STEP.*AutoresetMode.SAME_STEP"):
            make(envs)


def test_the_same_instance_twice_is_refused() -> None:
    """Bug case 34, also behind two wrappers."""
    env = Counter()
    for source in ([env, env], [gymnasium.wrappers.TimeLimit(env, 3), gymnasium.wrappers.TimeLimit(env, 4)]):
        with pytest.raises(ControlError, match="0 and 1 are the same instance"):
            make(source)
    with pytest.raises(ControlError, match="same instance"):
        make(env, 2)
    with pytest.raises(ControlError, match="same instance"):
        make(lambda: env, 2)
    assert make(env).num == 1


def _continued(source: Any, kwargs: Any, draw: Any, before: int, after: int) -> None:
    whole, resumed = (make(source, NUM, env_kwargs=kwargs) for _ in range(2))
    whole.reset(21)
    rng = np.random.default_rng(0)
    last = [whole.step(draw(rng)) for _ in range(before)][-1]
    state = whole.state_dict()
    actions = [draw(rng) for _ in range(after)]
    expected = [whole.step(action) for action in actions]
    obs, _ = resumed.load_state_dict(state)
    np.testing.assert_array_equal(obs, last.obs)
    again = resumed.state_dict()
    np.testing.assert_array_equal(again["obs"], state["obs"])
    for action, step in zip(actions, expected, strict=True):
        other = resumed.step(action)
        np.testing.assert_array_equal(other.obs, step.obs)
        np.testing.assert_array_equal(other.next_obs(), step.next_obs())
        np.testing.assert_array_equal(other.reward, step.reward)
        np.testing.assert_array_equal(other.ended, step.ended)


def _discrete(rng: np.random.Generator) -> NDArray[Any]:
    return rng.integers(0, 4, NUM)


def _box(rng: np.random.Generator) -> NDArray[Any]:
    return rng.uniform(-1.2, 1.2, (NUM, 2)).astype(np.float32)


@pytest.mark.parametrize("before", [1, 110])
def test_lunar_lander_resumed_is_uninterrupted_bit_for_bit(before: int) -> None:
    """In the first episode from its seed, later from the random state at the episode's start."""
    _continued("LunarLander-v3", {}, _discrete, before, 120)


def test_lunar_lander_with_wind_and_box_actions_resumes_too() -> None:
    _continued("LunarLanderContinuous-v3", {"enable_wind": True}, _box, 110, 60)


def test_a_resumed_run_keeps_its_own_copy_of_actions() -> None:
    """The caller may reuse its action array: what will be replayed is a copy."""
    envs = make(lambda: gymnasium.make("LunarLanderContinuous-v3"), 1)
    envs.reset(0)
    actions = np.full((1, 2), 0.5, np.float32)
    envs.step(actions)
    actions[:] = -1
    np.testing.assert_array_equal(envs.state_dict()["actions"][0], [[0.5, 0.5]])


class Unseeded(Counter):
    """Draws from outside its own generator."""

    drawn = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Unseeded.drawn += 1
        raw, *rest = super().step(action)
        return raw + Unseeded.drawn, *rest


def test_what_cannot_be_repeated_is_not_resumed() -> None:
    envs = make(Unseeded, 1)
    envs.reset(0)
    envs.step(np.zeros(1, np.int64))
    with pytest.raises(ControlError, match="led Unseeded to another observation"):
        make(Unseeded, 1).load_state_dict(envs.state_dict())


def test_a_foreign_vector_environment_is_not_resumed() -> None:
    envs = make(VectorWrapper(SyncVectorEnv([_cartpole] * NUM, autoreset_mode=SAME_STEP)))
    assert isinstance(envs, VectorSlots)
    envs.reset(0)
    with pytest.raises(ControlError, match="instead of a VectorEnv"):
        envs.load_state_dict(envs.state_dict())


def test_a_plain_vector_environment_is_taken_apart_and_resumed() -> None:
    assert isinstance(make(SyncVectorEnv([_cartpole] * NUM, autoreset_mode=SAME_STEP)), GymSlots)


def test_two_seeded_runs_are_equal() -> None:
    """Bug case 24: one seed fixes environment, resets within and nothing else does."""
    runs = []
    for seed in (3, 3, 4):
        envs = make("LunarLander-v3", NUM)
        obs, _ = envs.reset(seed)
        rng = np.random.default_rng(0)
        runs.append(np.array([obs, *(envs.step(_discrete(rng)).obs for _ in range(150))]))
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0][0], runs[2][0])


def test_a_reset_starts_anew_whatever_was_before() -> None:
    envs = make("LunarLander-v3", NUM)
    first, _ = envs.reset(3)
    for _ in range(100):
        envs.step(np.zeros(NUM, np.int64))
    again, _ = envs.reset(3)
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("wrapped", [False, True])
def test_action_masks_come_from_info(wrapped: bool) -> None:
    """Taxi tells in ``info["action_mask"]`` which of its 6 actions do something."""
    taxi = partial(gymnasium.make, "Taxi-v4", max_episode_steps=20)
    plain = [taxi() for _ in range(NUM)]
    source: Any = taxi
    if wrapped:
        source = VectorWrapper(SyncVectorEnv([taxi] * NUM, autoreset_mode=SAME_STEP))
    envs = make(source, NUM)
    assert envs.spec.layout.width == 500
    _, mask = envs.reset(5)
    infos = [env.reset(seed=seed)[1] for env, seed in zip(plain, Seeds(5).slots(NUM), strict=True)]
    for actions in np.random.default_rng(0).integers(0, 6, (70, NUM)):
        assert mask is not None
        np.testing.assert_array_equal(mask, np.stack([info["action_mask"] for info in infos]) == 1)
        step = envs.step(actions)
        mask = step.action_mask
        for slot, env in enumerate(plain):
            _, _, over, cut, infos[slot] = env.step(int(actions[slot]))
            if over or cut:
                infos[slot] = env.reset()[1]


def test_dict_tuple_and_image_observations_through_vector_environments() -> None:
    class Rich(Counter):
        def __init__(self) -> None:
            super().__init__()
            image = spaces.Box(0, 255, (4, 5), np.uint8)
            self.observation_space = spaces.Dict(
                camera=image, rest=spaces.Tuple((spaces.Discrete(5), spaces.Box(0, 9, (1,))))
            )

        def _rich(self, raw: Any) -> Any:
            count = int(raw[0])
            return {"camera": np.full((4, 5), count, np.uint8), "rest": (count, raw[:1].copy())}

        def reset(self, **kwargs: Any) -> Any:
            raw, info = super().reset(**kwargs)
            return self._rich(raw), info

        def step(self, action: Any) -> Any:
            raw, *rest = super().step(action)
            return self._rich(raw), *rest

    def rows(obs: Obs | None) -> Any:
        assert isinstance(obs, dict)
        assert obs["camera"].dtype == np.uint8
        return obs["camera"][:, 0, 0, 0].tolist(), obs["vector"].argmax(axis=1).tolist()

    for source in (Rich, VectorWrapper(SyncVectorEnv([Rich] * NUM, autoreset_mode=SAME_STEP))):
        envs = make(source, NUM)
        envs.reset(0)
        for _ in range(2):
            step = envs.step(np.zeros(NUM, np.int64))
        assert rows(step.obs) == ([2, 2], [5, 5])  # the last number, 2.0, is larger than the one-hot 1
        step = envs.step(np.zeros(NUM, np.int64))
        assert rows(step.obs) == ([0, 0], [0, 0])
        assert rows(step.final_obs) == ([3, 3], [5, 5])
        assert rows(step.next_obs()) == ([3, 3], [5, 5])


def test_actions_reach_the_environment_in_its_own_space() -> None:
    class Asked(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.MultiDiscrete(np.array([[2, 3]]), start=np.array([[4, 7]]))
            self.asked: list[Any] = []

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            self.asked.append(action.tolist())
            return super().step(action)

    env = Asked()
    envs = make(env)
    envs.reset(0)
    envs.step(np.array([[1, 2]]))
    assert env.asked == [[[5, 9]]]


# Noise on observations


def test_noise_has_the_deviations_asked_for() -> None:
    """Sigma is what the caller gives, 0.2 times a running deviation; rewards and dynamics stay."""
    sigma = 0.2 * np.array([1.0, 2.0, 0.0])
    clean, noisy = make("Pendulum-v1", 50), make("Pendulum-v1", 50, obs_noise=sigma)
    difference = [np.asarray(noisy.reset(0)[0]) - np.asarray(clean.reset(0)[0])]
    finals = []
    for _ in range(400):
        actions = np.zeros((50, 1), np.float32)
        one, other = clean.step(actions), noisy.step(actions)
        np.testing.assert_array_equal(one.reward, other.reward)
        np.testing.assert_array_equal(one.truncated, other.truncated)
        difference.append(np.asarray(other.obs) - np.asarray(one.obs))
        if one.final_obs is not None:
            finals.append(np.asarray(other.final_obs) - np.asarray(one.final_obs))
    spread = np.concatenate(difference)
    np.testing.assert_allclose(spread.std(axis=0), sigma, rtol=0.03)
    np.testing.assert_allclose(spread.mean(axis=0), 0, atol=0.01)
    np.testing.assert_allclose(np.concatenate(finals).std(axis=0), sigma, rtol=0.25)


def test_noise_to_train_under_is_relative_to_what_was_observed() -> None:
    """0.2 × the running deviation of observations without noise, not 0.2 in the environment's units."""
    clean = make("Pendulum-v1", 50)
    noisy = NoisyObservations(make("Pendulum-v1", 50), 0.2, relative=True)
    met = [np.asarray(clean.reset(0)[0])]
    first = np.asarray(noisy.reset(0)[0]) - met[0]
    np.testing.assert_allclose(first.std(axis=0), 0.2 * met[0].std(axis=0), rtol=0.4)
    scaled = []
    for _ in range(400):
        actions = np.zeros((50, 1), np.float32)
        one, other = clean.step(actions), noisy.step(actions)
        met.append(np.asarray(one.obs))
        deviation = np.concatenate(met).std(axis=0)
        scaled.append((np.asarray(other.obs) - met[-1]) / deviation)
    np.testing.assert_allclose(np.concatenate(scaled).std(axis=0), 0.2, rtol=0.03)


def test_relative_noise_of_one_slot_begins_without_any() -> None:
    """A single row has no deviation; taken for 1, the first action would be chosen blind."""
    noisy = NoisyObservations(make("CartPole-v1", 1), 0.2, relative=True)
    np.testing.assert_array_equal(noisy.reset(4)[0], make("CartPole-v1", 1).reset(4)[0])


def test_relative_noise_goes_on_after_a_resume() -> None:
    whole, resumed = (NoisyObservations(make("CartPole-v1", NUM), 0.2, relative=True) for _ in range(2))
    whole.reset(5)
    for _ in range(20):
        whole.step(np.zeros(NUM, np.int64))
    resumed.reset(6)
    resumed.load_state_dict(whole.state_dict())
    for _ in range(20):
        one, other = whole.step(np.ones(NUM, np.int64)), resumed.step(np.ones(NUM, np.int64))
        np.testing.assert_array_equal(one.obs, other.obs)


def test_noise_repeats_with_the_seed_and_goes_on_after_a_resume() -> None:
    whole, resumed = (make("CartPole-v1", NUM, obs_noise=0.1) for _ in range(2))
    first, _ = whole.reset(5)
    again, _ = resumed.reset(5)
    np.testing.assert_array_equal(first, again)
    last = [whole.step(np.zeros(NUM, np.int64)) for _ in range(20)][-1]
    obs, _ = resumed.load_state_dict(whole.state_dict())
    np.testing.assert_array_equal(obs, last.obs)
    for _ in range(20):
        one, other = whole.step(np.ones(NUM, np.int64)), resumed.step(np.ones(NUM, np.int64))
        np.testing.assert_array_equal(one.obs, other.obs)


def test_noise_leaves_images_alone() -> None:
    clean, noisy = make("onward/CatchDict-v0", NUM), make("onward/CatchDict-v0", NUM, obs_noise=0.5)
    (one, _), (other, _) = clean.reset(0), noisy.reset(0)
    assert isinstance(one, dict)
    assert isinstance(other, dict)
    np.testing.assert_array_equal(one["ball"], other["ball"])
    assert not np.array_equal(one["vector"], other["vector"])


# What is refused

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "an unknown id": (lambda: make("Nowhere-v0"), "choose an id"),
    "no slots": (lambda: make("CartPole-v1", 0), "at least 1"),
    "an argument the id does not take": (lambda: make("LunarLander-v3", env_kwargs={"mass": 1}), "mass"),
    "arguments without an id": (lambda: make(Counter, env_kwargs={"length": 1}), "go with an id only"),
    "too few": (lambda: make([Counter()], 2), "one environment per slot"),
    "none": (lambda: make([]), "one environment per slot"),
    "no environment": (lambda: make(3), "give an id"),
    "a function that makes none": (lambda: make(dict), "give an id"),
    "another size than the vector's": (
        lambda: make(SyncVectorEnv([Counter] * 2, autoreset_mode=SAME_STEP), 3),
        "has 2 slots",
    ),
    "different environments": (
        lambda: make([Counter(), gymnasium.make("CartPole-v1")]),
        "another observation_space than environment 0",
    ),
    "noise of another width": (lambda: make("CartPole-v1", obs_noise=[0.1, 0.2]), "4, one per number"),
    "negative noise": (lambda: make("CartPole-v1", obs_noise=-1.0), "at least 0"),
    "noise on images": (lambda: make("onward/Catch-v0", obs_noise=0.1), "leave it out"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_with_a_remedy(name: str) -> None:
    attempt, remedy = REFUSED[name]
    with pytest.raises(ControlError, match=remedy):
        attempt()


def test_a_step_before_the_first_reset_is_refused() -> None:
    with pytest.raises(ControlError, match=r"call reset\(seed\) first"):
        make(Counter).step(np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("env_id", "given", "sentence"),
    [
        ("LunarLander-v3", {"gravity": 5}, "with {'gravity': 5} .gravity .current value: 5. must be between"),
        ("FrozenLake-v1", {"map_name": "lava"}, "with {'map_name': 'lava'} .'lava'."),
        ("a:b:c", {}, "cannot make 'a:b:c' .too many values"),
    ],
)
def test_what_an_environment_says_of_its_arguments_is_one_sentence(
    env_id: str, given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ControlError, match=sentence) as told:
        make(env_id, env_kwargs=given)
    assert "\n" not in str(told.value)


def test_minigrid_comes_with_its_mission_flattened_as_in_the_zoo() -> None:
    pytest.importorskip("minigrid")
    envs = make("MiniGrid-DoorKey-5x5-v0", 2)
    obs, _ = envs.reset(0)
    # 7 × 7 × 3 numbers of the view, 96 letters × 28 signs of the mission
    assert isinstance(obs, np.ndarray) and obs.shape == (2, 2835)
    envs.close()
