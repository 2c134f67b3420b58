"""Checks of an installed plugin: its files, the hooks of this Agent Zero, the gateway and the bus."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from onward import __version__
from onward.bus import Bus
from onward.errors import OnwardError, hide_login
from onward.files import read_json
from onward.integrations.agent_zero import install
from onward.integrations.agent_zero.worker import hangs
from onward.integrations.agent_zero.worker.failed import FailedTasks
from onward.integrations.agent_zero.worker.secrets import TOKEN, URL, Secrets

if TYPE_CHECKING:
    import httpx

GATEWAY = "http://127.0.0.1:3000"
NATS = "nats://127.0.0.1:4222"
SECONDS = 5.0
OUTBOX_MB = 1024
"""Default of the plugin's setting ``outbox_mb``."""
LONGEST_SHOWN = 60
"""Characters that are shown of another server's answer."""
_IMPLICIT = "_functions"
_SEARCHED = (
    "*.py",
    "api/*.py",
    "helpers/*.py",
    "extensions/python/**/*.py",
    "webui/js/*.js",
    "webui/**/*.html",
)
"""Files of Agent Zero that name its extension points."""


@dataclass(frozen=True)
class Check:
    """One thing that was checked."""

    name: str
    passed: bool
    message: str


async def check(root: Path, *, gateway: str | None = None, nats: str | None = None) -> list[Check]:
    """Returns all checks of the plugin in ``root``. Addresses that are None are those of the plugin's
    settings, of the environment, or the default ones. Raises ConfigError for a folder that is no Agent
    Zero."""
    install.require_agent_zero(root)
    found = [_files(root)]
    if install.installed_version(root) is not None:
        found += [_version(root), *_settings(root), _worker(root), _set_aside(root)]
    found += _hooks(root)
    given = settings_of(root)
    gateway_url = gateway or str(given.get("gateway_url") or os.environ.get("TENSORZERO_BASE_URL", GATEWAY))
    secrets = Secrets(root)
    secrets.values()  # reads the files
    known = given.get("nats_url") or secrets.named_value(URL) or os.environ.get("NATS_URL", NATS)
    nats_url = nats or str(known)
    return [*found, await check_gateway(gateway_url), await _bus(root, nats_url, secrets.named_value(TOKEN))]


def settings_of(root: Path) -> dict[str, Any]:
    """Returns the plugin's settings of global scope; empty if a user saved none."""
    found = read_json(root / install.PLUGIN / "config.json")
    return found if isinstance(found, dict) else {}


def points(plugin: Path = install.SOURCE) -> Iterator[tuple[str, str]]:
    """Yields (point, text that Agent Zero's source must have for it) of the plugin's hooks.

    A point below ``_functions`` is a function: its module and name are in the path. Any other point is called
    by its name.
    """
    seen = set()
    for file in sorted((plugin / "extensions").rglob("*.py")) + sorted((plugin / "extensions").rglob("*.js")):
        parts = file.parent.relative_to(plugin / "extensions").parts[1:]
        if not parts or parts in seen or "__pycache__" in parts:
            continue
        seen.add(parts)
        if parts[0] == _IMPLICIT:
            yield "/".join(parts), f"def {parts[-2]}("
        else:
            yield parts[0], parts[0]


def _files(root: Path) -> Check:
    if install.installed_version(root) is None:
        return Check("files", False, "The plugin is not installed: run onward agent-zero install.")
    if install.is_unfinished(root):
        return Check("files", False, "The last installation was ended before it was done: install it again.")
    changed = install.changes(root)
    missing = [step.path for step in changed if step.note == "is missing"]
    if missing:
        return Check("files", False, f"{len(missing)} missing, such as {missing[0]}: install it again.")
    note = f"; {len(changed)} changed by you: {', '.join(step.path for step in changed)}" if changed else ""
    return Check("files", True, f"All files are in place{note}.")


def _version(root: Path) -> Check:
    found = install.installed_version(root)
    if found == __version__:
        return Check("version", True, f"Plugin and command are of version {found}.")
    return Check(
        "version", False, f"The plugin is of version {found}, this is {__version__}: install it again."
    )


def _settings(root: Path) -> Iterator[Check]:
    """Yields a failure if the settings, which agents can read, have a login."""
    try:
        has_login = urlsplit(str(settings_of(root).get("nats_url") or "")).username is not None
    except ValueError:
        return  # the check of the bus says it
    if has_login:
        yield Check(
            "settings",
            False,
            f"The setting nats_url has a login, and agents can read the settings: empty it, and make the "
            f"address the secret {URL} of Agent Zero.",
        )


