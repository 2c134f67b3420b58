"""Costs and named rewards: from an environment's info to the data of a learner and the curves."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from onward.control import resume, train
from onward.control.core.contract import EnvSpec, Step
from onward.control.core.replay import Replay
from onward.control.core.rollout import Rollout
from onward.control.core.spaces import ActionSpec, Layout
from onward.control.core.streams import streams_of
from onward.control.environments import make
from onward.control.environments.process_slots import ProcessSlots
from onward.control.environments.vector_slots import VectorSlots
from onward.control.running.curves import draw
from onward.control.running.log import tag
from onward.control.running.training_episodes import TrainingEpisodes
from onward.errors import ControlError


class Risky(gym.Env[Any, Any]):
    """Action 1 earns 2 for speed and costs 1, action 0 earns 1 for care. Episodes of 4 steps."""

    observation_space = spaces.Box(0, 4, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        parts = {"speed": 2.0 * action, "care": 1.0 - action}
        info: dict[str, Any] = {"rewards": parts}
        if action:
            info["cost"] = 1
        return np.full(1, self.t, np.float32), sum(parts.values()), False, self.t >= 4, info


def vector() -> Any:
    envs = SyncVectorEnv([Risky, Risky], autoreset_mode=AutoresetMode.SAME_STEP)
    return VectorSlots(envs, make(Risky).spec)


def processes() -> Any:
    return ProcessSlots(Risky, 2, 2, None)


@pytest.mark.parametrize(
    "envs", [lambda: make(Risky, 2), vector, processes], ids=["slots", "vector", "processes"]
)
def test_every_slot_reports_its_streams_at_every_step_the_last_one_too(envs: Any) -> None:
    found = envs()
    found.reset(0)
    for _ in range(4):
        step = found.step(np.array([0, 1]))
        assert {name: values.tolist() for name, values in step.streams.items()} == {
            "cost": [0.0, 1.0], "reward_speed": [0.0, 2.0], "reward_care": [1.0, 0.0]
        }  # fmt: skip
    assert step.truncated.all()
    found.close()


def test_an_environment_without_streams_has_none() -> None:
    envs = make("CartPole-v1", 1)
    envs.reset(0)
    assert envs.step(np.zeros(1, np.int64)).streams == {}


@pytest.mark.parametrize("value", [float("nan"), "much", [1, 2], None])
def test_a_cost_that_is_no_finite_number_is_named_with_its_slot(value: Any) -> None:
    with pytest.raises(ControlError, match=r"Risky gave cost .* in slot 1: give a finite number"):
        streams_of([{}, {"cost": value}], "Risky")


def test_other_things_called_rewards_are_left_alone() -> None:
    assert streams_of([{"rewards": [1.0, 2.0]}], "Risky") == {}


def step_of(t: int, ended: bool = False, **streams: float) -> Step:
    """One slot, observing ``t`` + 1, rewarded with ``t``."""
    flags = np.array([ended])
    obs = np.full((1, 1), t + 1, np.float32)
    named = {name: np.array([value], np.float32) for name, value in streams.items()}
    return Step(
        obs, np.array([t], np.float32), np.zeros(1, bool), flags, obs if ended else None,
        info={"streams": named} if named else {},
    )  # fmt: skip


ACTIONS = ActionSpec("discrete", (2,), start=(0,))


def test_a_rollout_holds_streams_beside_its_steps() -> None:
    rollout = Rollout(Layout(1), ACTIONS, 3, 1)
    for t, streams in enumerate([{}, {"cost": 2.0}, {}]):
        rollout.add(np.zeros((1, 1), np.float32), np.zeros(1, np.int64), step_of(t, **streams), None, None)
    assert rollout.streams["cost"][:, 0].tolist() == [0.0, 2.0, 0.0]
    other = Rollout(Layout(1), ACTIONS, 3, 1)
    other.load_state_dict(rollout.state_dict())
    assert other.streams["cost"].tolist() == rollout.streams["cost"].tolist()
    earlier = {name: value for name, value in rollout.state_dict().items() if name != "streams"}
    other.load_state_dict(earlier)  # of a version without streams
    assert other.streams == {}


def test_a_replay_memory_sums_streams_over_its_n_steps_like_rewards() -> None:
    """γ = ½, three steps: c₀ + c₁/2 + c₂/4, and no sum crosses the end of an episode."""
    spec = EnvSpec("x", Layout(1), ACTIONS)
    replay = Replay(spec, 1, 20, np.random.default_rng(0), gamma=0.5, n_step=3)
    costs = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    for t, cost in enumerate(costs):
        obs = np.full((1, 1), t, np.float32)
        replay.add(obs, np.zeros(1, np.int64), step_of(t, t == 3, cost=cost, reward_twice=2.0 * t))
    batch = replay.sample(300)
    at = batch.obs[:, 0].astype(int)
    wanted = {0: 1 + 1 + 1, 1: 2 + 2 + 2, 2: 4 + 4, 3: 8, 4: 16 + 16, 5: 32}
    assert batch.streams["cost"].tolist() == [wanted[t] for t in at] and set(at) == set(wanted)
    assert batch.streams["reward_twice"].tolist() == (2 * batch.returns).tolist()
    again = Replay(spec, 1, 20, np.random.default_rng(0), gamma=0.5, n_step=3)
    again.load_state_dict(replay.state_dict())
    assert again.sample(50).streams["cost"].shape == (50,)
    pieces = list(batch.tensors().pieces(100))
    assert [piece.streams["cost"].tolist() for piece in pieces[:1]] == [batch.streams["cost"][:100].tolist()]


def test_means_per_episode_are_of_whole_episodes() -> None:
    episodes = TrainingEpisodes(1)
    for t, (cost, ended) in enumerate([(1.0, False), (2.0, True), (5.0, False), (4.0, True), (9.0, False)]):
        episodes.add(step_of(t, ended, cost=cost))
    assert episodes.row()["cost_mean"] == (3.0 + 9.0) / 2
    other = TrainingEpisodes(1)
    other.load_state_dict(episodes.state_dict())
    other.add(step_of(5, True, cost=3.0))  # 9 + 3 in the episode that was running
    assert other.row()["cost_mean"] == (3.0 + 9.0 + 12.0) / 3


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "reinforce"])
def test_a_run_logs_streams_and_learns_the_same_without_them(tmp_path: Path, algorithm: str) -> None:
    class Silent(Risky):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {}

    settings: dict[str, dict[str, Any]] = {
        "ppo": {"num_envs": 2, "n_steps": 16, "batch_size": 32, "epochs": 1, "hidden": (8,)},
        "dqn": {"num_envs": 2, "hidden": (8,), "learning_starts": 20, "batch_size": 8},
        "reinforce": {"num_envs": 2, "episodes": 4, "hidden": (8,)},
    }
    given: dict[str, Any] = {"timesteps": 400, "settings": settings[algorithm], "eval_episodes": 5}
    told = train(Risky, algorithm, folder=tmp_path / "told", **given)
    silent = train(Silent, algorithm, folder=tmp_path / "silent", **given)
    streams = told.summary["streams"]
    assert set(streams) == {"cost", "reward_speed", "reward_care"} and silent.summary["streams"] == {}
    assert streams["reward_speed"] == 2 * streams["cost"]
    assert streams["reward_care"] == pytest.approx(4 - streams["cost"])
    one, other = (found.policy.parts.arrays() for found in (told, silent))
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    with (tmp_path / "told" / "metrics.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert float(last["cost_mean"]) == pytest.approx(streams["cost"])
    assert tag("cost_mean") == "rollout/cost_mean" and tag("reward_speed_mean") == "rollout/reward_speed_mean"
    draw([tmp_path / "told"], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 0
    longer = resume(tmp_path / "told", Risky, timesteps=480)
    assert json.loads((longer.folder / "summary.json").read_text())["streams"].keys() == streams.keys()
