"""MountainCar by PPO with curiosity: CleanRL's PPO stays at −200, the zoo's reaches the bar in 43.5 %."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.control.running.presets import preset, settings
from onward.control.running.runs import Folder, RunConfig
from onward.control.running.trainer import Trainer

ENV = "MountainCar-v0"


def summary_of(path: Path, seed: int, timesteps: int | None = None, **changes: object) -> dict:
    """The summary of one run of our preset, which uses all its steps."""
    _, ours = preset("ours", "ppo", ENV)
    run = RunConfig(
        env=ENV,
        algorithm="ppo",
        settings=settings("ppo", ours, changes),
        preset="ours",
        seed=seed,
        timesteps=timesteps or ours.timesteps,
        eval_episodes=100,
        stop_when_solved=False,
    )
    trainer = Trainer(run, Folder.of(path, run))
    trainer.start()
    return trainer.train()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ppo_with_curiosity_reaches_the_bar_in_nine_of_ten_greedy_episodes(tmp_path: Path, seed: int):
    summary = summary_of(tmp_path, seed)
    print({name: summary[name] for name in ("steps", "seconds", "steps_per_second", "solved", "final")})
    assert summary["final"]["success"] >= 0.9


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_gain_is_the_curiositys(tmp_path: Path):
    """The same settings without the bonus meet the goal in no episode of half the budget."""
    summary = summary_of(tmp_path, 0, 250_000, bonus="none")
    assert summary["best"]["return"] == -200.0
