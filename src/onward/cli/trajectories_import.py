"""``onward trajectories import``: work that another program has stored in files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from onward.cli import ConfigFile, DataDir, load_settings
from onward.cli.output import AsJson, print_json, say
from onward.cli.trajectories import trajectories_app
from onward.cli.trajectory_options import plural
from onward.errors import ConfigError

OUTBOX = "import.db"
DELIVER_SECONDS = 60.0


@trajectories_app.command("import")
def import_(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Chat files, or folders of them.")],
    format: Annotated[str, typer.Option(help="agent-zero: chat.json of any version.")] = "agent-zero",
    nats: Annotated[
        str | None, typer.Option(help="NATS server with a login. Default: that of the data folder.")
    ] = None,
    agent_id: Annotated[str, typer.Option(help="First part of the main agent's id.")] = "agent-zero",
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Import the chats of Agent Zero: redacted first, then delivered like recorded work.

    Tasks that were recorded or imported before are left out. Without a running service they wait in the
    outbox of the data folder until the next import.

    onward trajectories import /a0
    onward trajectories import chat.json
    """
    if format != "agent-zero":
        raise ConfigError(f"The format {format!r} is not known: agent-zero is read.")
    from onward.bus.logins import AGENT_FILE
    from onward.capture.recorder import Recorder
    from onward.integrations.agent_zero.importing import import_chats

    settings = load_settings(file, data_dir)
    login = settings.run_dir / AGENT_FILE
    url = nats or (login.read_text().strip() if login.is_file() else None)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    with Recorder(settings.data_dir / OUTBOX, nats_url=url) as recorder:
        report = import_chats(paths, recorder, agent_id=agent_id)
        delivered = url is not None and recorder.flush(DELIVER_SECONDS)
        waiting = recorder.pending()
    if as_json:
        print_json({**asdict(report), "waiting": waiting, "delivered": delivered})
    else:
        for sentence in report.unreadable:
            say(sentence, err=True)
        say(
            f"{plural(report.imported, 'task')} of {plural(report.files, 'file')} imported; {report.known} "
            f"known already, {report.held} held, {report.opted_out} opted out; {waiting} wait for NATS."
        )
    if report.unreadable:
        raise typer.Exit(1)
