"""The request of the RL trainer profile, word for word: ``training.preset = "seed"``. Pure.

The profile's numbers are a reasonable start for a model of 32 billion parameters on two A100. They are not
what learns best here, so they are not the default: see docs/training-requests.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from onward.clock import utc_text

ALGORITHM = "ppo"
DAYS = 30
HYPERPARAMETERS = {"learning_rate": 1e-5, "batch_size": 32, "epochs": 3}
FILTER = {"min_reward": 0.5, "max_trajectory_length": 50}
COMPUTE = {"gpu_count": 2, "gpu_type": "a100", "mixed_precision": "bf16"}
EVALUATION = {"enabled": True, "holdout_size": 0.1, "metrics": ["reward", "task_completion", "kl_divergence"]}


def seed_config(config: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Returns a ``training_config`` with the profile's values wherever ``config`` has none of its own."""
    dataset = config["dataset"]
    period = {"start": utc_text(now - timedelta(days=DAYS)), "end": utc_text(now)}
    return {
        **config,
        "dataset": {
            "sampling": "balanced",
            **dataset,
            "filter": {**FILTER, "date_range": period, **(dataset.get("filter") or {})},
        },
        "hyperparameters": {**HYPERPARAMETERS, **config["hyperparameters"]},
        "compute": {**COMPUTE, **(config.get("compute") or {})},
    }
