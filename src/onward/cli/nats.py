"""``onward nats config``: the logins of a NATS server of one's own, with their rights."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from onward.bus.logins import AGENT, SERVICE, Logins, inbox_prefix, user_lines
from onward.bus.server import MAX_PAYLOAD, find_binary
from onward.cli import app
from onward.cli.help import Commands
from onward.cli.output import say
from onward.errors import BusError
from onward.files import check_file, write_whole

nats_app = Commands(
    help="""A NATS server of your own: its logins and their rights.

    onward nats config --out nats-users.conf
    """
)
app.add_typer(nats_app, name="nats")


@nats_app.callback()
def _group() -> None:
    """Keeps ``config`` a command of its own: a group of one command would be that command."""


@nats_app.command()
def config(
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write to this file, readable by its owner alone. Default: print."),
    ] = None,
) -> None:
    """Print the users of a server's configuration: one for the service, one for each role that runs
    alone, one for agents. Each call makes new passwords.

    onward nats config --out nats-users.conf
    """
    text = configuration(Logins.new())
    _check(text)
    if out is None:
        say(text.removesuffix("\n"))
        return
    check_file(out)
    write_whole(out, text.encode(), 0o600)
    say(f"Written to {out}: add the line 'include {out.name}' to the server's configuration beside it.")


def configuration(logins: Logins) -> str:
    """Returns the text for a configuration file of nats-server."""
    head = [
        "# Users of Onward, made by 'onward nats config'. Keep this file secret.",
        f"# The service: nats.user = {SERVICE} and its password. A role alone: the user of its name.",
        f"# Agents: nats://{AGENT}:PASSWORD@HOST:PORT, with the inbox prefix {inbox_prefix(AGENT)}.",
        f"max_payload: {MAX_PAYLOAD}",
    ]
    return "\n".join([*head, *user_lines(logins, service=True)]) + "\n"


def _check(text: str) -> None:
    """Lets nats-server check the configuration. Raises BusError, NotFoundError."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "nats-users.conf"
        write_whole(file, text.encode(), 0o600)
        done = subprocess.run(
            [find_binary(), "-t", "-c", str(file)], capture_output=True, text=True, timeout=30, check=False
        )
    if done.returncode != 0:
        raise BusError("nats-server does not accept the configuration that was made: report this.")
