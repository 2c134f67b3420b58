"""Bug case 20 with every algorithm: a run that was cut and resumed ends with every bit of the whole one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from control_scripted import assert_same_state

from onward.control.core.config import CONFIGS
from onward.control.running import checkpoint
from onward.control.running.runs import Folder, RunConfig
from onward.control.running.trainer import Trainer
from onward.errors import ControlError

pytestmark = pytest.mark.slow

OFF_POLICY = {"hidden": (16,), "batch_size": 16, "buffer_size": 150, "learning_starts": 32, "train_every": 4}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "q_learning": ("FrozenLake-v1", {"num_envs": 2}),
    "reinforce": ("CartPole-v1", {"num_envs": 4, "episodes": 4, "hidden": (8,), "normalise_obs": True}),
    "dqn": ("CartPole-v1", {**OFF_POLICY, "num_envs": 2, "n_step": 3, "target_every": 40}),
    "dqn prioritised": (
        "MountainCar-v0",
        {**OFF_POLICY, "num_envs": 2, "prioritised": True, "dueling": True, "bonus": "rnd"},
    ),
    "ppo": (
        "CartPole-v1",
        {"num_envs": 4, "n_steps": 16, "batch_size": 32, "epochs": 2, "hidden": (8,), "normalise_obs": True,
         "scale_rewards": True, "lr_schedule": "linear"},
    ),
    "ppo continuous": (
        "Pendulum-v1", {"num_envs": 4, "n_steps": 16, "batch_size": 32, "epochs": 2, "bonus": "icm"}
    ),
    "sac": ("Pendulum-v1", {**OFF_POLICY, "normalise_obs": True}),
    "ddpg": ("Pendulum-v1", {**OFF_POLICY, "num_envs": 2, "action_noise": "ou"}),
    "td3": ("Pendulum-v1", OFF_POLICY),
    "dqn counting": (
        "MountainCar-v0",
        {**OFF_POLICY, "num_envs": 2, "n_step": 3, "bonus": "count", "bonus_random_steps": 40},
    ),
    "dqn noisy": (
        "CartPole-v1", {**OFF_POLICY, "num_envs": 2, "ensemble": 2, "ucb": 1.0, "normalise_obs": True}
    ),
    "ppo images": (
        "onward/CatchDict-v0",
        {"num_envs": 4, "n_steps": 16, "batch_size": 32, "epochs": 1, "hidden": (8,), "bonus": "rnd"},
    ),
}  # fmt: skip


def run_of(case: str, seed: int = 5) -> RunConfig:
    env, settings = CASES[case]
    algorithm = case.split()[0]
    return RunConfig(
        env=env, algorithm=algorithm, settings=CONFIGS[algorithm](**settings), seed=seed, timesteps=480,
        eval_every=10_000, eval_episodes=1, stop_when_solved=False, obs_noise=0.2 * ("noisy" in case),
    )  # fmt: skip


def trained(run: RunConfig, path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int = 0) -> None:
    """Without the final episodes, which say nothing here."""
    monkeypatch.setattr(Trainer, "_final", lambda self: {})
    trainer = Trainer(run, Folder(path), lambda event: None)
    original = trainer._iterate

    def iterate() -> None:
        original()
        if stop_at and trainer.algorithm.steps >= stop_at:
            trainer.stop()

    monkeypatch.setattr(trainer, "_iterate", iterate)
    if Folder(path).config.exists():
        trainer.resume()
    else:
        trainer.start()
    trainer.train()


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_equals_the_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    run = run_of(case)
    trained(run, tmp_path / "whole", monkeypatch)
    trained(run, tmp_path / "cut", monkeypatch, stop_at=252)
    trained(run, tmp_path / "cut", monkeypatch)
    whole, cut = (checkpoint.load(Folder(tmp_path / name).state) for name in ("whole", "cut"))
    assert whole["algorithm"] != {}
    assert_same_state(whole, cut)
    trained(run, tmp_path / "again", monkeypatch)
    assert_same_state(whole, checkpoint.load(Folder(tmp_path / "again").state))


def test_the_state_of_another_network_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(run_of("reinforce"), tmp_path / "r", monkeypatch, stop_at=100)
    other = RunConfig(
        env="CartPole-v1", algorithm="reinforce", settings=CONFIGS["reinforce"](hidden=(12,)), timesteps=200
    )
    trainer = Trainer(other, Folder(tmp_path / "r"))
    with pytest.raises(ControlError, match="resume with the settings it was saved with"):
        trainer.resume()
