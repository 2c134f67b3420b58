"""``onward up`` and ``onward run ROLE``."""

from __future__ import annotations

from typing import Annotated

import typer

from onward import host
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.errors import ConfigError
from onward.telemetry import logs


@app.command()
def up(
    file: ConfigFile = None,
    data_dir: DataDir = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run the whole loop in one process; what is not configured is embedded.

    Agents talk to the gateway (port 3000) as to any OpenAI endpoint and publish trajectories with
    the recorder. Ctrl-C stops cleanly; a restart goes on where it stopped.

    onward up
    onward up --config onward.toml --dir data --log-level warning
    """
    logs.setup(log_level)
    settings = load_settings(file, data_dir)
    run_async(host.up(settings, announce=typer.echo))


@app.command(name="run")
def run_role(
    role: Annotated[
        str,
        typer.Argument(help="collector, archiver, rewarder, coordinator, trainer, releaser, gateway, api."),
    ],
    file: ConfigFile = None,
    data_dir: DataDir = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run one role beside others, so that it scales out.

    NATS and ClickHouse must be configured, or 'onward up' must run on the same data folder.

    onward run trainer --dir data
    """
    if role not in host.ROLES:
        raise ConfigError(f"Unknown role {role!r}: expected one of {', '.join(host.ROLES)}.")
    logs.setup(log_level)
    settings = load_settings(file, data_dir)
    run_async(host.up(settings, roles=(role,), join=True, announce=typer.echo))
