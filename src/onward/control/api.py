"""Training and evaluation from Python, as ``onward control train`` and ``eval`` do them.

``train`` takes an environment's id, or a function that makes one (a class is one too). It returns when the
run ends; callbacks receive every event meanwhile and may end it.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.control.algorithms.registry import algorithm_class, check_name
from onward.control.core.config import CONFIGS
from onward.control.core.threads import threads_kept
from onward.control.environments import make, newest_version
from onward.control.environments.check import require
from onward.control.evaluation.assess import fitting
from onward.control.evaluation.evaluate import EPISODES, SLOTS, Episodes, play, success_rule
from onward.control.policies.policy import Policy
from onward.control.running import presets
from onward.control.running.runs import Folder, RunConfig, following, going_on
from onward.control.running.seeds_in_parallel import Task, train_one
from onward.control.running.trainer import Event
from onward.control.running.world import world
from onward.errors import ControlError

Callback = Callable[[Event], Any]
"""Receives an event (see ``Event``); False ends the run after the present step and saves it."""
Source = str | Callable[[], Any]
"""Id of an environment, or a function that makes a new one at each call."""


@dataclass(frozen=True)
class TrainedRun:
    """Result of ``train``."""

    folder: Path
    """Files of the run: policy, saved state, metrics."""
    summary: dict[str, Any]
    """Contents of ``summary.json``: ``end``, ``steps``, ``solved``, ``best``, ``final`` …"""

    @property
    def policy(self) -> Policy:
        """The best policy by evaluation. Raises ControlError where the run ended before an evaluation."""
        return Policy.load(self.folder)


def train(
    env: Source,
    algorithm: str | None = None,
    *,
    timesteps: int | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    preset: str | None = None,
    settings: dict[str, Any] | None = None,
    start: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> TrainedRun:
    """Trains one run and returns its result. Ctrl-C saves and ends it.

    - ``folder``: of the run; none means ``runs/<env>-<algorithm>-seed<k>``.
    - ``settings``: changes to the preset, such as ``{"num_envs": 16}``.
    - ``start``: folder of a run whose weights, moments and normaliser this one starts from. Algorithm and
      settings are then that run's unless changed; the environment and the number of slots may differ.
    - ``options``: other fields of ``RunConfig``, such as ``threshold``, ``env_kwargs`` or ``eval_every``.

    Raises ControlError for what does not fit, before anything is written.
    """
    name = newest_version(env) if isinstance(env, str) else _name(env)
    if start is None:
        run = _configured(name, algorithm, preset, timesteps, settings or {}, {**options, "seed": seed})
    else:
        if preset is not None:
            raise ControlError("With start the settings are those of that run: leave out preset.")
        length = {} if timesteps is None else {"timesteps": timesteps}
        wanted = {**options, "env": name, "seed": seed, **length}
        run = following(Path(start), settings or {}, algorithm, **wanted)
    where = Folder.of(Path("runs"), run) if folder is None else Folder(Path(folder))
    return _trained(env, run, where, callbacks, resume=False)


def resume(
    folder: str | Path,
    env: Source | None = None,
    *,
    timesteps: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrainedRun:
    """Continues the run in ``folder`` from its saved state.

    ``env``: what the run was trained in, where that was not an id. ``timesteps``: another end; a run that
    stopped when it was solved then goes on to it. The event ``started`` says in ``differences`` why the
    result cannot be bit for bit that of the uninterrupted run. Raises ControlError where nothing is left.
    """
    where = Folder(Path(folder))
    run = going_on(where, timesteps)
    return _trained(run.env if env is None else env, run, where, callbacks, resume=True)


def evaluate(
    policy: Policy | str | Path,
    env: Source,
    *,
    episodes: int = EPISODES,
    seed: int = 0,
    threshold: float | None = None,
    env_kwargs: dict[str, Any] | None = None,
) -> Episodes:
    """Plays greedy episodes on seeds that training never uses. Returns raw returns, lengths and successes.

    ``policy``: one, or the folder of a policy or of a run. ``threshold``: return that counts as success; none
    means the task's own rule. Raises ControlError where the policy was made for other observations or
    actions.
    """
    actor = policy if isinstance(policy, Policy) else Policy.load(policy)
    envs = make(env, min(SLOTS, max(1, episodes)), env_kwargs=env_kwargs)
    envs.without_shaping()
    try:
        fitting(actor, envs.spec)
        return play(actor, envs, episodes, seed, rule=success_rule(envs.spec, threshold))
    finally:
        envs.close()


def _configured(
    name: str,
    algorithm: str | None,
    preset: str | None,
    timesteps: int | None,
    changes: dict[str, Any],
    options: dict[str, Any],
) -> RunConfig:
    if algorithm is None:
        raise ControlError(f"No algorithm was given: give one of {', '.join(CONFIGS)}.")
    check_name(algorithm)
    chosen, tuned = presets.preset(preset, algorithm, name)
    try:
        return RunConfig(
            env=name,
            algorithm=algorithm,
            settings=presets.settings(algorithm, tuned, changes),
            preset=chosen,
            timesteps=timesteps or tuned.timesteps,
            **{**tuned.run, **options},
        )
    except TypeError as error:
        raise ControlError(f"An option or a setting has no such name ({error}).") from error


def _trained(
    env: Source, run: RunConfig, where: Folder, callbacks: Sequence[Callback], resume: bool
) -> TrainedRun:
    of = world(run, env)
    if not resume:
        found, _ = require(env, run.env_kwargs if isinstance(env, str) else None)
        for warning in found:
            warnings.warn(warning, stacklevel=4)
    if algorithm_class(run.algorithm).asynchronous:
        _check_travels(env, run.algorithm)

    def watch(event: Event) -> bool:
        return all([callback(event) is not False for callback in callbacks])

    with threads_kept():
        summary = train_one(Task(run, where, resume, of), watch)
    return TrainedRun(where.path, summary)


def _name(env: Any) -> str:
    if not callable(env):
        raise ControlError(
            f"{env!r} is one environment, and training needs several: give an id, or a function that makes "
            f"a new one at each call."
        )
    return getattr(env, "__qualname__", type(env).__name__)


def _check_travels(env: Source, algorithm: str) -> None:
    try:
        pickle.dumps(env)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ControlError(
            f"{algorithm} makes its environments in other processes, and this function cannot be sent there "
            f"({error}): define it at the top of a module."
        ) from error
