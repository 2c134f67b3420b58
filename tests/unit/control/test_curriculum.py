"""Curricula: the published stages, stages that follow each other, shaped rewards, safe actions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from onward import control
from onward.control.curriculum import PUBLISHED, CurriculumRLTrainer, stages_of
from onward.control.shaping import CustomRLEnvironment, SafetyMonitor
from onward.control.solution import solution
from onward.errors import ControlError


class Corridor(CustomRLEnvironment):
    """A walk from 0 to the goal, a length away; ``difficulty`` 1 is ten steps. Left of 0 is unsafe."""

    max_steps = 25

    def define_state_space(self):
        return spaces.Box(-30, 30, (2,), np.float32)

    def define_action_space(self):
        return spaces.Discrete(2)

    @property
    def goal(self) -> int:
        return round(10 * self.task_config.get("difficulty", 1.0))

    def sample_initial_state(self):
        return np.array([0.0, self.goal])

    def transition_function(self, state, action):
        return state + np.array([1.0 if action else -1.0, 0.0])

    def compute_task_reward(self, state):
        return float(self.is_terminal(state))

    def is_terminal(self, state):
        return state[0] >= self.goal

    def compute_progress_reward(self, state):
        return state[0] - state[1]

    def compute_safety_penalty(self, state, action):
        return -0.5 if state[0] < 0 else 0.0


SMALL = {"num_envs": 8, "n_steps": 32, "batch_size": 128, "hidden": (16,), "learning_rate": 3e-3}


def test_the_published_stages_are_read_as_they_are_written():
    curriculum = [
        {
            "name": "Basic Movement",
            "env_config": {"difficulty": 0.1, "sparse_rewards": False},
            "success_threshold": 0.8,
            "min_episodes": 100,
        },
        {
            "name": "Obstacle Navigation",
            "env_config": {"difficulty": 0.3, "obstacles": True},
            "success_threshold": 0.7,
            "min_episodes": 200,
        },
        {
            "name": "Complex Tasks",
            "env_config": {"difficulty": 0.6, "multi_objective": True},
            "success_threshold": 0.6,
            "min_episodes": 500,
        },
        {
            "name": "Expert Level",
            "env_config": {"difficulty": 1.0, "sparse_rewards": True},
            "success_threshold": 0.5,
            "min_episodes": 1000,
        },
    ]
    assert stages_of(curriculum) == list(PUBLISHED)
    assert CurriculumRLTrainer("ppo", Corridor).design_curriculum() == curriculum


def test_stages_follow_each_other_from_weights_to_weights_and_are_in_the_report(tmp_path: Path):
    stages = [
        {"name": "Near", "env_config": {"difficulty": 0.2}, "success_threshold": 0.8, "min_episodes": 30},
        {"name": "Far", "env_config": {"difficulty": 1.0}, "success_threshold": 0.9, "min_episodes": 20},
    ]
    lines: list[str] = []
    trainer = CurriculumRLTrainer(
        "ppo", Corridor, stages, folder=tmp_path / "c", timesteps=40_000, settings=SMALL, tell=lines.append
    )
    near, far = trainer.train_with_curriculum()
    assert (near.stage, far.stage, trainer.current_stage) == ("Near", "Far", 2)
    assert near.success_rate >= 0.8 and near.episodes >= 30
    assert far.success_rate >= 0.9 and far.episodes >= 20
    assert lines[0] == "Training Stage: Near" and "Stage Near completed!" in lines
    assert lines[-1] == "Stage Far completed!"
    assert any(line.startswith("Episodes: ") and ", Success Rate: " in line for line in lines)
    report = solution(far.folder)["rl_training_solution"]
    assert [one["stage"] for one in report["curriculum_stages"]] == ["Near", "Far"]
    assert trainer.train_with_curriculum() == [near, far]  # nothing is trained again
    # Evaluations play the task alone: 1 at the goal, without shaping.
    played = control.evaluate(control.Policy.load(far.folder), Corridor.plain, episodes=5)
    assert played.returns.tolist() == [1.0] * 5 and played.success == 1.0


def test_a_stage_that_is_not_reached_is_one_sentence(tmp_path: Path):
    class Nowhere(Corridor):
        goal = 29  # further than an episode is long

    stage = {"name": "Impossible", "env_config": {}, "success_threshold": 0.5, "min_episodes": 0}
    trainer = CurriculumRLTrainer(
        "ppo", Nowhere, [stage], folder=tmp_path, timesteps=1024, settings=SMALL, tell=lambda line: None
    )
    with pytest.raises(ControlError, match=r"'Impossible' ended after 1,024 steps with success rate 0.00"):
        trainer.train_with_curriculum()


def test_what_is_no_stage_is_refused():
    with pytest.raises(ControlError, match="Stage 1 has name: give name, env_config, success_threshold"):
        stages_of([{"name": "x"}])
    with pytest.raises(ControlError, match=r"success_threshold 1\.5: give a share in"):
        stages_of([{"name": "x", "env_config": {}, "success_threshold": 1.5, "min_episodes": 0}])
    with pytest.raises(ControlError, match="no stage"):
        stages_of([])


def test_a_shaped_reward_is_the_sum_of_its_parts():
    env = Corridor(difficulty=0.2)
    env.reset(seed=0)
    _, reward, ended, cut, info = env.step(1)
    # From 0 to 1, goal 2: 0.99 · (1 − 2) − (0 − 2) = 1.01; the first visit of a state is worth 1.
    assert info["rewards"] == pytest.approx(
        {"task": 0.0, "progress": 0.101, "efficiency": -0.01, "curiosity": 0.05, "safety": 0.0}
    )
    assert reward == pytest.approx(0.141) and (ended, cut) == (False, False)
    assert info["success"] is False and info["steps"] == 1
    _, reward, ended, _, info = env.step(1)
    # The goal has no potential: −(1 − 2) = 1.
    assert reward == pytest.approx(1.0 + 0.1 - 0.01 + 0.05) and ended and info["success"]
    env.reset()
    *_, info = env.step(0)
    assert (info["cost"], info["rewards"]["safety"]) == (0.5, -0.5)
    plain = Corridor.plain(difficulty=0.2)
    plain.reset(seed=0)
    assert [plain.step(1)[1], plain.step(1)[1]] == [0.0, 1.0]


def test_potentials_add_the_same_to_every_way_between_two_states():
    totals = []
    for actions in ([1, 1], [0, 1, 1, 1]):
        env = Corridor(difficulty=0.2)
        env.reset(seed=0)
        parts = [env.step(action)[4]["rewards"]["progress"] for action in actions]
        totals.append(sum(part * env.discount**at for at, part in enumerate(parts)))
    assert totals == pytest.approx([0.2, 0.2])  # 0.1 · (0 − (0 − 2)), whatever lies between


def test_a_safety_monitor_replaces_an_action_before_it_is_executed():
    monitor = SafetyMonitor(lambda obs, action: obs[0] <= 0 and action == 0, safe=lambda obs: 1)
    assert monitor.guard([0.0], 0) == 1 and monitor.guard([3.0], 0) == 0 and monitor.guard([0.0], 1) == 1
    assert monitor.interventions == 1
    assert SafetyMonitor(lambda obs, action: True, safe=7).get_safe_action(None) == 7
