"""Environments of one's own: every slip is one sentence with slot and step, and nothing wrong passes."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation, TimeLimit, TransformAction

from onward.control.core.contract import LONGEST_EPISODE
from onward.control.environments import make
from onward.control.environments.check import check, require
from onward.control.evaluation.evaluate import RandomActor, play, success_rule
from onward.errors import ControlError, EnvironmentFault


class Own(gymnasium.Env[Any, Any]):
    """Ends after 20 steps. ``change`` gets (step, the five results) and returns what ``step`` returns."""

    def __init__(self, change: Callable[[int, list[Any]], Any] = lambda at, results: tuple(results)) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)
        self.change, self.at = change, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return self.observe(), {}

    def observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def step(self, action: Any) -> Any:
        self.at += 1
        results = [self.observe(), float(action), False, self.at >= 20, {}]
        return self.change(self.at, results) if self.at == 13 else tuple(results)


def put(position: int, value: Any) -> Callable[[int, list[Any]], Any]:
    """A change of one of the five results."""

    def change(at: int, results: list[Any]) -> Any:
        results[position] = value
        return tuple(results)

    return change


def run(env: Any, steps: int = 40) -> None:
    envs = make([Own(), env])
    envs.reset(0)
    for _ in range(steps):
        envs.step(np.ones(2, np.int64))


NAN = np.array([0, np.nan, 0], np.float32)
SLIPS: dict[str, tuple[Callable[[int, list[Any]], Any], str]] = {
    "four values": (lambda at, r: (r[0], r[1], r[2], r[4]), "step returned a tuple of 4 values; return .obs"),
    "a list": (lambda at, r: r, "step returned a list; return"),
    "nothing": (lambda at, r: None, "step returned None; return"),
    "a reward in an array": (put(1, np.ones(1)), r"the reward is an array of shape \(1,\); return one"),
    "no reward": (put(1, None), "the reward is None; return one number"),
    "a reward as text": (put(1, "1.0"), "the reward is a str; return one number"),
    "a reward that is NaN": (put(1, float("nan")), "the reward is nan; return a finite number"),
    "an endless reward": (put(1, np.float32("-inf")), "the reward is -inf"),
    "a reward too large for float32": (put(1, 1e300), r"the reward is 1e\+300"),
    "terminated as a number": (put(2, 0.5), "terminated is a float; return True or False"),
    "terminated as None": (put(2, None), "terminated is None"),
    "truncated as an array": (put(3, np.array([False])), r"truncated is an array of shape \(1,\)"),
    "info and truncated exchanged": (lambda at, r: (*r[:3], r[4], r[3]), "bool where info, a dict, is"),
    "no info": (put(4, None), "step returned None where info, a dict"),
    "a short observation": (put(0, np.zeros(2, np.float32)), r"has the shape \(2,\) .* declares \(3,\)"),
    "an observation with an axis more": (put(0, np.zeros((1, 3))), r"has the shape \(1, 3\)"),
    "an observation with NaN": (put(0, NAN), "the observation holds nan at position 1; return finite"),
    "an observation too large": (put(0, np.array([1e39, 0, 0])), r"holds 1e\+39 at position 0"),
    "no observation": (put(0, None), "the observation is None; return an array of numbers"),
    "a ragged observation": (put(0, [1.0, [2.0, 3.0]]), "the observation is a list"),
    "an observation as text": (put(0, np.array(["a", "b", "c"])), "is an array of shape"),
    "a mask of another size": (put(4, {"action_mask": [1, 1, 1]}), "give 2 values, one per choice"),
    "a mask without an action": (put(4, {"action_mask": [0, 0]}), "allows no action"),
}  # fmt: skip


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_is_one_sentence_with_slot_and_step(name: str) -> None:
    change, sentence = SLIPS[name]
    with pytest.raises(EnvironmentFault, match=sentence) as fault:
        run(Own(change))
    assert str(fault.value).startswith("Own, slot 1, step 13 of its episode: ")
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("position", "value"),
    [(1, 1), (1, np.float64(0.5)), (1, np.array(0.5)), (1, True), (2, 0), (3, np.bool_(False)),
     (2, np.array(False)), (0, [0.0, 0.5, 1.0]), (0, np.zeros(3, np.float64)), (0, np.zeros(3, np.int64))],
)  # fmt: skip
def test_data_of_another_type_that_loses_nothing_is_cast(position: int, value: Any) -> None:
    run(Own(put(position, value)))


class OldReset(Own):
    def reset(self, **given: Any) -> Any:
        return super().reset(**given)[0]


class InfoLess(Own):
    def reset(self, **given: Any) -> Any:
        return super().reset(**given)[0], None


class Seedless(Own):
    def reset(self) -> Any:  # type: ignore[override]
        return np.zeros(3, np.float32), {}


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (OldReset, r"reset returned an array of shape \(3,\); return \(observation, info\)"),
        (InfoLess, "reset returned None where info is expected"),
        (Seedless, r"takes no seed and options; define reset\(self, \*, seed=None, options=None\)"),
    ],
)
def test_a_slip_of_reset_is_one_sentence(kind: Any, sentence: str) -> None:
    with pytest.raises(EnvironmentFault, match=f"slot 1, the start of an episode: .*{sentence}"):
        run(kind())


def test_spaces_that_are_missing_or_no_spaces_are_named() -> None:
    class Spaceless(gymnasium.Env[Any, Any]):
        pass

    with pytest.raises(ControlError, match=r"Spaceless has no observation_space: set self.observation_space"):
        make(Spaceless)
    env = Own()
    env.action_space = 2  # type: ignore[assignment]
    with pytest.raises(ControlError, match="action_space of Own is an int, not a space of Gymnasium"):
        make([env])


def test_the_remedy_for_actions_without_bounds_works() -> None:
    env = Own()
    env.action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    with pytest.raises(
        ControlError, match=r"gymnasium.wrappers.TransformAction\(env, .*Box\(-1, 1, \(2,\)\)\)"
    ):
        make([env])
    bounded = TransformAction(env, lambda action: action, spaces.Box(-1, 1, (2,)))
    assert make([bounded]).spec.actions.low == (-1.0, -1.0)


class Pictures(Own):
    def __init__(self, picture: Any) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, np.shape(picture), np.uint8)
        self.picture = picture

    def observe(self) -> Any:
        return self.picture


def test_floats_where_bytes_are_declared_are_named_and_bytes_of_another_type_are_cast() -> None:
    floats = np.random.default_rng(0).random((12, 12, 3)).astype(np.float32)
    with pytest.raises(EnvironmentFault, match="is float32, where observation_space declares uint8"):
        make([Pictures(floats)]).reset(0)
    with pytest.raises(EnvironmentFault, match=r"holds -1 … 300"):
        make([Pictures(np.array([[-1, 300]]).repeat(6, 0).repeat(3, 1))]).reset(0)
    whole = np.arange(48).reshape(4, 4, 3)
    obs, _ = make([Pictures(whole)]).reset(0)
    assert isinstance(obs, dict)
    np.testing.assert_array_equal(obs["image"][0], whole)


def test_a_choice_that_its_space_does_not_have_is_named() -> None:
    for given in (5, 2.5):
        env = Own()
        env.observation_space = spaces.Discrete(5)
        env.observe = lambda given=given: given  # type: ignore[method-assign]
        with pytest.raises(
            EnvironmentFault, match=f"the observation is {given} where it has 5 choices from 0 on"
        ):
            make([env]).reset(0)


def test_a_part_that_is_missing_is_named() -> None:
    env = Own()
    env.observation_space = spaces.Dict(arm=spaces.Box(-1, 1, (1,)), goal=spaces.Discrete(3))
    env.observe = lambda: {"arm": np.zeros(1, np.float32)}  # type: ignore[method-assign]
    with pytest.raises(EnvironmentFault, match="observation part 'goal' is missing in a dict"):
        make([env]).reset(0)


def test_stacked_frames_are_one_image_with_all_channels() -> None:
    """Frames f, height h, width w, channels c: channel f · C + c holds frame f."""
    frames = np.random.default_rng(1).integers(0, 256, (4, 9, 8, 3), np.uint8)
    obs, _ = make([Pictures(frames)]).reset(0)
    assert isinstance(obs, dict)
    assert obs["image"].shape == (1, 9, 8, 12)
    for frame in range(4):
        np.testing.assert_array_equal(obs["image"][0, :, :, 3 * frame : 3 * frame + 3], frames[frame])
    first = np.moveaxis(frames, -1, 1)  # (frames, channels, height, width)
    turned, _ = make([Pictures(first)]).reset(0)
    assert isinstance(turned, dict)
    np.testing.assert_array_equal(turned["image"], obs["image"])
    stacked = make([FrameStackObservation(Pictures(frames[0]), 4)])
    assert stacked.spec.layout.images == (("image", (9, 8, 12)),)


# Errors that the environment raises.


def broken(at: int, results: list[Any]) -> Any:
    raise RuntimeError("motor driver\nlost")


def test_an_error_of_the_environment_is_one_sentence_and_keeps_its_traceback() -> None:
    with pytest.raises(EnvironmentFault) as fault:
        run(Own(broken))
    line = broken.__code__.co_firstlineno + 1
    assert str(fault.value) == (
        "Own, slot 1, step 13 of its episode: step raised RuntimeError: motor driver lost; "
        f"correct it at {Path(__file__).name}:{line}."
    )
    assert "in broken" in fault.value.trace
    assert "checked_env.py" not in fault.value.trace
    assert isinstance(fault.value.__cause__, RuntimeError)
    crossed = pickle.loads(pickle.dumps(fault.value))  # from a worker to its trainer
    assert (str(crossed), crossed.trace) == (str(fault.value), fault.value.trace)


def test_an_environment_that_ends_the_program_is_an_error_too() -> None:
    def closed(at: int, results: list[Any]) -> Any:
        raise SystemExit

    with pytest.raises(
        EnvironmentFault, match="step 13 of its episode: step raised SystemExit; correct it at"
    ):
        run(Own(closed))


def test_after_an_error_the_state_is_that_of_before_the_step() -> None:
    """The first slot was stepped already; a resumed run must not step it twice."""
    envs = make([Own(), Own(broken)])
    envs.reset(0)
    obs: Any = None
    for _ in range(12):
        obs = envs.step(np.ones(2, np.int64)).obs
    with pytest.raises(EnvironmentFault):
        envs.step(np.ones(2, np.int64))
    healthy = make([Own(), Own()])
    np.testing.assert_array_equal(healthy.load_state_dict(envs.state_dict())[0], obs)


def test_errors_and_data_of_a_vector_environment_are_named_too() -> None:
    for change, sentence in (
        (broken, "step failed .*RuntimeError: motor driver lost"),
        (put(0, NAN), "slot 0: an observation is not finite"),
        (put(1, np.inf), "slot 0: the reward is not finite"),
    ):
        vector = gymnasium.vector.VectorWrapper(
            SyncVectorEnv([lambda change=change: Own(change)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
        )
        envs = make(vector)
        envs.reset(0)
        with pytest.raises(EnvironmentFault, match=sentence):
            for _ in range(13):
                envs.step(np.ones(2, np.int64))


# Generators.


class Global(Own):
    def observe(self) -> Any:
        drawn = [np.random.uniform(-1, 1), random.uniform(-1, 1), self.action_space.sample()]
        return np.array(drawn, np.float32)


def test_global_generators_are_seeded_for_each_slot_and_left_as_they_were() -> None:
    np.random.seed(5)
    random.seed(5)
    expected = np.random.RandomState(5).rand(), random.Random(5).random()

    def observed(seed: int) -> Any:
        envs = make([Global(), Global()])
        rows = [envs.reset(seed)[0]]
        rows += [envs.step(np.ones(2, np.int64)).obs for _ in range(70)]
        return np.array(rows)

    one, other = observed(0), observed(0)
    np.testing.assert_array_equal(one, other)
    assert not np.array_equal(one[:, 0, :2], one[:, 1, :2])
    assert not np.array_equal(one, observed(1))
    assert (np.random.rand(), random.random()) == expected


def test_an_environment_of_global_generators_goes_on_as_if_uninterrupted() -> None:
    whole, resumed = make([Global(), Global()]), make([Global(), Global()])
    whole.reset(3)
    for _ in range(25):  # into the second episode
        whole.step(np.ones(2, np.int64))
    resumed.load_state_dict(whole.state_dict())
    for _ in range(30):
        one, other = whole.step(np.ones(2, np.int64)), resumed.step(np.ones(2, np.int64))
        np.testing.assert_array_equal(one.obs, other.obs)


# Episodes without an end, and success.


class Endless(Own):
    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), 1.0, False, False, {}


def test_an_episode_without_a_limit_is_cut_so_that_evaluations_end() -> None:
    env = make([Endless()])
    found = play(RandomActor(env.spec.actions), env, 1)
    assert found.lengths.tolist() == [LONGEST_EPISODE]
    limited = make([TimeLimit(Endless(), 30)])
    assert limited.spec.max_steps == 30
    assert play(RandomActor(limited.spec.actions), limited, 2).lengths.tolist() == [30, 30]


class Goal(Own):
    """Succeeds in every other episode."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key, self.episodes = key, 0

    def step(self, action: Any) -> Any:
        raw, _, _, over, _ = super().step(action)
        self.episodes += over
        return raw, 0.0, over, False, {self.key: over and self.episodes % 2 == 1}


