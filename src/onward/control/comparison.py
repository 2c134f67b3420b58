"""Comparison of Onward, stable-baselines3 and SBX (its JAX version) on one task, one machine and one clock.

Every side is judged by the same greedy episodes from the same starts, with the clock stopped meanwhile. The
peers get our settings, translated one by one (``peer_settings``), so that only the implementations differ.
Their environments do not draw: with a render mode LunarLander keeps a body for every engine firing, and its
steps take up to 20 times as long.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onward.control.core.config import Config
from onward.control.core.contract import Environments
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionSpec, Obs
from onward.control.core.threads import denormals_flushed
from onward.control.environments import make
from onward.control.evaluation.evaluate import EPISODES, SLOTS, Actor, play, success_rule
from onward.control.peer_settings import PEERS, translated, translated_for_sbx
from onward.control.policies.policy import Policy
from onward.control.running import presets
from onward.control.running.runs import Folder, RunConfig
from onward.errors import ControlError, MissingExtraError


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


class Look(NamedTuple):
    """One evaluation; seconds are of training so far."""

    step: int
    seconds: float
    cpu_seconds: float
    mean: float
    """Greedy mean return."""


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
    curve: list[Look] = field(default_factory=list)
    cpu_seconds_to_threshold: float | None = None

    @property
    def steps_per_second(self) -> float:
        return self.steps / max(self.seconds, 1e-9)

    @property
    def steps_per_cpu_second(self) -> float:
        return self.steps / max(self.cpu_seconds, 1e-9)

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
    def paused(self) -> Iterator[tuple[float, float]]:
        """Stops the clock for the block; yields the (wall, processor) seconds so far."""
        before = self._now()
        yield before
        wall, cpu = self._now()
        self._began = self._began[0] + wall - before[0], self._began[1] + cpu - before[1]


class _Judge:
    """Evaluates a side at intervals, and once more at the end."""

    def __init__(self, race: Race) -> None:
        self.race = race
        self.env: Environments = make(race.env, SLOTS)
        self.curve: list[Look] = []
        self._seeds = Seeds(race.seed).child("comparison")

    def look(self, actor: Actor, step: int, spent: tuple[float, float]) -> bool:
        """Evaluates the side after ``spent`` (wall, processor) seconds. Returns True where it has reached the
        threshold by now."""
        mean = play(actor, self.env, self.race.check_episodes, self._seeds.integer("look")).mean
        self.curve.append(Look(step, *spent, mean))
        return self._reached() is not None

    def _reached(self) -> Look | None:
        return next((look for look in self.curve if look.mean >= self.race.threshold), None)

    def outcome(self, side: str, actor: Actor, steps: int, clock: _Clock) -> Outcome:
        """Makes the last evaluation and plays the final episodes."""
        spent = clock.stop()
        if self._reached() is None:
            self.look(actor, steps, spent)
        rule = success_rule(self.env.spec)
        final = play(actor, self.env, EPISODES, self._seeds.integer("final"), rule=rule)
        reached = self._reached()
        return Outcome(
            side=side,
            steps=steps,
            seconds=spent[0],
            cpu_seconds=spent[1],
            seconds_to_threshold=reached and reached.seconds,
            steps_to_threshold=reached and reached.step,
            final_mean=final.mean,
            final_success=final.success,
            curve=self.curve,
            cpu_seconds_to_threshold=reached and reached.cpu_seconds,
        )


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
        with clock.paused() as spent:
            reached = judge.look(Policy(trainer.algorithm.networks(), race.env), step, spent)
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


# The peers' sides.


class ModelActor:
    """Adapts a model of stable-baselines3 or SBX to ``Actor``."""

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


def stable_baselines3(race: Race, flushed: bool = False) -> Outcome:
    """Trains with stable-baselines3, in its own vector of environments.

    ``flushed``: rounds denormal numbers to 0 as our trainer does; stable-baselines3 as shipped keeps them.
    Raises ControlError for settings that it does not have, MissingExtraError where it is not installed.
    """
    sb3 = _installed("stable_baselines3", "stable-baselines3")
    return _peer(race, sb3, translated(race.settings), flushed)


def sbx(race: Race) -> Outcome:
    """Trains with SBX, stable-baselines3 in JAX; the time to compile its updates counts.

    Raises ControlError for settings that it does not have, MissingExtraError where it is not installed.
    """
    _installed("stable_baselines3", "stable-baselines3")
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")  # read when jax is imported
    library = _installed("sbx", "SBX", extra="sbx")
    return _peer(race, library, translated_for_sbx(race.settings), flushed=False)


def _peer(race: Race, library: Any, words: dict[str, Any], flushed: bool) -> Outcome:
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(race.threads)
    judge, settings = _Judge(race), race.settings
    seed = Seeds(race.seed).integer("stable-baselines3")
    env = make_vec_env(race.env, settings.num_envs, seed=seed, env_kwargs={"render_mode": None})
    normalise = None
    wanted: Any = settings
    if getattr(wanted, "normalise_obs", False) or getattr(wanted, "scale_rewards", False):
        rewards = getattr(wanted, "scale_rewards", False)
        env = VecNormalize(env, norm_obs=wanted.normalise_obs, norm_reward=rewards, gamma=settings.gamma)
        normalise = env.normalize_obs
    kind = getattr(library, settings.algorithm.upper())
    model = kind("MlpPolicy", env, seed=seed, device="cpu", **words)
    actor = ModelActor(model, judge.env.spec.actions, normalise)

    class Look(BaseCallback):
        due = race.check_every

        def _on_step(self) -> bool:
            if self.num_timesteps < self.due or self.num_timesteps >= race.timesteps:
                return True
            self.due = self.num_timesteps + race.check_every
            with clock.paused() as spent:
                reached = judge.look(actor, self.num_timesteps, spent)
            return not (reached and race.stop)

    with denormals_flushed(flushed):
        clock = _Clock()
        model.learn(race.timesteps, callback=Look())
        clock.stop()
    name = "SBX" if library.__name__ == "sbx" else "stable-baselines3" + ", flushed" * flushed
    return judge.outcome(name, actor, model.num_timesteps, clock)


def _installed(module: str, name: str, extra: str = "bench") -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(extra, f"Comparing with {name}") from None


SIDES: dict[str, Callable[[Race], Outcome]] = {
    "onward": ours,
    "stable-baselines3": stable_baselines3,
    "stable-baselines3, flushed": partial(stable_baselines3, flushed=True),
    "SBX": sbx,
}
"""Every side, ours first. Only the last one may be missing where stable-baselines3 is installed."""


def compare(race: Race) -> tuple[list[Outcome], list[str]]:
    """Runs every side, ours first. Returns the outcomes, and why SBX is missing where it is.

    Raises ControlError for settings that stable-baselines3 does not have, MissingExtraError where it is not
    installed.
    """
    translated(race.settings)
    _installed("stable_baselines3", "stable-baselines3")
    outcomes, missing = [], list[str]()
    for name, side in SIDES.items():
        try:
            outcomes.append(side(race))
        except (ControlError, MissingExtraError) as error:
            if name != "SBX":
                raise
            missing.append(str(error))
    return outcomes, missing


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
