"""Settings of the demonstration: everything embedded, times compressed, minimum sessions per step."""

from __future__ import annotations

import itertools
from pathlib import Path

from onward import config
from onward.config import Settings
from onward.files import make_folder
from onward.training.spec import recipes

TRAJECTORIES = {"tiny": 512}
"""Model → trajectories per training job: the same number on a slow machine and on a fast one."""
OTHERWISE = 256
"""Number for any other model; larger models take longer per trajectory."""
MIN_SESSIONS = [10, 20, 40, 0]


def demo_settings(model: str, folder: Path, seed: int) -> Settings:
    """Returns settings with a fresh data folder under ``folder`` and a schedule of minutes, not hours."""
    recipe = recipes.for_model(model)
    trajectories = TRAJECTORIES.get(model, OTHERWISE)
    return config.load(
        environ={},
        overrides={
            "data_dir": _fresh(folder, f"{Path(model).name}-seed{seed}"),
            "nats": {"port": 0},
            "http": {"gateway_port": 0, "api_port": 0},
            "model": {"base": model, "threads": recipe.threads},
            "training": {
                "algorithm": "reinforce",
                "threshold": trajectories,
                "learning_rate": recipe.learning_rate,
                "batch_size": recipe.batch_size,
                "epochs": recipe.epochs,
                "clip_epsilon": recipe.clip_epsilon,
                "sample_size": trajectories,
            },
            "release": {
                "min_sessions": MIN_SESSIONS,
                "time_scale": 1 / 1200,  # the hours of the schedule become three seconds each
                "error_maturity_seconds": recipe.session_seconds,
                "reward_maturity_seconds": recipe.session_seconds,
                "lost_after_seconds": 20 * recipe.session_seconds,
                "step_deadline_minutes": 10,
            },
        },
    )


def _fresh(folder: Path, name: str) -> Path:
    """Creates a new numbered folder, so that a run never mixes with an earlier one."""
    make_folder(folder)
    for number in itertools.count(1):
        path = (folder / f"{name}-{number:03d}").resolve()
        if not path.exists():
            make_folder(path, 0o700)
            return path
    raise AssertionError("unreachable")