@pytest.mark.parametrize("key", ["success", "is_success"])
@pytest.mark.parametrize("vector", [False, True])
def test_success_that_an_environment_reports_counts(key: str, vector: bool) -> None:
    source: Any = [Goal(key)]
    if vector:
        inner = SyncVectorEnv([lambda: Goal(key)], autoreset_mode=AutoresetMode.SAME_STEP)
        source = gymnasium.vector.VectorWrapper(inner)
    env = make(source)
    rule = success_rule(env.spec)
    found = play(RandomActor(env.spec.actions), env, 4, rule=rule)
    assert found.successes is not None
    assert found.successes.tolist() == [True, False, True, False]
    assert "success" in rule.words


class OnlySuccesses(Goal):
    """Reports nothing of a failure."""

    def step(self, action: Any) -> Any:
        *results, info = super().step(action)
        return *results, {key: value for key, value in info.items() if value}


def test_an_episode_without_a_report_failed_where_others_have_one() -> None:
    env = make([OnlySuccesses("success")])
    found = play(RandomActor(env.spec.actions), env, 4, rule=success_rule(env.spec))
    assert found.successes is not None
    assert found.successes.tolist() == [True, False, True, False]


def test_a_threshold_that_is_asked_for_comes_before_the_report_and_none_is_unknown() -> None:
    env = make([Goal("success")])
    actor = RandomActor(env.spec.actions)
    assert play(actor, env, 4, rule=success_rule(env.spec, 0.0)).success == 1.0
    plain = make([Own()])
    assert play(actor, plain, 4, rule=success_rule(plain.spec)).success is None


