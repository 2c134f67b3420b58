"""Tuned settings per algorithm and environment: ``zoo`` and ``cleanrl``, ``published``, ``ours``.

``zoo`` holds rl-baselines3-zoo's numbers unchanged (2026-04-23), so that a comparison with it is valid;
better values that we found are in ``ours``. A preset names only the differences from the defaults of
``config.py``, which are stable-baselines3's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from onward.control.algorithms.registry import check_name
from onward.control.core.config import CONFIGS, Config
from onward.errors import ControlError

NAMES = ("ours", "zoo", "published", "default")
"""Order in which presets are tried where none is requested; ``published`` is used on request only."""
_OLD_NAMES = {"seed": "published"}
"""Old names, accepted for one more release."""


@dataclass(frozen=True)
class Preset:
    """Settings and length of a run."""

    timesteps: int
    settings: dict[str, Any]
    note: str = ""
    """Differences from the source."""
    run: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields of ``RunConfig`` that belong to it, such as the rule of solving or the noise in training."""


Table = dict[str, dict[str, Preset]]
"""Algorithm → environment → preset."""

_NO_GSDE = "without the zoo's state-dependent noise (gSDE), which is not built here"
_LANDER = "LunarLander-v3"
_LANDER_CONTINUOUS = "LunarLanderContinuous-v3"


def _same(preset: Preset, *envs: str) -> dict[str, Preset]:
    return dict.fromkeys(envs, preset)


_LANDER_PPO = Preset(
    1_000_000,
    {"num_envs": 16, "n_steps": 1024, "batch_size": 64, "epochs": 4, "gamma": 0.999, "gae_lambda": 0.98,
     "learning_rate": 3e-4, "clip": 0.2, "entropy_coef": 0.01},
)  # fmt: skip
_MINIGRID_PPO = Preset(
    100_000,
    {"num_envs": 8, "n_steps": 128, "batch_size": 64, "epochs": 10, "gamma": 0.99, "gae_lambda": 0.95,
     "learning_rate": 2.5e-4, "clip": 0.2, "normalise_obs": True, "scale_rewards": True},
)  # fmt: skip
_PPO: dict[str, Preset] = {
    "CartPole-v1": Preset(
        100_000,
        {"num_envs": 8, "n_steps": 32, "batch_size": 256, "epochs": 20, "gamma": 0.98, "gae_lambda": 0.8,
         "learning_rate": 1e-3, "lr_schedule": "linear", "clip": 0.2, "clip_schedule": "linear"},
    ),
    "Acrobot-v1": Preset(
        1_000_000,
        {"num_envs": 16, "n_steps": 256, "batch_size": 64, "epochs": 4, "gamma": 0.99, "gae_lambda": 0.94,
         "learning_rate": 3e-4, "clip": 0.2, "normalise_obs": True, "scale_rewards": True},
    ),
    "MountainCar-v0": Preset(
        1_000_000,
        {"num_envs": 16, "n_steps": 16, "batch_size": 64, "epochs": 4, "gamma": 0.99, "gae_lambda": 0.98,
         "learning_rate": 3e-4, "clip": 0.2, "normalise_obs": True, "scale_rewards": True},
    ),
    **_same(_LANDER_PPO, _LANDER, _LANDER_CONTINUOUS),
    "Pendulum-v1": Preset(
        100_000,
        {"num_envs": 4, "n_steps": 1024, "batch_size": 64, "epochs": 10, "gamma": 0.9, "gae_lambda": 0.95,
         "learning_rate": 1e-3, "clip": 0.2},
        _NO_GSDE,
    ),
    "MountainCarContinuous-v0": Preset(
        20_000,
        {"num_envs": 1, "n_steps": 8, "batch_size": 256, "epochs": 10, "gamma": 0.9999, "gae_lambda": 0.9,
         "learning_rate": 7.77e-5, "clip": 0.1, "entropy_coef": 0.00429, "normalise_obs": True,
         "scale_rewards": True, "log_std": -3.29, "value_coef": 0.19, "max_grad_norm": 5.0},
        _NO_GSDE,
    ),
    "BipedalWalker-v3": Preset(
        5_000_000,
        {"num_envs": 32, "n_steps": 2048, "batch_size": 64, "epochs": 10, "gamma": 0.999,
         "gae_lambda": 0.95, "learning_rate": 3e-4, "clip": 0.18, "normalise_obs": True,
         "scale_rewards": True},
    ),
    **_same(_MINIGRID_PPO, "MiniGrid-DoorKey-5x5-v0", "MiniGrid-Empty-Random-5x5-v0"),
}  # fmt: skip

