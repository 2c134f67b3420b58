"""Creation of ``Environments`` from ids, functions and environment objects.

Ids of ``classics.TASKS`` run in numpy, except for rendering and for a single unchanged slot, where
Gymnasium's own environment is faster. Everything else runs through Gymnasium.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from onward import own_code
from onward.control.core.contract import Environments, EnvSpec
from onward.control.core.spaces import action_spec, layout_of
from onward.control.environments import slips
from onward.control.environments.classics import TASKS
from onward.control.environments.gym_slots import GymSlots
from onward.control.environments.noise import NoisyObservations
from onward.control.environments.process_slots import ProcessSlots
from onward.control.environments.vector_slots import VectorSlots, check_same_step
from onward.errors import ControlError, MissingExtraError, install_command


def make(
    id_or_env: Any,
    num: int | None = None,
    *,
    env_kwargs: dict[str, Any] | None = None,
    obs_noise: ArrayLike | None = None,
    processes: int = 1,
) -> Environments:
    """Returns ``num`` slots of an environment; None: as many as are given, or one.

    - ``id_or_env``: an id, ``module:id``, ``module:Class``, a function that makes a Gymnasium environment,
      one or several environments, or a Gymnasium ``VectorEnv`` that resets in SAME_STEP.
    - ``env_kwargs``: arguments of an id's environment. The numpy tasks take ``max_episode_steps`` and their
      physical constants, under the names of Gymnasium's attributes (``length``, ``g``, …).
    - ``processes``: worker processes that step the slots at the same time, for environments of some
      milliseconds a step. The results do not depend on it. The tasks in numpy run without.
    - ``obs_noise``: standard deviations (one, or one per number) of Gaussian noise on observations.

    Raises ControlError, with the remedy, for input that is not supported.
    """
    if num is not None and num < 1:
        raise ControlError(f"{num} environments were asked for: ask for at least 1.")
    kwargs = dict(env_kwargs or {})
    if processes > 1 and (num or 1) > 1 and not (isinstance(id_or_env, str) and id_or_env in TASKS):
        made: Environments = ProcessSlots(id_or_env, num or 1, processes, kwargs)
    else:
        made = _made(id_or_env, num, kwargs)
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
    limit = kwargs.get("max_episode_steps", 1)
    if type(limit) is not int or limit < 1:
        raise ControlError(f"{source}: max_episode_steps is {limit!r}: give a whole number from 1 on.")
    if isinstance(source, str) and _in_numpy(source, num or 1, kwargs):
        task, spec = TASKS[source]
        limit = kwargs.pop("max_episode_steps", spec.max_steps)
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
    given = f" with {kwargs}" if kwargs else ""
    own = _own(gymnasium, env_id)
    try:
        if own is not None:
            return _limited(gymnasium, env_id, own, dict(kwargs))
        env = gymnasium.make(env_id, disable_env_checker=True, **kwargs)
        if not env_id.startswith(tuple(_PACKAGES)):
            return env
        return importlib.import_module("minigrid.wrappers").FlatObsWrapper(env)  # as the zoo's presets do
    except ControlError:
        raise
    except gymnasium.error.UnregisteredEnv as error:
        known = ", ".join(TASKS)
        raise ControlError(
            f"Gymnasium cannot make {env_id!r}{given} ({_words(error)}): choose an id that it knows, such as "
            f"{known}, or give module:id of an environment of your own."
        ) from error
    except Exception as error:  # any error of an environment's own constructor about its arguments
        remedy = "give arguments that it takes" if kwargs else "give a valid id, or correct its constructor"
        raise ControlError(
            f"Gymnasium cannot make {env_id!r}{given} ({_words(error)}){error_place(error)}: {remedy}."
        ) from error


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _own(gymnasium: Any, env_id: str) -> Any:
    """Imports the module of ``module:name``, also from the current folder. Returns the environment class or
    function of that name; None for an id that Gymnasium knows. Raises ControlError."""
    module, colon, name = env_id.partition(":")
    if not colon or ":" in name:
        return None
    if "/" in module or "\\" in module or module.endswith(".py"):
        raise ControlError(
            f"{module!r} is a path: go to its folder and give the name of the module, "
            f"{Path(module).name.removesuffix('.py')}:{name}."
        )
    here = own_code.search_here()
    try:
        imported = importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in _parents(module):
            raise ControlError(
                f"There is no module {error.name!r} in {here} or among the installed ones: go to the folder "
                f"of {module.replace('.', '/')}.py, or name that folder in PYTHONPATH."
            ) from error
        raise ControlError(
            f"The module {module!r} of {env_id!r} cannot be imported "
            f"({type(error).__name__}: {_words(error)}){error_place(error)}: correct it."
        ) from error
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error:
        own = getattr(imported, name, None)
        if callable(own):
            return own
        known = [one.id for one in gymnasium.registry.values() if _comes_from(one, module)]
        raise ControlError(
            f"{module!r} ({getattr(imported, '__file__', 'built in')}) registers no environment {name!r} "
            f"and has no class of that name: give one of {', '.join(known) or 'its classes'}, or register it "
            f"with gymnasium.register."
        ) from None
    return None


def _parents(module: str) -> set[str]:
    parts = module.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts) + 1)}


def _comes_from(registered: Any, module: str) -> bool:
    entry = registered.entry_point
    return (entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")) == module


def _limited(gymnasium: Any, env_id: str, own: Any, kwargs: dict[str, Any]) -> Any:
    """Makes an environment from a class or function, with the time limit in ``kwargs``, if any."""
    limit = kwargs.pop("max_episode_steps", None)
    env = own(**kwargs)
    if not isinstance(env, gymnasium.Env):
        raise ControlError(
            f"{env_id!r} makes {slips.described(env)}, not a gymnasium.Env: derive it from gymnasium.Env, or "
            f"name a class or function that makes one."
        )
    return env if limit is None else gymnasium.wrappers.TimeLimit(env, limit)


def error_place(error: BaseException) -> str:
    """Returns the innermost line of an error, for the end of a sentence."""
    found = traceback.extract_tb(error.__traceback__)
    return f" at {Path(found[-1].filename).name}:{found[-1].lineno}" if found else ""


def _slots(envs: list[Any]) -> GymSlots:
    first = envs[0]
    for name in ("observation_space", "action_space"):
        check_space(first, name)
    return GymSlots(envs, _spec(first, first.observation_space, first.action_space))


def check_space(env: Any, name: str) -> None:
    """Raises ControlError where ``env`` lacks the space called ``name``."""
    from gymnasium import Space

    try:
        space = getattr(env, name)
    except AttributeError:
        space = None
    if isinstance(space, Space):
        return
    inner = type(env.unwrapped).__name__
    if space is None:
        raise ControlError(
            f"{inner} has no {name}: set self.{name} in its __init__, such as "
            f"gymnasium.spaces.{_EXAMPLES[name]}."
        )
    older = " of the older package gym" if type(space).__module__.partition(".")[0] == "gym" else ""
    raise ControlError(
        f"The {name} of {inner} is {slips.described(space)}{older}, not a space of Gymnasium: use "
        f"gymnasium.spaces, such as {_EXAMPLES[name]}."
    )


_EXAMPLES = {"observation_space": "Box(-1.0, 1.0, (3,))", "action_space": "Discrete(2)"}


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
        max_steps=_time_limit(env),
    )


def _time_limit(env: Any) -> int | None:
    """Returns the limit of the environment's specification, else of its ``TimeLimit`` wrapper."""
    if env.spec and env.spec.max_episode_steps:
        return env.spec.max_episode_steps
    from gymnasium.wrappers import TimeLimit

    while hasattr(env, "env"):
        if isinstance(env, TimeLimit):
            return int(env._max_episode_steps)  # pyright: ignore[reportPrivateUsage]
        env = env.env
    return None


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise MissingExtraError("control", "running Gymnasium environments") from error
    return gymnasium
