"""Creation of ``Environments`` from ids, functions and environment objects.

Ids of ``classics.TASKS`` run in numpy, except for rendering and for a single unchanged slot, where
Gymnasium's own environment is faster. Everything else runs through Gymnasium.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike

from onward.control.core.contract import Environments, EnvSpec
from onward.control.core.spaces import action_spec, layout_of
from onward.control.environments.classics import TASKS
from onward.control.environments.gym_slots import GymSlots
from onward.control.environments.noise import NoisyObservations
from onward.control.environments.vector_slots import VectorSlots, check_same_step
from onward.errors import ControlError, MissingExtraError, install_command


def make(
    id_or_env: Any,
    num: int | None = None,
    *,
    env_kwargs: dict[str, Any] | None = None,
    obs_noise: ArrayLike | None = None,
) -> Environments:
    """Returns ``num`` slots of an environment; None: as many as are given, or one.

    - ``id_or_env``: an id, a function that makes a Gymnasium environment, one or several environments, or a
      Gymnasium ``VectorEnv`` that resets in SAME_STEP.
    - ``env_kwargs``: arguments of an id's environment. The numpy tasks take ``max_episode_steps`` and their
      physical constants, under the names of Gymnasium's attributes (``length``, ``g``, …).
    - ``obs_noise``: standard deviations (one, or one per number) of Gaussian noise on observations.

    Raises ControlError, with the remedy, for input that is not supported.
    """
    if num is not None and num < 1:
        raise ControlError(f"{num} environments were asked for: ask for at least 1.")
    made = _made(id_or_env, num, dict(env_kwargs or {}))
    return made if obs_noise is None else NoisyObservations(made, obs_noise)


_PACKAGES = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid"}
"""Beginning of an id → the package that registers it when imported. That package's own wrapper flattens the
mission text together with the picture."""


def newest_version(env_id: str) -> str:
    """Returns ``env_id`` with the newest version that Gymnasium knows; unchanged where it has one or none is
    known. (``gymnasium.make`` takes the newest too, but does not record which.)"""
    if ":" in env_id or re.search(r"-v\d+$", env_id):
        return env_id
    gymnasium = _gymnasium()
    from gymnasium.envs.registration import find_highest_version, parse_env_id

    _register(env_id)
    if env_id in gymnasium.registry:
        return env_id
    try:
        space, name, _ = parse_env_id(env_id)
    except gymnasium.error.Error:
        return env_id
    newest = find_highest_version(space, name)
    return env_id if newest is None else f"{env_id}-v{newest}"


def missing_package(env_id: str) -> str | None:
    """Returns one sentence where the package of ``env_id`` is not installed; None where it is, or is ours."""
    for start, package in _PACKAGES.items():
        if env_id.startswith(start) and importlib.util.find_spec(package) is None:
            return (
                f"{env_id} comes from the package {package}, which is not installed: "
                f"run {install_command(package)}."
            )
    return None


def _register(env_id: str) -> None:
    """Registers environments that Gymnasium does not find by itself. Raises ControlError."""
    if env_id.startswith("onward/"):
        from onward.control.environments.pixels import register

        register()
    missing = missing_package(env_id)
    if missing is not None:
        raise ControlError(missing)
    for start, package in _PACKAGES.items():
        if env_id.startswith(start):
            importlib.import_module(package)


def _made(source: Any, num: int | None, kwargs: dict[str, Any]) -> Environments:
    if isinstance(source, str) and _in_numpy(source, num or 1, kwargs):
        task, spec = TASKS[source]
        limit = kwargs.pop("max_episode_steps", spec.max_steps)
        if type(limit) is not int or limit < 1:
            raise ControlError(f"{source}: max_episode_steps is {limit!r}: give a whole number from 1 on.")
        return task(replace(spec, max_steps=limit), num or 1, kwargs)
    gymnasium = _gymnasium()
    if isinstance(source, str):
        return _slots([_by_id(gymnasium, source, kwargs) for _ in range(num or 1)])
    if kwargs:
        raise ControlError("env_kwargs go with an id only: set them in the function that makes one.")
    if isinstance(source, gymnasium.vector.VectorEnv):
        return _vector(gymnasium, source, num)
    envs = _given(gymnasium, source, num)
    if any(not isinstance(env, gymnasium.Env) for env in envs) or len(envs) != (num or len(envs)) or not envs:
        raise ControlError(
            f"{source!r} does not make {num or 'any'} environments: give an id, a function that makes a "
            f"Gymnasium environment, a list with one environment per slot, or a VectorEnv."
        )
    return _slots(envs)


def _in_numpy(env_id: str, num: int, kwargs: dict[str, Any]) -> bool:
    """True where numpy runs it. One unchanged slot is Gymnasium's: same episodes, up to 3 × the speed."""
    return env_id in TASKS and "render_mode" not in kwargs and (num > 1 or bool(kwargs))


def _given(gymnasium: Any, source: Any, num: int | None) -> list[Any]:
    if isinstance(source, gymnasium.Env):
        return [source] * (num or 1)
    if callable(source):
        return [source() for _ in range(num or 1)]
    return list(source) if isinstance(source, Sequence) else []


def _by_id(gymnasium: Any, env_id: str, kwargs: dict[str, Any]) -> Any:
    _register(env_id)
    try:
        env = gymnasium.make(env_id, disable_env_checker=True, **kwargs)
        if not env_id.startswith(tuple(_PACKAGES)):
            return env
        return importlib.import_module("minigrid.wrappers").FlatObsWrapper(env)  # as the zoo's presets do
    except Exception as error:  # any error of an environment's own constructor about its arguments
        known = ", ".join(TASKS)
        given = f" with {kwargs}" if kwargs else ""
        why = " ".join(str(error).split()) or type(error).__name__
        raise ControlError(
            f"Gymnasium cannot make {env_id!r}{given} ({why}): choose an id that it knows, such as {known}"
            f"{', and arguments that it takes' if kwargs else ''}."
        ) from error


def _slots(envs: list[Any]) -> GymSlots:
    first = envs[0]
    return GymSlots(envs, _spec(first, first.observation_space, first.action_space))


def _vector(gymnasium: Any, envs: Any, num: int | None) -> Environments:
    """Adapts a ``VectorEnv``. A plain ``SyncVectorEnv`` is taken apart, so that it can be resumed and
    ``final_obs`` is copied in time."""
    if num not in (None, envs.num_envs):
        raise ControlError(f"The VectorEnv has {envs.num_envs} slots, not {num}: ask for {envs.num_envs}.")
    check_same_step(envs)
    if type(envs) is gymnasium.vector.SyncVectorEnv and envs.observation_mode == "same":
        return _slots(envs.envs)
    return VectorSlots(envs, _spec(envs, envs.single_observation_space, envs.single_action_space))


def _spec(env: Any, observation_space: Any, action_space: Any) -> EnvSpec:
    spec = env.spec
    return EnvSpec(
        id=spec.id if spec else type(env.unwrapped).__name__,
        layout=layout_of(observation_space),
        actions=action_spec(action_space),
        threshold=spec.reward_threshold if spec else None,
        max_steps=spec.max_episode_steps if spec else None,
    )


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise MissingExtraError("control", "running Gymnasium environments") from error
    return gymnasium