_LANDER_DQN = Preset(
    100_000,
    {"learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 0, "gamma": 0.99,
     "target_every": 250, "train_every": 4, "gradient_steps": -1, "epsilon_fraction": 0.12,
     "epsilon_end": 0.1, "double": False},
)  # fmt: skip
_DQN: dict[str, Preset] = {
    "CartPole-v1": Preset(
        50_000,
        {"learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1000,
         "gamma": 0.99, "target_every": 10, "train_every": 256, "gradient_steps": 128,
         "epsilon_fraction": 0.16, "epsilon_end": 0.04, "double": False},
    ),
    "MountainCar-v0": Preset(
        120_000,
        {"learning_rate": 4e-3, "batch_size": 128, "buffer_size": 10_000, "learning_starts": 1000,
         "gamma": 0.98, "target_every": 600, "train_every": 16, "gradient_steps": 8,
         "epsilon_fraction": 0.2, "epsilon_end": 0.07, "double": False},
    ),
    **_same(_LANDER_DQN, _LANDER, "Acrobot-v1"),
}  # fmt: skip

_BIPEDAL_SAC = Preset(
    500_000,
    {"learning_rate": 7.3e-4, "buffer_size": 300_000, "batch_size": 256, "gamma": 0.98, "tau": 0.02,
     "train_every": 64, "gradient_steps": 64, "learning_starts": 10_000, "hidden": (400, 300)},
    _NO_GSDE,
)  # fmt: skip
_SAC: dict[str, Preset] = {
    "Pendulum-v1": Preset(20_000, {"learning_rate": 1e-3}),
    "MountainCarContinuous-v0": Preset(
        50_000,
        {"learning_rate": 3e-4, "buffer_size": 50_000, "batch_size": 512, "temperature": 0.1,
         "train_every": 32, "gradient_steps": 32, "gamma": 0.9999, "tau": 0.01, "learning_starts": 0,
         "hidden": (64, 64)},
        _NO_GSDE,
    ),
    _LANDER_CONTINUOUS: Preset(
        500_000,
        {"learning_rate": 7.3e-4, "lr_schedule": "linear", "tau": 0.01, "learning_starts": 10_000,
         "hidden": (400, 300)},
    ),
    "BipedalWalker-v3": _BIPEDAL_SAC,
    "HalfCheetah-v5": Preset(1_000_000, {"learning_starts": 10_000}),
}  # fmt: skip


def _deterministic(timesteps: int) -> Preset:
    return Preset(
        timesteps,
        {"gamma": 0.98, "buffer_size": 200_000, "learning_starts": 10_000, "action_noise": "gaussian",
         "noise_std": 0.1, "learning_rate": 1e-3, "hidden": (400, 300)},
    )  # fmt: skip


_DDPG: dict[str, Preset] = {
    "Pendulum-v1": _deterministic(20_000),
    _LANDER_CONTINUOUS: _deterministic(300_000),
    "BipedalWalker-v3": _deterministic(1_000_000),
    "MountainCarContinuous-v0": Preset(
        300_000,
        {"action_noise": "ou", "noise_std": 0.5, "learning_rate": 1e-3, "batch_size": 256,
         "hidden": (400, 300)},
    ),
    "HalfCheetah-v5": Preset(
        1_000_000,
        {"learning_starts": 10_000, "noise_std": 0.1, "batch_size": 256, "hidden": (400, 300)},
    ),
}  # fmt: skip

_A2C = "the zoo's A2C: its environments shared out over two workers, Adam for RMSprop, rewards not scaled"
_A2C_DEFAULTS = {"workers": 2, "num_envs": 4, "learning_rate": 7e-4, "n_steps": 5, "gae_lambda": 1.0,
                 "entropy_coef": 0.0, "value_coef": 0.5, "max_grad_norm": 0.5}  # fmt: skip
_NORMAL = {"normalise_obs": True}
_A3C: dict[str, Preset] = {
    "CartPole-v1": Preset(500_000, _A2C_DEFAULTS, _A2C),
    _LANDER: Preset(
        200_000,
        {**_A2C_DEFAULTS, "n_steps": 5, "gamma": 0.995, "learning_rate": 8.3e-4, "lr_schedule": "linear",
         "entropy_coef": 1e-5},
        _A2C,
    ),
    "Acrobot-v1": Preset(500_000, {**_A2C_DEFAULTS, **_NORMAL, "num_envs": 8}, _A2C),
    "MountainCar-v0": Preset(1_000_000, {**_A2C_DEFAULTS, **_NORMAL, "num_envs": 8}, _A2C),
    "Pendulum-v1": Preset(
        1_000_000,
        {**_A2C_DEFAULTS, **_NORMAL, "n_steps": 8, "gae_lambda": 0.9, "value_coef": 0.4, "gamma": 0.9,
         "learning_rate": 7e-4, "lr_schedule": "linear"},
        f"{_A2C}; {_NO_GSDE}",
    ),
}  # fmt: skip

