"""Our settings in the words of stable-baselines3 and of SBX, its JAX version.

Raises rather than approximates: a setting that a peer lacks is named, so that a comparison never differs in
more than the implementation without saying so.
"""

from __future__ import annotations

import importlib
from typing import Any

from onward.control.core.config import Config
from onward.errors import ControlError

PEERS = ("ppo", "dqn", "sac")
"""Algorithms that stable-baselines3 and SBX have too."""


def translated(settings: Config) -> dict[str, Any]:
    """Translates our settings to stable-baselines3's. Raises ControlError for those that it lacks."""
    s: Any = settings
    if settings.algorithm not in PEERS:
        raise ControlError(
            f"stable-baselines3 has no {settings.algorithm} that compares: use {', '.join(PEERS)}."
        )
    from torch import nn

    if s.layer_norm or s.bonus != "none":
        raise ControlError("stable-baselines3 has neither layer norm nor bonuses: compare without them.")
    activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[s.activation]
    policy: dict[str, Any] = {"net_arch": list(s.hidden), "activation_fn": activation}
    words = {"learning_rate": _schedule(s.learning_rate, s.lr_schedule), "gamma": s.gamma}
    words |= {"batch_size": s.batch_size, "policy_kwargs": policy}
    if settings.algorithm == "ppo":
        policy["log_std_init"] = s.log_std
        return words | {
            "n_steps": s.n_steps,
            "n_epochs": s.epochs,
            "gae_lambda": s.gae_lambda,
            "clip_range": _schedule(s.clip, s.clip_schedule),
            "clip_range_vf": s.value_clip,
            "ent_coef": s.entropy_coef,
            "vf_coef": s.value_coef,
            "max_grad_norm": s.max_grad_norm,
            "target_kl": s.target_kl,
        }
    # stable-baselines3 has one burst per step of all slots; ours has one per ``train_every`` steps.
    bursts = max(1, s.num_envs // s.train_every)
    words |= {
        "buffer_size": s.buffer_size,
        "learning_starts": s.learning_starts,
        "train_freq": max(1, s.train_every // s.num_envs),
        "gradient_steps": s.gradient_steps if s.gradient_steps < 0 else s.gradient_steps * bursts,
        "tau": s.tau,
        "n_steps": s.n_step,
    }
    return words | (_dqn(s) if settings.algorithm == "dqn" else _sac(s))


def _dqn(s: Any) -> dict[str, Any]:
    if s.double or s.dueling or s.prioritised or s.ensemble > 1 or s.loss != "huber" or s.epsilon_decay:
        raise ControlError(
            "stable-baselines3's DQN has no Double, dueling, prioritised, ensemble, mse or multiplicative "
            "epsilon: compare without them (double=false, loss=huber)."
        )
    return {
        "target_update_interval": s.target_every,
        "exploration_initial_eps": s.epsilon_start,
        "exploration_final_eps": s.epsilon_end,
        "exploration_fraction": s.epsilon_fraction,
        "max_grad_norm": s.max_grad_norm or float("inf"),
    }


def _sac(s: Any) -> dict[str, Any]:
    if s.action_noise != "none":
        raise ControlError("stable-baselines3 is given no action noise here: compare with action_noise=none.")
    return {
        "ent_coef": "auto" if s.temperature is None else s.temperature,
        "target_entropy": "auto" if s.target_entropy is None else s.target_entropy,
    }


def _schedule(start: float, kind: str) -> Any:
    return (lambda left: start * left) if kind == "linear" else start


def translated_for_sbx(settings: Config) -> dict[str, Any]:
    """Translates our settings to SBX's. Raises ControlError for those that it lacks.

    Two differences stay: its DQN never clips a gradient (the zoo's norm of 10 is seldom reached), and its
    DQN's learning rate is constant.
    """
    s: Any = settings
    words = translated(settings)
    if settings.algorithm == "dqn" and (len(s.hidden) != 2 or len(set(s.hidden)) != 1):
        raise ControlError("SBX's DQN has two hidden layers of one size: compare with hidden=256,256.")
    if settings.algorithm == "dqn" and s.lr_schedule != "constant":
        raise ControlError("SBX's DQN has one learning rate: compare with lr_schedule=constant.")
    if settings.algorithm == "ppo" and (s.value_clip is not None or s.target_kl is not None):
        raise ControlError("SBX's PPO clips no values and treats target_kl otherwise: compare without them.")
    linen = importlib.import_module("flax.linen")  # comes with SBX
    words["policy_kwargs"]["activation_fn"] = {"tanh": linen.tanh, "relu": linen.relu}[s.activation]
    if settings.algorithm == "dqn":
        del words["max_grad_norm"]
    if settings.algorithm == "ppo":
        del words["clip_range_vf"], words["target_kl"]
    return words
