"""Comparison of Onward and stable-baselines3 on one task, one machine and one clock.

Both sides are judged by the same greedy episodes from the same starts, with the clock stopped meanwhile.
stable-baselines3 gets our settings, translated one by one (``translated``), so that only the implementations
differ.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.control.core.config import Config
from onward.control.core.contract import Environments
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionSpec, Obs
from onward.control.environments import make
from onward.control.evaluation.evaluate import EPISODES, SLOTS, Actor, play, success_rule
from onward.control.policies.policy import Policy
from onward.control.running import presets
from onward.control.running.runs import Folder, RunConfig
from onward.errors import ControlError, MissingExtraError

PEERS = ("ppo", "dqn", "sac")
"""Algorithms that stable-baselines3 has too."""


@dataclass(frozen=True)
class Race:
    """Task of both sides."""

    env: str
    settings: Config
    timesteps: int
    threshold: float
    """Greedy mean return that ends the race."""
    seed: int = 0
    check_every: int = 1000
    """Steps between two evaluations."""
    check_episodes: int = 20
    stop: bool = False
    """True to end at the threshold; else all steps are trained."""
    threads: int = 1


@dataclass(frozen=True)
class Outcome:
    """Result of one side; seconds are of training alone."""

    side: str
    steps: int
    seconds: float
    cpu_seconds: float
    """Processor seconds of this process: the steadier figure on a busy machine."""
    seconds_to_threshold: float | None
    steps_to_threshold: int | None
    final_mean: float
    final_success: float | None
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    """(step, seconds, greedy mean return) of each evaluation."""

    @property
    def steps_per_second(self) -> float:
        return self.steps / max(self.seconds, 1e-9)

    def as_dict(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {**asdict(self), "steps_per_second": self.steps_per_second}


class _Clock:
    """Wall and processor seconds of training, from ``start`` to the first ``stop``, without ``paused``."""

    def __init__(self) -> None:
        self.start()
        self._ended: tuple[float, float] | None = None

    def start(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def _now(self) -> tuple[float, float]:
        return time.perf_counter() - self._began[0], time.process_time() - self._began[1]

    def stop(self) -> tuple[float, float]:
        """Returns (wall, processor) seconds."""
        if self._ended is None:
            self._ended = self._now()
        return self._ended

    @contextmanager
    def paused(self) -> Iterator[float]:
        """Stops the clock for the block; yields the wall seconds so far."""
        before = self._now()
        yield before[0]
        wall, cpu = self._now()
        self._began = self._began[0] + wall - before[0], self._began[1] + cpu - before[1]


class _Judge:
    """Evaluates a side at intervals, and once more at the end."""

    def __init__(self, race: Race) -> None:
        self.race = race
        self.env: Environments = make(race.env, SLOTS)
        self.curve: list[tuple[int, float, float]] = []
        self._seeds = Seeds(race.seed).child("comparison")

    def look(self, actor: Actor, step: int, seconds: float) -> bool:
        """Evaluates the side; True where it has reached the threshold by now."""
        mean = play(actor, self.env, self.race.check_episodes, self._seeds.integer("look")).mean
        self.curve.append((step, seconds, mean))
        return self._reached() is not None

    def _reached(self) -> tuple[int, float, float] | None:
        return next((look for look in self.curve if look[2] >= self.race.threshold), None)

    def outcome(self, side: str, actor: Actor, steps: int, clock: _Clock) -> Outcome:
        """Makes the last evaluation and plays the final episodes."""
        seconds, cpu_seconds = clock.stop()
        if self._reached() is None:
            self.look(actor, steps, seconds)
        rule = success_rule(self.env.spec)
        final = play(actor, self.env, EPISODES, self._seeds.integer("final"), rule=rule)
        reached = self._reached() or (None, None, None)
        mean, success = final.mean, final.success
        return Outcome(side, steps, seconds, cpu_seconds, reached[1], reached[0], mean, success, self.curve)


# Our side.


def ours(race: Race) -> Outcome:
    """Trains with our trainer, as ``onward control train`` does, except for its own evaluations."""
    from onward.control.running.trainer import Trainer

    judge, clock = _Judge(race), _Clock()
    run = RunConfig(
        env=race.env,
        algorithm=race.settings.algorithm,
        settings=race.settings,
        seed=race.seed,
        timesteps=race.timesteps,
        eval_every=race.timesteps,
        eval_episodes=1,
        checkpoint_every=race.timesteps,
        threshold=1e12,  # the trainer never looks for a solution: the judge does
        stop_when_solved=False,
        threads=race.threads,
    )
    due = race.check_every

    def watch(event: dict[str, Any]) -> None:
        nonlocal due
        step = event["step"]
        if step >= race.timesteps:
            clock.stop()
        if event["event"] != "row" or step < due or step >= race.timesteps:
            return
        due = step + race.check_every
        with clock.paused() as seconds:
            reached = judge.look(Policy(trainer.algorithm.networks(), race.env), step, seconds)
        if reached and race.stop:
            clock.stop()
            trainer.stop()

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(run, Folder(Path(folder) / "run"), watch)
        trainer.start()
        clock.start()
        trainer.train()
    actor = Policy(trainer.algorithm.networks(), race.env)
    return judge.outcome("onward", actor, trainer.algorithm.steps, clock)


# The side of stable-baselines3.


class ModelActor:
    """Adapts a stable-baselines3 model to ``Actor``."""

    def __init__(self, model: Any, actions: ActionSpec, normalise: Callable[[Any], Any] | None) -> None:
        self._model, self._actions, self._normalise = model, actions, normalise

    def act_flat(
        self, obs: Obs, mask: NDArray[Any] | None = None, deterministic: bool = True
    ) -> NDArray[Any]:
        """Implements ``Actor``: a box action is scaled back to −1 … 1."""
        seen = obs if self._normalise is None else self._normalise(obs)
        given, _ = self._model.predict(seen, deterministic=deterministic)
        if self._actions.kind != "box":
            return np.asarray(given) - np.array(self._actions.start).squeeze()
        low, high = np.array(self._actions.low), np.array(self._actions.high)
        return (2 * (given.reshape(len(given), -1) - low) / (high - low) - 1).astype(np.float32)


def stable_baselines3(race: Race) -> Outcome:
    """Trains with stable-baselines3, in its own vector of environments.

    Raises ControlError for settings that it does not have, MissingExtraError where it is not installed.
    """
    sb3 = _sb3()
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(race.threads)
    judge, settings = _Judge(race), race.settings
    seed = Seeds(race.seed).integer("stable-baselines3")
    env = make_vec_env(race.env, settings.num_envs, seed=seed)
    normalise = None
    wanted: Any = settings
    if getattr(wanted, "normalise_obs", False) or getattr(wanted, "scale_rewards", False):
        rewards = getattr(wanted, "scale_rewards", False)
        env = VecNormalize(env, norm_obs=wanted.normalise_obs, norm_reward=rewards, gamma=settings.gamma)
        normalise = env.normalize_obs
    kind = {"ppo": sb3.PPO, "dqn": sb3.DQN, "sac": sb3.SAC}[settings.algorithm]
    model = kind("MlpPolicy", env, seed=seed, device="cpu", **translated(settings))
    actor = ModelActor(model, judge.env.spec.actions, normalise)

    class Look(BaseCallback):
        due = race.check_every

        def _on_step(self) -> bool:
            if self.num_timesteps < self.due or self.num_timesteps >= race.timesteps:
                return True
            self.due = self.num_timesteps + race.check_every
            with clock.paused() as seconds:
                reached = judge.look(actor, self.num_timesteps, seconds)
            return not (reached and race.stop)

    clock = _Clock()
    model.learn(race.timesteps, callback=Look())
    return judge.outcome("stable-baselines3", actor, model.num_timesteps, clock)


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


def _sb3() -> Any:
    try:
        import stable_baselines3
    except ImportError:
        raise MissingExtraError("bench", "Comparing with stable-baselines3") from None
    return stable_baselines3


# Settings of both sides.

CLEANRL: dict[str, dict[str, Any]] = {
    "ppo": {
        "num_envs": 4, "n_steps": 128, "batch_size": 128, "epochs": 4, "learning_rate": 2.5e-4,
        "lr_schedule": "linear", "gamma": 0.99, "gae_lambda": 0.95, "clip": 0.2, "value_clip": 0.2,
        "entropy_coef": 0.01, "value_coef": 0.5, "max_grad_norm": 0.5, "hidden": (64, 64),
    },
    "dqn": {
        "learning_rate": 2.5e-4, "batch_size": 128, "buffer_size": 10_000, "learning_starts": 10_000,
        "gamma": 0.99, "target_every": 500, "train_every": 10, "gradient_steps": 1, "hidden": (120, 84),
        "epsilon_fraction": 0.5, "epsilon_end": 0.05,
    },
    "sac": {
        "learning_rate": 3e-4, "batch_size": 256, "buffer_size": 1_000_000, "learning_starts": 5000,
        "gamma": 0.99, "tau": 0.005, "hidden": (256, 256),
    },
}  # fmt: skip
"""CleanRL's settings (2026-04-20: ppo.py, dqn.py, sac_continuous_action.py), as far as both libraries have
them. Its DQN uses the squared error unclipped (here Huber, clipped). Its SAC has 1e-3 for the critics and two
policy updates every second step (here 3e-4 and one each)."""


def equal_settings(peer: str, algorithm: str, env: str) -> Config:
    """Returns the settings of both sides: the zoo's (or the defaults) for ``sb3``, or CleanRL's."""
    if algorithm not in PEERS:
        raise ControlError(f"There is no peer with {algorithm}: compare {', '.join(PEERS)}.")
    if peer not in ("sb3", "cleanrl"):
        raise ControlError(f"There is no peer {peer!r}: use sb3 or cleanrl.")
    if peer == "cleanrl":
        found = presets.Preset(0, CLEANRL[algorithm])
    else:
        known = presets.available(algorithm, env)
        found = known.get("zoo", known["default"])
    plain = {"double": False} if algorithm == "dqn" else {}
    return presets.settings(algorithm, found, plain)