# The check.


def kinds(source: Any, **given: Any) -> dict[str, str]:
    """Severity of each finding, by its sentence."""
    return {found.sentence: found.severity for found in check(source, **given)}


def severity(findings: dict[str, str], part: str) -> str:
    found = [kind for sentence, kind in findings.items() if part in sentence]
    assert len(found) == 1, findings
    return found[0]


def test_a_good_environment_has_no_errors_and_no_warnings() -> None:
    assert check("CartPole-v1") == []
    assert set(kinds(lambda: TimeLimit(Own(), 50), steps=60).values()) == set()
    assert require(Own) == ([], False)


def test_the_check_lists_every_slip_once_with_its_remedy() -> None:
    def change(at: int, results: list[Any]) -> Any:
        return results[0], None, 0.5, results[3], []

    found = kinds(lambda: Own(change), steps=60)
    for part in ("the reward is None", "terminated is a float", "step returned a list where info"):
        assert severity(found, f"Own, at step 13 of an episode: {part}") == "error"
    with pytest.raises(ControlError, match="at step 13 of an episode: step returned a list where info"):
        require(lambda: Own(change))


def test_an_endless_task_is_an_error_that_names_the_limit() -> None:
    with pytest.raises(
        ControlError, match=r"no episode ended within 10,000 steps.*--env-set max_episode_steps"
    ):
        require(Endless)
    assert severity(kinds(Own), "an episode is cut after 10,000 steps") == "note"
    assert require(lambda: TimeLimit(Endless(), 100)) == ([], False)


