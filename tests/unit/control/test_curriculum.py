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
    played = control.evaluate(control.Policy.load(far.folder), Corridor, episodes=5)
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


STAGE = {"name": "Near", "env_config": {"difficulty": 0.2}, "success_threshold": 0.8, "min_episodes": 0}


def staged(folder: Path, timesteps: int, **changes) -> CurriculumRLTrainer:
    return CurriculumRLTrainer(
        "ppo", Corridor, [{**STAGE, **changes}], folder=folder, timesteps=timesteps, settings=SMALL,
        tell=lambda line: None,
    )  # fmt: skip


def test_a_stage_that_was_not_reached_goes_on_with_more_steps(tmp_path: Path):
    with pytest.raises(ControlError, match="ended after 256 steps"):
        staged(tmp_path, 256, min_episodes=60).train_with_curriculum()
    (done,) = staged(tmp_path, 40_000, min_episodes=60).train_with_curriculum()
    assert done.success_rate >= 0.8 and done.episodes >= 60


def test_a_folder_of_another_stage_is_refused(tmp_path: Path):
    with pytest.raises(ControlError, match="ended after 256 steps"):
        staged(tmp_path, 256, min_episodes=10_000).train_with_curriculum()
    with pytest.raises(ControlError, match="holds a run with stage 'Near', and stage 'Easier' has 'Easier'"):
        staged(tmp_path, 256, name="Easier", min_episodes=10_000).train_with_curriculum()
    with pytest.raises(ControlError, match="solve_episodes 10000, and stage 'Near' has 5"):
        staged(tmp_path, 256, min_episodes=5).train_with_curriculum()


def test_the_last_evaluation_of_a_stage_counts_too(tmp_path: Path):
    class There(Corridor):
        goal = -1  # every action ends the episode in success

    trainer = CurriculumRLTrainer(
        "ppo", There, [STAGE], folder=tmp_path, timesteps=256, settings=SMALL, tell=lambda line: None,
        eval_every=256,
    )  # fmt: skip
    (done,) = trainer.train_with_curriculum()
    assert done.success_rate == 1.0


@pytest.mark.parametrize("processes", [1, 2])
def test_evaluations_see_no_shaping_however_the_environment_was_made(tmp_path: Path, processes: int):
    done = control.train(
        f"{__name__}:Corridor", "ppo", timesteps=256, folder=tmp_path / "run", settings=SMALL,
        env_kwargs={"difficulty": 0.1}, eval_episodes=4, env_processes=processes,
    )  # fmt: skip
    # One step to the right is the goal: 1 for the task; no other number can be a return of the task.
    assert done.summary["best"]["return"] in (0.0, 0.25, 0.5, 0.75, 1.0)
    played = control.evaluate(done.policy, lambda: Corridor(difficulty=0.1), episodes=5)
    assert set(played.returns.tolist()) <= {0.0, 1.0}
    shaped = Corridor(difficulty=0.1)
    shaped.reset(seed=0)
    assert shaped.step(1)[1] == pytest.approx(1 + 0.1 - 0.01 + 0.05)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"success_threshold": "0.8"}, r"has success_threshold '0.8': give a number in \(0, 1\]"),
        ({"success_threshold": None}, "has success_threshold None"),
        ({"min_episodes": 1.5}, "has min_episodes 1.5: give a whole number from 0 on"),
        ({"min_episodes": True}, "has min_episodes True"),
        ({"env_config": ["difficulty"]}, "has env_config .*: give an object of arguments"),
        ({"name": 3}, "Stage 3 has name 3: give a text"),
    ],
)
def test_a_value_of_the_wrong_type_is_one_sentence(changes, why):
    with pytest.raises(ControlError, match=why):
        stages_of([{**STAGE, **changes}])


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
    plain = Corridor(difficulty=0.2)
    plain.without_shaping()
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
