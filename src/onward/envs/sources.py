"""Opens an environment: in this process by its name, or on a server by its address."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

from onward.envs import registry
from onward.envs.environment import LocalSource
from onward.envs.rollouts import Source
from onward.envs.tasks import TaskRef


class TaskSource(Source, Protocol):
    """A source of episodes that can also list its tasks."""

    def panel(self, split: str | None = None, seed: int = 0, n: int | None = None) -> list[TaskRef]:
        """Returns the first ``n`` tasks of a split, by default all held-out ones."""
        ...


@contextlib.asynccontextmanager
async def open_source(
    place: str, *, dialect: str | None = None, key: str | None = None
) -> AsyncIterator[TaskSource]:
    """Opens ``place``: a built-in name, ``package.module:object``, or ``http://HOST:PORT`` of a server.
    ``dialect`` and ``key`` are for a server. Raises NotFoundError, ConfigError, EnvironmentFailure."""
    if "://" not in place:
        yield LocalSource(registry.find(place))
        return
    from onward.envs.client import EnvClient  # its library for HTTP takes a third of a second

    async with EnvClient(place, dialect=dialect, key=key) as client:
        yield client