ZOO: Table = {"ppo": _PPO, "dqn": _DQN, "a3c": _A3C, "sac": _SAC, "ddpg": _DDPG, "td3": _DDPG}

CLEANRL: Table = {
    "dqn": {
        "CartPole-v1": Preset(
            500_000,
            {"learning_rate": 2.5e-4, "batch_size": 128, "buffer_size": 10_000, "learning_starts": 10_000,
             "gamma": 0.99, "target_every": 500, "train_every": 10, "gradient_steps": 1,
             "hidden": (120, 84), "epsilon_fraction": 0.5, "epsilon_end": 0.05, "double": False,
             "loss": "mse", "max_grad_norm": 0.0},
        )
    }
}  # fmt: skip
"""Settings of CleanRL's ``dqn.py``."""

PUBLISHED: dict[str, Preset] = {
    "dqn": Preset(
        100_000,
        {"num_envs": 1, "buffer_size": 10_000, "epsilon_start": 1.0, "epsilon_end": 0.01,
         "epsilon_decay": 0.995, "learning_rate": 1e-3, "gamma": 0.99, "batch_size": 32,
         "learning_starts": 32, "train_every": 1, "gradient_steps": 1, "hidden": (256, 256),
         "activation": "relu", "double": False, "loss": "mse", "max_grad_norm": 0.0, "target_every": 500},
        "its description never says when the target network is updated: every 500 steps",
    ),
    "ppo": Preset(
        100_000,
        {"num_envs": 8, "n_steps": 256, "batch_size": 64, "epochs": 10, "learning_rate": 3e-4, "clip": 0.2,
         "gamma": 0.99, "gae_lambda": 0.95, "entropy_coef": 0.01, "value_coef": 0.5, "max_grad_norm": 0.5},
        "2,048 steps per update are 8 × 256; its description names no minibatch size and no number of epochs",
    ),
}  # fmt: skip
"""Settings of the description that docs/compatibility.md names; for any environment, since it names none."""

_PENDULUM = Preset(
    30_000,
    {"num_envs": 4, "learning_rate": 1e-3, "hidden": (64, 64), "batch_size": 128, "gamma": 0.98,
     "buffer_size": 30_000, "learning_starts": 500, "train_every": 4, "gradient_steps": 2},
    run={"solve_success": 0.9},
)  # fmt: skip
_COUNTED_HILL = {
    "num_envs": 4, "learning_rate": 1e-3, "hidden": (64, 64), "batch_size": 128, "buffer_size": 50_000,
    "learning_starts": 2000, "gamma": 0.99, "tau": 0.01, "train_every": 4, "gradient_steps": 1,
    "normalise_obs": True, "bonus": "count", "bonus_features": 16, "bonus_until": 0.5,
}  # fmt: skip
"""MountainCarContinuous: chance never finds the goal, so states are counted."""

_NOISE = {"obs_noise": 0.1}
"""Half the noise of the evaluation. Policies trained under it also tolerate another pole or push."""

