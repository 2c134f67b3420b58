"""The place of a gateway process: its identity and its files, which no other living process has.

Several gateways may run on one data folder. Each holds the lock of one place: ``gateway``, ``gateway-2`` and
so on. The kernel frees a lock however its holder ends. So what lies in a place that can be locked was left by
a dead gateway, and whoever holds its lock may take it over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from onward.config import Settings
from onward.errors import ConfigError
from onward.files import locked
from onward.ids import local_id
from onward.serving.engines import wire
from onward.serving.engines.local import LocalEngine

MOST_PLACES = 32
"""Gateways that one data folder may have at a time."""


class Place:
    """One place, locked by this process until ``release``."""

    def __init__(self, settings: Settings, number: int, lock: ExitStack) -> None:
        self._settings, self._lock = settings, lock
        self.number = number
        self.name = _name(number)
        """Prefix of the place's files."""

    @classmethod
    def take(cls, settings: Settings) -> Place:
        """Locks the first free place. Raises ConfigError if there is none, or if no lock can be made."""
        for number in range(1, MOST_PLACES + 1):
            place = _try(settings, number, last=number == MOST_PLACES)
            if place is not None:
                return place
        raise AssertionError("unreachable")

    @property
    def gateway_id(self) -> str:
        """Id of the gateway in this place: the same after a restart, another one in every other place, data
        folder or machine, even if the folder is a copy."""
        return "gw-" + local_id(self._settings.run_dir / "gateway.id", self.name)[:8]

    @property
    def engine(self) -> str:
        """Name of the engine's socket and log."""
        return _engine(self.name)

    @property
    def routes(self) -> Path:
        """File with the routes that this gateway served last."""
        return self._settings.run_dir / f"{self.name}-routes.json"

    @property
    def outbox_folder(self) -> Path:
        return self._settings.data_dir / "outbox"

    def left_by_others(self) -> Iterator[Place]:
        """Yields every other place that has files and no living gateway, locked while it is used."""
        for number in range(1, MOST_PLACES + 1):
            if number == self.number or not (self.outbox_folder / f"{_name(number)}.db").exists():
                continue
            place = _try(self._settings, number)
            if place is not None:
                try:
                    yield place
                finally:
                    place.release()

    def release(self) -> None:
        """Frees the place for another process."""
        self._lock.close()


def any_engine(run_dir: Path) -> LocalEngine:
    """Returns a client of an engine of this data folder: the first gateway's, or that of another one while it
    is away. All of them have the same base model."""
    names = [_engine(_name(number)) for number in range(2, MOST_PLACES + 1)]
    return LocalEngine(
        wire.socket_path(run_dir, _engine(_name(1))), partial(wire.existing_sockets, run_dir, names)
    )


def _engine(name: str) -> str:
    return name.replace("gateway", "engine", 1)


def _name(number: int) -> str:
    return "gateway" if number == 1 else f"gateway-{number}"


def _try(settings: Settings, number: int, *, last: bool = False) -> Place | None:
    """Locks a place; returns None if another process has it, but raises ConfigError for the ``last`` one."""
    lock = ExitStack()
    busy = f"{MOST_PLACES} gateways run on {settings.data_dir} already: give this one a folder of its own."
    try:
        lock.enter_context(locked(settings.run_dir / f"{_name(number)}.lock", busy))
    except ConfigError:
        if last:
            raise
        return None
    return Place(settings, number, lock)
