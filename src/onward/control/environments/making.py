"""From whatever names or holds environments to ``Environments``.

The one thing to know: ids of ``classics.TASKS`` run in numpy unless they are given something that only
Gymnasium's own version takes (``render_mode``); everything else runs through Gymnasium.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from onward.control.classics import TASKS
from onward.control.contract import Environments, EnvSpec
from onward.control.environments.gym_slots import GymSlots
from onward.control.spaces import ObsFlattener, action_spec
from onward.errors import ControlError, MissingExtraError

if TYPE_CHECKING:
    from gymnasium import Env
    from gymnasium.vector import VectorEnv

Source = (
    "str | Callable[[], Env[Any, Any]] | Env[Any, Any] | Sequence[Env[Any, Any]] | VectorEnv[Any, Any, Any]"
)


def make(
    id_or_env: Any,
    num: int = 1,
    *,
    env_kwargs: dict[str, Any] | None = None,
    obs_noise: ArrayLike | None = None,
) -> Environments:
    """``num`` slots of an environment.

    ``id_or_env``: an id, a function that makes a Gymnasium environment, one or several of them, or a Gymnasium
    ``VectorEnv`` with resets in SAME_STEP. ``env_kwargs``: what the id's environment is made with.
    ``obs_noise``: standard deviations (one, or one per number) of Gaussian noise on what is observed.
    Raises ControlError, with the remedy, for what is not supported.
    """
    if num < 1:
        raise ControlError(f"{num} environments were asked for: ask for at least 1.")
    return _made(id_or_env, num, dict(env_kwargs or {}))


def _made(source: Any, num: int, kwargs: dict[str, Any]) -> Environments:
    if isinstance(source, str) and source in TASKS and "render_mode" not in kwargs:
        task, spec = TASKS[source]
        limit = kwargs.pop("max_episode_steps", spec.max_steps)
        return task(replace(spec, max_steps=limit), num, kwargs)
    envs = _gymnasium_envs(source, num, kwargs)
    return GymSlots(envs, _spec_of(envs[0]), ObsFlattener(envs[0].observation_space))


def _gymnasium_envs(source: Any, num: int, kwargs: dict[str, Any]) -> list[Any]:
    gymnasium = _gymnasium()
    if isinstance(source, str):
        try:
            return [gymnasium.make(source, disable_env_checker=True, **kwargs) for _ in range(num)]
        except (gymnasium.error.Error, TypeError, ModuleNotFoundError) as error:
            raise ControlError(f"Gymnasium cannot make {source!r}: {error}") from error
    if kwargs:
        raise ControlError(
            "env_kwargs go with an id only: set them in the function that makes the environment."
        )
    if isinstance(source, gymnasium.Env):
        if num > 1:
            raise ControlError(
                f"One environment was given for {num} slots: give a function that makes a new one each time."
            )
        return [source]
    if callable(source):
        return [source() for _ in range(num)]
    if (
        isinstance(source, Sequence)
        and len(source) == num
        and all(isinstance(e, gymnasium.Env) for e in source)
    ):
        return list(source)
    raise ControlError(
        f"{source!r} does not make {num} environments: give an id, a function that makes a Gymnasium environment, "
        f"a list of {num} of them, or a VectorEnv."
    )


def _spec_of(env: Any) -> EnvSpec:
    spec = env.spec
    return EnvSpec(
        id=spec.id if spec else type(env.unwrapped).__name__,
        layout=ObsFlattener(env.observation_space).layout,
        actions=action_spec(env.action_space),
        threshold=spec.reward_threshold if spec else None,
        max_steps=spec.max_episode_steps if spec else None,
    )


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise MissingExtraError("control", "running Gymnasium environments") from error
    return gymnasium