def _worker(root: Path) -> Check:
    found = read_json(root / install.WORKER)
    python = found.get("python") if isinstance(found, dict) else None
    if isinstance(python, str) and os.access(python, os.X_OK):
        return Check("worker", True, f"The worker runs with {python}. {hangs.sentence(_data(root))}".rstrip())
    return Check(
        "worker",
        False,
        f"There is no interpreter {python} for the worker: run onward agent-zero install again here, or with "
        f"--python.",
    )


def _set_aside(root: Path) -> Check:
    """Looks for tasks that the worker could not record."""
    try:
        found = FailedTasks(_data(root)).all()
    except OnwardError as error:
        return Check("failed tasks", False, str(error))
    if not found:
        return Check("failed tasks", True, "No task was put aside.")
    first = found[0]
    return Check(
        "failed tasks",
        False,
        f"{len(found)} put aside, encrypted, in {_data(root) / 'failed.held'}. The oldest one "
        f"({first.held_id}, {first.since}): {first.error}. Try again with "
        f"onward agent-zero retry --path {root}.",
    )


def _hooks(root: Path) -> Iterator[Check]:
    source = "".join(
        path.read_text(errors="replace") for pattern in _SEARCHED for path in sorted(root.glob(pattern))
    )
    wanted = list(points())
    missing = [point for point, text in wanted if text not in source]
    if missing:
        yield Check(
            "hooks", False, f"This Agent Zero has no {', '.join(missing)}: nothing is recorded there."
        )
    else:
        yield Check("hooks", True, f"All {len(wanted)} hooks are there.")


async def check_gateway(url: str) -> Check:
    """Asks who answers at the gateway's address: many programs have a ``/health``."""
    import httpx

    try:
        async with httpx.AsyncClient(timeout=SECONDS) as client:
            answer = await client.get(url.rstrip("/") + "/health")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        why = type(error).__name__
        return Check(
            "gateway",
            False,
            f"No gateway answers at {hide_login(url)} ({why}): run onward up. Tasks are recorded without "
            f"it; an agent whose model provider is the gateway gets no answers.",
        )
    what = _other_than_gateway(answer)
    if what is None:
        return Check("gateway", True, f"Onward's gateway at {hide_login(url)} answers.")
    return Check(
        "gateway",
        False,
        f"{hide_login(url)} is not Onward's gateway: {what}. Give the address that 'onward up' prints as the "
        f"gateway's.",
    )


def _other_than_gateway(answer: httpx.Response) -> str | None:
    """Returns what answered on the way of the gateway's ``/health``; None for the gateway itself."""
    try:
        told = answer.json()
    except ValueError:
        told = None
    service = told.get("service") if isinstance(told, dict) else None
    if answer.status_code == 200 and service == "gateway":
        return None
    if answer.status_code == 200 and isinstance(service, str):
        return f"the service {_shown(service)} answers there"
    body = _shown(answer.text) if answer.text.strip() else "nothing"
    return f"/health is answered by {answer.status_code} and {body}"


def _shown(text: str) -> str:
    """Returns the begin of a foreign text on one line, in quotes."""
    words = "".join(one if one.isprintable() else " " for one in text[: LONGEST_SHOWN + 1]).split()
    line = " ".join(words)
    return repr(line if len(line) <= LONGEST_SHOWN else f"{line[:LONGEST_SHOWN]}…")


def _data(root: Path) -> Path:
    return root / install.PLUGIN / "data"


def _waiting(root: Path) -> str:
    """Says where work waits while the bus is away, and for how long."""
    given = settings_of(root).get("outbox_mb") or OUTBOX_MB
    return (
        f"Finished tasks and votes wait in {_data(root)} (outbox.db, up to {given} MiB, and feedback.db) for "
        f"as long as it is away, and are sent when it is back."
    )


async def _bus(root: Path, url: str, token: str | None) -> Check:
    shown = hide_login(url)
    try:
        login = None if urlsplit(url).password else token
    except ValueError:  # its text may have the password
        why = f"The address {shown} cannot be read: write a sign in its password as %XX, such as %5B for [."
        return Check("bus", False, f"{why} {_waiting(root)}")
    try:
        bus = await Bus.connect(url, token=login, connect_timeout=SECONDS)
    except (OnwardError, ValueError) as error:
        why = str(error)
        if "refused the login" in why:
            why = (
                f"NATS at {shown} refused the login: make the content of run/agent.url of the data folder "
                f"the secret ONWARD_NATS_URL of Agent Zero, or give it to --nats."
            )
        return Check("bus", False, f"{why} {_waiting(root)}")
    await bus.close()
    return Check("bus", True, f"The NATS server at {shown} answers.")