OURS: Table = {
    "dqn": {
        "CartPole-v1": Preset(
            160_000,
            {"num_envs": 8, "learning_rate": 7e-4, "lr_schedule": "linear", "batch_size": 128,
             "buffer_size": 50_000, "learning_starts": 1000, "gamma": 0.98, "n_step": 3, "train_every": 8,
             "gradient_steps": 4, "target_every": 8, "tau": 0.02, "epsilon_fraction": 0.08,
             "epsilon_end": 0.002},
            run=_NOISE,
        ),
        "MountainCar-v0": Preset(
            80_000,
            {"num_envs": 8, "learning_rate": 1e-3, "lr_schedule": "linear", "hidden": (128, 128),
             "normalise_obs": True, "batch_size": 128, "buffer_size": 20_000, "learning_starts": 1000,
             "gamma": 0.99, "n_step": 5, "train_every": 16, "gradient_steps": 6, "target_every": 16,
             "tau": 0.01, "epsilon_fraction": 0.15, "epsilon_end": 0.01, "bonus": "count",
             "bonus_features": 16, "bonus_until": 0.4},
            run={"solve_success": 0.9, "eval_episodes": 100, "eval_every": 2500, "obs_noise": 0.05},
        ),
        _LANDER: Preset(
            500_000,
            {"num_envs": 8, "learning_rate": 6e-4, "lr_schedule": "linear", "hidden": (128, 128),
             "batch_size": 128, "buffer_size": 100_000, "learning_starts": 2000, "gamma": 0.996, "n_step": 5,
             "train_every": 16, "gradient_steps": 8, "target_every": 16, "tau": 0.03, "loss": "mse",
             "epsilon_fraction": 0.2, "epsilon_end": 0.03},
            run={**_NOISE, "solve_success": 0.9, "eval_episodes": 100, "eval_every": 20_000},
        ),
    },
    "ppo": {
        "CartPole-v1": Preset(
            200_000,
            {"num_envs": 16, "n_steps": 128, "batch_size": 256, "epochs": 10, "gamma": 0.99,
             "gae_lambda": 0.95, "learning_rate": 1e-3, "lr_schedule": "linear", "clip": 0.2,
             "clip_schedule": "linear"},
            run=_NOISE,
        ),
        "Acrobot-v1": Preset(
            300_000,
            {"num_envs": 16, "n_steps": 128, "batch_size": 256, "epochs": 8, "gamma": 0.99,
             "gae_lambda": 0.94, "learning_rate": 1e-3, "lr_schedule": "linear", "normalise_obs": True,
             "scale_rewards": True},
            run={"solve_success": 0.9},
        ),
        "Pendulum-v1": Preset(
            200_000,
            {"num_envs": 16, "n_steps": 128, "batch_size": 256, "epochs": 10, "gamma": 0.9,
             "gae_lambda": 0.95, "learning_rate": 1e-3, "lr_schedule": "linear", "clip": 0.2,
             "scale_rewards": True},
            run={"solve_success": 0.9},
        ),
        _LANDER: Preset(
            1_000_000,
            {"num_envs": 16, "n_steps": 512, "batch_size": 128, "epochs": 4, "gamma": 0.999,
             "gae_lambda": 0.98, "learning_rate": 7e-4, "lr_schedule": "linear", "entropy_coef": 0.01,
             "scale_rewards": True},
            run={"solve_success": 0.9},
        ),
        "MountainCar-v0": Preset(
            500_000,
            {"num_envs": 16, "n_steps": 256, "batch_size": 256, "epochs": 8, "gamma": 0.99,
             "gae_lambda": 0.98, "learning_rate": 1e-3, "lr_schedule": "linear", "entropy_coef": 0.01,
             "hidden": (128, 128), "activation": "relu", "normalise_obs": True, "scale_rewards": True,
             "bonus": "rnd", "bonus_learning_rate": 1e-4},
            run={"solve_success": 0.9, "stop_when_solved": False},
        ),
    },
    "a3c": {"CartPole-v1": Preset(500_000, _A2C_DEFAULTS, _A2C, run=_NOISE)},
    "sac": {
        "Pendulum-v1": _PENDULUM,
        "MountainCarContinuous-v0": Preset(
            80_000, {**_COUNTED_HILL, "lr_schedule": "linear"}, run={"solve_success": 0.9}
        ),
    },
    "ddpg": {
        "Pendulum-v1": _PENDULUM,
        "MountainCarContinuous-v0": Preset(
            50_000,
            {**_COUNTED_HILL, "action_noise": "ou", "noise_std": 0.5},
            run={"solve_success": 0.9},
        ),
    },
}  # fmt: skip
"""Settings that we found better than the zoo's; measured in benchmarks/results."""


def preset(name: str | None, algorithm: str, env: str) -> tuple[str, Preset]:
    """Returns (name, preset); None selects the first of ``NAMES`` that exists, except ``published``.

    Raises ControlError for an unknown algorithm or preset, or one that does not exist for ``env``.
    """
    check_name(algorithm)
    known = available(algorithm, env)
    name = _OLD_NAMES.get(name, name) if name else None
    if name is None:
        chosen = next(candidate for candidate in NAMES if candidate in known and candidate != "published")
        return chosen, known[chosen]
    if name not in known:
        every = sorted({other for table in (ZOO, OURS) for other in table.get(algorithm, {})})
        elsewhere = f"; zoo and ours know {algorithm} for {', '.join(every)}" if every else ""
        raise ControlError(
            f"There is no preset {name!r} for {algorithm} on {env}: use {' or '.join(known)}{elsewhere}."
        )
    return name, known[name]


def available(algorithm: str, env: str) -> dict[str, Preset]:
    """Returns an algorithm's presets for ``env`` by name; ``default`` always exists."""
    found: dict[str, Preset] = {}
    for name, table in {"ours": OURS, "zoo": ZOO, "cleanrl": CLEANRL}.items():
        if env in table.get(algorithm, {}):
            found[name] = table[algorithm][env]
    if algorithm in PUBLISHED:
        found["published"] = PUBLISHED[algorithm]
    return {**found, "default": Preset(100_000, {})}


def settings(algorithm: str, chosen: Preset, changes: dict[str, Any]) -> Config:
    """Returns a preset's settings with ``changes`` applied. Raises ControlError where one does not fit."""
    return CONFIGS[algorithm](**{**chosen.settings, **changes})


def environments() -> dict[str, list[str]]:
    """Returns for each environment the algorithms that have a preset for it."""
    found: dict[str, list[str]] = {}
    for table in (ZOO, OURS, CLEANRL):
        for algorithm, envs in table.items():
            for env in envs:
                names = found.setdefault(env, [])
                if algorithm not in names:
                    names.append(algorithm)
    return found
