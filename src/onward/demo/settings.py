"""Settings of the demonstration: everything embedded, times compressed, minimum sessions per step."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from onward import config
from onward.config import Settings
from onward.files import make_folder
from onward.training.spec import recipes


@dataclass(frozen=True)
class Pace:
    """Amounts that decide how long a run takes."""

    trajectories: int
    """Trajectories per training job: the same number on a slow machine and on a fast one."""
    steps: tuple[tuple[float, float, int], ...]
    """Steps of a release before the last: the candidate's share, minutes, and least known outcomes."""
    test_panels: int
    """Panels of 100 held-out tasks in each test."""


PACES = {"tiny": Pace(512, ((0.10, 60, 10), (0.25, 60, 20), (0.50, 120, 40)), 2)}
_LARGER = Pace(224, ((0.25, 60, 10), (0.50, 60, 25)), 1)
"""Pace of any other model: a session takes seconds, not milliseconds. A first step of 10 % would need 50
sessions for five of the candidate's.
"""


def pace_of(model: str) -> Pace:
    """Returns the pace of a model, by its name."""
    return PACES.get(model, _LARGER)


def demo_settings(model: str, folder: Path, seed: int) -> Settings:
    """Returns settings with a fresh data folder under ``folder`` and a schedule of minutes, not hours."""
    recipe = recipes.for_model(model)
    pace = pace_of(model)
    shares, minutes, sessions = zip(*pace.steps, strict=True)
    return config.load(
        environ={},
        overrides={
            "data_dir": _fresh(folder, f"{Path(model).name}-seed{seed}"),
            "nats": {"port": 0},
            "http": {"gateway_port": 0, "api_port": 0},
            "model": {"base": model, "threads": recipe.threads},
            "training": {
                "algorithm": "reinforce",
                "schedule": "off",
                "cooldown_minutes": 0.0,
                "threshold": pace.trajectories,
                "learning_rate": recipe.learning_rate,
                "batch_size": recipe.batch_size,
                "epochs": recipe.epochs,
                "clip_epsilon": recipe.clip_epsilon,
                "sample_size": pace.trajectories,
            },
            "validation": {"suites": ["desk"], "regression": "point"},
            "release": {
                "steps": [*shares, 1.0],
                "step_minutes": [*minutes, 0.0],
                "min_sessions": [*sessions, 0],
                "strategy": "canary",  # its few tasks measure a small negative difference by chance as well
                "max_bake": 0,
                "time_scale": 1 / 1200,  # an hour of the schedule becomes three seconds
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
