"""Training from Python: ids, functions and classes, callbacks, and weights of another run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from docs_blocks import run_command
from gymnasium import spaces

from onward.control import evaluate, resume, train
from onward.control.algorithms.ppo import PPO
from onward.control.core.config import PPOConfig
from onward.control.core.seeds import Seeds
from onward.control.environments import make as make_env
from onward.control.running import checkpoint
from onward.control.running.runs import Folder
from onward.errors import ControlError

SMALL: dict[str, Any] = {"num_envs": 4, "n_steps": 32, "batch_size": 64, "epochs": 4, "hidden": (16,)}


class Sides(gym.Env[Any, Any]):
    """Two numbers; the action that names the larger one earns 1. Episodes of 10 steps."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, shift: float = 0.0) -> None:
        self.shift = shift

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(int(self.seen[1] > self.seen[0]) == action)
        self.t += 1
        return self._draw(), reward, False, self.t >= 10, {}

    def _draw(self) -> Any:
        self.seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.seen


def test_a_class_is_trained_in_and_its_policy_is_judged(tmp_path: Path) -> None:
    found = train(Sides, "ppo", timesteps=6000, folder=tmp_path / "r", settings=SMALL, seed=1)
    assert found.summary["end"] == "finished" and found.summary["steps"] >= 6000
    assert json.loads((tmp_path / "r" / "config.json").read_text())["env"] == "Sides"
    played = evaluate(found.policy, Sides, episodes=30, threshold=9.0)
    assert played.mean > 9.0 and played.success is not None and played.success > 0.7
    assert len(played.returns) == 30 and (played.lengths == 10).all()
    assert evaluate(tmp_path / "r", Sides, episodes=30).returns.tolist() == played.returns.tolist()


