"""Connects to the loop that runs on a data folder, or to the NATS server of the settings.

Light: a command, a tool or an agent's process that only talks to a running service loads this and no server.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from onward.bus import Bus
from onward.bus.logins import TOKEN_FILE, Login, Logins
from onward.clock import SystemClock
from onward.config import Settings
from onward.errors import BusError, ConfigError, hide_login, nothing_runs
from onward.files import locked

ENDPOINTS = "endpoints.json"


def is_running(settings: Settings) -> bool:
    """Returns whether there is a loop to attach to: one on this data folder, or a configured NATS."""
    return settings.nats.url is not None or (settings.run_dir / ENDPOINTS).exists()


@asynccontextmanager
async def attached(
    settings: Settings, roles: Sequence[str] = ()
) -> AsyncIterator[tuple[Bus, dict[str, Any]]]:
    """Opens a bus connection to the loop that runs on this data folder.

    ``roles``: those of this process, none for the command line. A role alone logs in with its own rights.
    """
    if not is_running(settings):
        with ExitStack() as stack:
            if (settings.run_dir / "lock").exists() and not try_lock(settings, stack):
                raise ConfigError(
                    f"Onward is starting or stopping on {settings.data_dir}: try again when 'onward up' says "
                    "that it is up."
                )
        raise ConfigError(nothing_runs(settings.data_dir))
    url = settings.nats.url  # with its login, which the file of endpoints leaves out
    endpoints = endpoints_of(settings)
    login = configured_login(settings)
    if url is None and (settings.run_dir / TOKEN_FILE).exists():
        login = _local_login(settings, roles)
    try:
        bus = await Bus.connect(url or endpoints["nats_url"], **login, clock=SystemClock(), name="onward-cli")
    except BusError:
        if url is None and _was_killed(settings):
            raise ConfigError(nothing_runs(settings.data_dir)) from None
        raise
    try:
        yield bus, endpoints
    finally:
        await bus.close()


def _was_killed(settings: Settings) -> bool:
    """Returns whether the loop that wrote the addresses ended without removing them: its lock is free."""
    with ExitStack() as stack:
        return try_lock(settings, stack)


def endpoints_of(settings: Settings) -> dict[str, Any]:
    """Reads the addresses of the loop. Raises ConfigError if their file is damaged."""
    path = settings.run_dir / ENDPOINTS
    if not path.exists():
        return {"nats_url": hide_login(settings.nats.url or "")}
    try:
        endpoints = json.loads(path.read_bytes())
    except (OSError, ValueError):
        endpoints = None
    if not isinstance(endpoints, dict) or not isinstance(endpoints.get("nats_url"), str):
        raise ConfigError(
            f"{path} is damaged, so that the running service cannot be found: stop it and start 'onward up' "
            "again, which writes the file."
        )
    return endpoints


def configured_login(settings: Settings) -> Login:
    """Returns the login for ``nats.url``, as ``Bus.connect`` takes it."""
    nats, login = settings.nats, Login()
    if nats.token is not None:
        login["token"] = nats.token.get_secret_value()
    if nats.user is not None:
        login["user"] = nats.user
    if nats.password is not None:
        login["password"] = nats.password.get_secret_value()
    return login


def _local_login(settings: Settings, roles: Sequence[str]) -> Login:
    """Returns the login for the embedded server: that of the role which runs alone, else the service's."""
    logins = Logins.of_folder(settings.run_dir)
    if len(roles) == 1:
        return {"user": roles[0], "password": logins.passwords[roles[0]]}
    return {"token": logins.token}


def try_lock(settings: Settings, stack: AsyncExitStack | ExitStack) -> bool:
    """Locks the data folder until ``stack`` ends; returns False if a running Onward has it."""
    try:
        stack.enter_context(lock_folder(settings.run_dir))
    except ConfigError:
        return False
    return True


def lock_folder(run_dir: Path) -> AbstractContextManager[None]:
    """Locks the data folder: one loop per folder."""
    return locked(
        run_dir / "lock", f"{run_dir.parent} is in use by another Onward: stop it, or choose another --dir."
    )
