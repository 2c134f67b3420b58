"""The environments that ship with Onward, and any other one by ``module:name``.

Environments are loaded on demand, so that listing names costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onward import own_code
from onward.envs.environment import Environment
from onward.errors import ConfigError, NotFoundError

BUILT_IN: dict[str, str] = {
    "maze": "onward.envs.maze:MAZE",
    "wordle": "onward.envs.wordle:WORDLE",
    "crafting": "onward.envs.crafting:CRAFTING",
    "desk": "onward.envs.desk.environment:DESK",
}
"""Name → location of the environment."""


def find(name: str) -> Environment:
    """Returns a built-in environment by its name, or ``package.module:object``: an Environment or its class.
    Raises NotFoundError for an unknown name, ConfigError for an object that is no environment."""
    place = BUILT_IN.get(name, name)
    found = load(place, "environment", BUILT_IN)
    if isinstance(found, type) and issubclass(found, Environment):
        found = found()
    if not isinstance(found, Environment):
        raise ConfigError(
            f"{place!r} is a {type(found).__name__}, not an environment: "
            f"derive a class from onward.envs.environment.Environment."
        )
    return found


def load(place: str, what: str, known: Iterable[str]) -> Any:
    """Returns the object at ``package.module:object``. Raises NotFoundError, with ``what`` it should be and
    the ``known`` names."""
    module, _, attribute = place.partition(":")
    if not module or not attribute:
        raise NotFoundError(
            f"There is no {what} {place[:60]!r}: choose one of {', '.join(known)}, "
            f"or give your own as package.module:object."
        )
    try:
        return own_code.load(place)
    except ConfigError as error:
        raise NotFoundError(f"The {what} {place!r} cannot be loaded. {error}") from error