class Unseeded(Own):
    def observe(self) -> Any:
        return np.random.default_rng().uniform(-2, 2, 3)


class Keeps(Own):
    kept = 0

    def step(self, action: Any) -> Any:
        Keeps.kept += 1
        raw, *others = super().step(action)
        return raw + np.float32(Keeps.kept), *others


def test_the_check_finds_what_harms_learning_without_an_error() -> None:
    found = kinds(Unseeded)
    assert severity(found, "reset with the same seed gave another observation") == "warning"
    assert severity(found, "outside its bounds -1 … 1") == "warning"
    assert severity(found, "float64, where observation_space declares float32; it is cast") == "note"
    assert (
        severity(kinds(Keeps), "the same seed and actions led to another observation (number 1)") == "warning"
    )
    env = Own()
    env.observation_space = spaces.Box(0, 1, (20, 20, 3), np.float32)
    env.observe = lambda: np.zeros((20, 20, 3), np.float32)  # type: ignore[method-assign]
    assert severity(kinds([env]), "1,200 separate numbers; if it is a picture") == "warning"
    assert severity(kinds(Global), "global generators of numpy.random and random") == "note"


# Modules of one's own.


MODULE = """
import gymnasium, numpy as np
from gymnasium import spaces
class Lift(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    def __init__(self, floors=3):
        self.floors = floors
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}
    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}
dict = dict
gymnasium.register("own/Lift-v0", entry_point=Lift, max_episode_steps=7)
"""