def test_a_callback_receives_events_and_ends_the_run_which_then_goes_on(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []

    def stop(event: dict[str, Any]) -> bool:
        told.append(event)
        return event["step"] < 640

    found = train(Sides, "ppo", timesteps=2000, folder=tmp_path / "r", settings=SMALL, callbacks=[stop])
    assert found.summary["end"] == "interrupted" and 640 <= found.summary["steps"] < 2000
    assert [told[0]["event"], told[-1]["event"]] == ["started", "done"]
    again = resume(tmp_path / "r", Sides)
    whole = train(Sides, "ppo", timesteps=2000, folder=tmp_path / "whole", settings=SMALL)
    states = [checkpoint.load(Folder(path).state) for path in (again.folder, whole.folder)]
    assert torch.equal(*(state["algorithm"]["parameters"] for state in states))


def test_a_finished_run_goes_on_to_a_later_end_only(tmp_path: Path) -> None:
    train(Sides, "ppo", timesteps=640, folder=tmp_path / "r", settings=SMALL, eval_episodes=1)
    rows = (tmp_path / "r" / "metrics.csv").read_text()
    for same in (None, 640):
        with pytest.raises(ControlError, match="is finished: give --timesteps with a later end"):
            resume(tmp_path / "r", Sides, timesteps=same)
    with pytest.raises(ControlError, match="is at step 640 already: give it a later end than 512"):
        resume(tmp_path / "r", Sides, timesteps=512)
    assert (tmp_path / "r" / "metrics.csv").read_text() == rows
    assert resume(tmp_path / "r", Sides, timesteps=768).summary["steps"] == 768


def test_a_solved_run_goes_on_to_the_end_that_is_asked_for(tmp_path: Path) -> None:
    given: dict[str, Any] = {"settings": SMALL, "threshold": 0.0, "eval_episodes": 1}
    found = train(Sides, "ppo", timesteps=6400, folder=tmp_path / "r", **given)
    solved = found.summary["solved"]
    assert found.summary["end"] == "solved" and solved["step"] < 1600
    with pytest.raises(ControlError, match="is solved: give --timesteps with a later end"):
        resume(tmp_path / "r", Sides)
    again = resume(tmp_path / "r", Sides, timesteps=2048).summary
    assert (again["end"], again["steps"], again["solved"]) == ("finished", 2048, solved)


def test_threads_and_denormal_numbers_are_as_before(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_flush_denormal(False)
    train(Sides, "ppo", timesteps=128, folder=tmp_path / "r", settings=SMALL, eval_episodes=1)
    assert torch.get_num_threads() == before
    assert float(torch.tensor([1e-30]) * 1e-9) != 0.0


def test_a_policy_of_other_spaces_is_one_sentence(tmp_path: Path) -> None:
    found = train(Sides, "ppo", timesteps=128, folder=tmp_path / "r", settings=SMALL, eval_episodes=1)
    for env, words in (
        ("CartPole-v1", "The policy takes 2 numbers, CartPole-v1 gives 4 numbers: evaluate it in"),
        ("MountainCar-v0", r"The policy gives discrete actions \[2\], MountainCar-v0 takes discrete actions"),
    ):
        with pytest.raises(ControlError, match=words):
            evaluate(found.policy, env, episodes=2)


@pytest.mark.parametrize(
    ("env", "algorithm", "more", "words"),
    [
        (Sides(), "ppo", {}, "training needs several: give an id, or a function"),
        (Sides, None, {}, "No algorithm was given"),
        (Sides, "pppo", {}, "There is no algorithm 'pppo'"),
        (Sides, "sac", {}, "sac cannot learn"),
        (Sides, "ppo", {"settings": {"n_stepz": 1}}, "no such name"),
        (Sides, "ppo", {"evaluate_every": 1}, "no such name"),
        (lambda: Sides(), "a3c", {}, "define it at the top of a module"),
        (Sides, "ppo", {"start": "x", "preset": "zoo"}, "leave out preset"),
        (Sides, "ppo", {"start": "nowhere"}, "holds no run"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_no_folder(
    tmp_path: Path, env: Any, algorithm: Any, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(ControlError, match=words):
        train(env, algorithm, folder=tmp_path / "r", timesteps=100, **more)
    assert not (tmp_path / "r").exists() or not list((tmp_path / "r").glob("config.json"))


# From the weights of another run.

LEARNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", {**SMALL, "normalise_obs": True}),
    "reinforce": ("CartPole-v1", {"num_envs": 4, "episodes": 2, "hidden": (8,)}),
    "dqn": ("CartPole-v1", {"hidden": (8,), "learning_starts": 20, "batch_size": 8, "num_envs": 2}),
    "sac": ("Pendulum-v1", {"hidden": (8,), "learning_starts": 20, "batch_size": 8}),
    "td3": ("Pendulum-v1", {"hidden": (8,), "learning_starts": 20, "batch_size": 8}),
    "q_learning": ("FrozenLake-v1", {"num_envs": 2}),
}


def learned(path: Path) -> dict[str, Any]:
    """Returns the arrays of a run's saved state that its acting depends on."""
    state = checkpoint.load(Folder(path).state)["algorithm"]
    found = {"parameters": state.get("parameters"), "table": state.get("table"), **state.get("weights", {})}
    found |= {"mean": (state.get("norm") or {}).get("mean")}
    return {name: np.asarray(value) for name, value in found.items() if value is not None}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", LEARNERS)
def test_a_run_starts_from_what_another_one_learned_with_other_slots(tmp_path: Path, algorithm: str) -> None:
    env, settings = LEARNERS[algorithm]
    given: dict[str, Any] = {"eval_episodes": 1, "stop_when_solved": False}
    train(env, algorithm, timesteps=600, folder=tmp_path / "a", settings=settings, **given)
    begun: list[dict[str, Any]] = []

    def at_once(event: dict[str, Any]) -> bool:
        begun.append(event)
        return False

    # Ended after one step of all slots: nothing was learned since the start.
    changes = {"num_envs": 5}
    train(
        env, timesteps=600, folder=tmp_path / "b", start=tmp_path / "a", settings=changes,
        callbacks=[at_once], seed=7, **given,
    )  # fmt: skip
    before, after = learned(tmp_path / "a"), learned(tmp_path / "b")
    assert before.keys() == after.keys() and before
    for name in before:
        np.testing.assert_array_equal(before[name][: len(after[name])], after[name])
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert (config["algorithm"], config["settings"]["num_envs"]) == (algorithm, 5)
    assert config["start"] == str(tmp_path / "a") and begun[0]["step"] == 0


def test_a_run_starts_with_the_unit_of_rewards_that_its_critic_learned_in(tmp_path: Path) -> None:
    """Ten updates at returns far from 1: with a new unit the values would be wrong by that factor."""
    given: dict[str, Any] = {"timesteps": 1280, "eval_episodes": 1, "stop_when_solved": False}
    scaled = {**SMALL, "scale_rewards": True}
    train("CartPole-v1", "ppo", folder=tmp_path / "a", settings=scaled, **given)
    scale = checkpoint.load(Folder(tmp_path / "a").state)["algorithm"]["scale"]
    spec = make_env("CartPole-v1", 6).spec
    ppo = PPO(spec, 6, PPOConfig(**{**scaled, "num_envs": 6}), Seeds(1))
    ppo.start_from(checkpoint.load(Folder(tmp_path / "a").state)["algorithm"])
    assert ppo.scale is not None and ppo.scale.norm.var[0] > 2
    assert ppo.scale.norm.state_dict()["squares"] == scale["norm"]["squares"]
    assert ppo.scale.returns.tolist() == [0.0] * 6  # of new episodes
    with pytest.raises(ControlError, match="only one of the two has scale_rewards"):
        train(
            "CartPole-v1", start=tmp_path / "a", folder=tmp_path / "b",
            settings={"scale_rewards": False}, **given,
        )  # fmt: skip


@pytest.fixture
def cart_pole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    train("CartPole-v1", "ppo", timesteps=256, folder="first", settings=SMALL, eval_episodes=1)
    return tmp_path / "first"


@pytest.mark.slow
def test_the_command_starts_from_a_run_in_a_changed_environment(cart_pole: Path) -> None:
    code, said = run_command(
        "onward control train CartPole-v1 --from first --timesteps 256 --set num_envs=8 --env-set length=1.0"
    )
    assert code == 0 and "ppo on CartPole-v1, from first, 256 steps at most." in said
    config = json.loads(Path("runs/CartPole-v1-ppo-seed0/config.json").read_text())
    assert config["settings"]["hidden"] == [16] and config["settings"]["num_envs"] == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("Acrobot-v1 --from first", r"trained on other spaces (numbers 4, not 6, choices [2], not [3])"),
        ("CartPole-v1 --from first --algorithm dqn", "is one of ppo, and its weights do not fit dqn"),
        ("CartPole-v1 --from first --preset zoo", "leave out --preset"),
        ("CartPole-v1 --from first --set hidden=8", "do not fit this run's networks"),
        ("CartPole-v1 --from first --set normalise_obs=true", "only one of the two has normalise_obs"),
        ("CartPole-v1 --from nowhere", "nowhere holds no run"),
        ("CartPole-v1", "Give --algorithm"),
    ],
)
def test_weights_that_do_not_fit_are_one_sentence(cart_pole: Path, words: str, why: str) -> None:
    code, said = run_command(f"onward control train {words} --timesteps 256")
    assert code == 2 and why in said
    assert not list(Path().glob("runs/*/config.json"))


def test_an_environment_with_a_slip_is_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    class Rewardless(gym.wrappers.TimeLimit):
        def __init__(self) -> None:
            super().__init__(gym.make("CartPole-v1"), 20)

        def step(self, action: Any) -> Any:
            observation, _, *others = super().step(action)
            return observation, None, *others

    with pytest.raises(ControlError, match="at step 1 of an episode: the reward is None"):
        train(Rewardless, "ppo", timesteps=64, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
