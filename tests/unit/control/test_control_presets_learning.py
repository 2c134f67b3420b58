"""Our presets for DDPG reach the bar: one seed each, stopped as soon as it is confirmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.control.running import presets
from onward.control.running.runs import Folder, RunConfig
from onward.control.running.trainer import Trainer


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("env", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_our_ddpg_is_solved_and_succeeds_in_nine_of_ten(tmp_path: Path, env: str) -> None:
    """The last hundred episodes of training reach the threshold, and unseen greedy ones confirm it."""
    _, found = presets.preset("ours", "ddpg", env)
    run = RunConfig(
        env=env,
        algorithm="ddpg",
        settings=presets.settings("ddpg", found, {}),
        preset="ours",
        timesteps=found.timesteps,
        **found.run,
    )
    trainer = Trainer(run, Folder.of(tmp_path, run))
    trainer.start()
    summary = trainer.train()
    print({name: summary[name] for name in ("steps", "seconds", "solved", "final")})
    assert summary["end"] == "solved"
    assert summary["final"]["success"] >= 0.9