def test_a_module_of_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in __import__("sys").path if path])
    (tmp_path / "liftmodule.py").write_text(MODULE)
    (tmp_path / "wrongmodule.py").write_text("1 / 0\n")
    assert make("liftmodule:own/Lift-v0").spec.max_steps == 7
    envs = make("liftmodule:Lift", 2, env_kwargs={"floors": 5, "max_episode_steps": 9})
    assert (envs.spec.id, envs.spec.max_steps, envs.num) == ("Lift", 9, 2)
    for name, sentence in (
        ("liftmodule:Elevator", "no class of that name: give one of own/Lift-v0"),
        ("liftmodule:np", "no class of that name"),
        ("liftmodule:dict", "makes a dict, not a gymnasium.Env"),
        ("./liftmodule.py:Lift", "is a path: .* give the name of the module, liftmodule:Lift"),
        ("wrongmodule:Lift-v0", r"ZeroDivisionError: division by zero\) at wrongmodule.py:1: correct it"),
        ("nomodule:Lift-v0", "There is no module 'nomodule' in .*PYTHONPATH"),
    ):
        with pytest.raises(ControlError, match=sentence):
            make(name)
    with pytest.raises(ControlError, match="max_episode_steps is 0: give a whole number from 1 on"):
        make("liftmodule:Lift", env_kwargs={"max_episode_steps": 0})


# Processes.


class Pid(Own):
    """Reports its process; action 0 fails."""

    def step(self, action: Any) -> Any:
        if action == 0:
            raise OSError("the door is open")
        raw, reward, terminated, truncated, _ = super().step(action)
        return raw, reward, terminated, truncated, {"success": True, "pid": os.getpid()}


def test_processes_give_the_results_of_one_process_and_a_state_of_either_goes_on_in_the_other() -> None:
    alone, apart = make(Pid, 3), make(Pid, 3, processes=2)
    try:
        obs: Any = alone.reset(4)[0]
        np.testing.assert_array_equal(obs, apart.reset(4)[0])  # type: ignore[arg-type]
        for _ in range(25):
            one, other = alone.step(np.ones(3, np.int64)), apart.step(np.ones(3, np.int64))
            obs = one.obs
            for name in ("obs", "reward", "terminated", "truncated"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
            np.testing.assert_array_equal(one.next_obs(), other.next_obs())
            if other.ended.any():
                pids = [other.info["final_info"][slot]["pid"] for slot in range(3)]
                assert pids[0] == pids[1] != pids[2]
                assert os.getpid() not in pids
        before = apart.state_dict()
        np.testing.assert_array_equal(alone.load_state_dict(before)[0], obs)
        np.testing.assert_array_equal(apart.load_state_dict(alone.state_dict())[0], obs)
        with pytest.raises(
            EnvironmentFault, match="slot 2, step 6 of its episode: step raised OSError"
        ) as fault:
            apart.step(np.array([1, 1, 0]))
        assert "the door is open" in fault.value.trace
        with pytest.raises(ControlError, match="was not saved: one of their processes failed"):
            apart.load_state_dict(apart.state_dict())
        apart.reset(4)  # the workers are alive
    finally:
        apart.close()


ABANDONED = """
from onward.control.environments import make
if __name__ == "__main__":
    envs = make("FrozenLake-v1", 2, processes=2)
    envs.reset(0)
"""


def test_a_program_ends_though_it_closes_no_processes(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ABANDONED)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], timeout=120, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    envs = make("FrozenLake-v1", 2, processes=2)
    processes = [process for process, _ in envs._workers]  # type: ignore[attr-defined]
    del envs
    assert [process.exitcode for process in processes] == [0, 0]


def test_an_environment_that_no_process_can_make_is_refused() -> None:
    with pytest.raises(ControlError, match="give an id, or a function of a module"):
        make(lambda: Own(), 2, processes=2)
    with pytest.raises(ControlError, match="choose an id"):
        make("Nowhere-v0", 2, processes=2)
    assert make("CartPole-v1", 2, processes=2).num == 2  # in numpy, without processes


class OneLegal(Own):
    """Allows one choice of each component, another one in each state; no choice where it has ended."""

    def __init__(self, space: spaces.Space[Any], sizes: list[int]) -> None:
        super().__init__()
        self.action_space, self.sizes = space, sizes

    def mask(self) -> dict[str, Any]:
        parts = [np.arange(size) == self.at % size for size in self.sizes]
        return {"action_mask": np.concatenate(parts) & (self.at < 20)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0], self.mask()

    def step(self, action: Any) -> Any:
        if [int(one) for one in np.atleast_1d(action)] != [self.at % size for size in self.sizes]:
            raise ValueError("an illegal action")
        self.at += 1
        return self.observe(), 0.0, False, self.at >= 20, self.mask()


@pytest.mark.parametrize(
    ("space", "sizes"), [(spaces.Discrete(3), [3]), (spaces.MultiDiscrete([2, 3]), [2, 3])], ids=repr
)
def test_the_check_plays_legal_actions_alone(space: spaces.Space[Any], sizes: list[int]) -> None:
    found = check(lambda: OneLegal(space, sizes), steps=50)
    assert [one.sentence for one in found if one.severity == "error"] == []
