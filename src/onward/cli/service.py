"""The commands ``onward up`` and ``onward run ROLE``."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from onward import host
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.output import Table, facts, print_text, say
from onward.config import Settings
from onward.errors import ConfigError, program
from onward.telemetry import logs

Device = Annotated[
    str | None,
    typer.Option(help="cpu, cuda, cuda:N, or auto: a GPU where there is one. Default: model.device."),
]
DtypeName = Annotated[
    str | None,
    typer.Option(help="float32, bfloat16, float16, or auto: the fast one. Default: model.dtype."),
]


@app.command()
def up(
    file: ConfigFile = None,
    data_dir: DataDir = None,
    device: Device = None,
    dtype: DtypeName = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Start the service: the whole loop in one process, with NATS and ClickHouse built in.

    Agents talk to the gateway (port 3000) as to any OpenAI endpoint, and it records their work. A server of
    your own that the settings name (nats.url, warehouse.url) is used instead. Ctrl-C stops cleanly; a restart
    continues where it stopped. Logs are lines on a terminal, and JSON in a pipe or a file.

    onward up
    onward up --config onward.toml --dir data --log-level warning
    """
    logs.setup(log_level)
    settings = load_settings(file, data_dir, device=device, dtype=dtype)
    say(f"Starting on {settings.data_dir}: messages, warehouse, model {settings.model.base} …")
    run_async(host.up(settings, announce=typer.echo, introduce=lambda loop: print_text(*introduction(loop))))


@app.command(name="run")
def run_role(
    role: Annotated[
        str,
        typer.Argument(help="collector, archiver, rewarder, coordinator, trainer, releaser, gateway, api."),
    ],
    file: ConfigFile = None,
    data_dir: DataDir = None,
    device: Device = None,
    dtype: DtypeName = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Start one role of the service in a process of its own, beside the others.

    NATS and ClickHouse must be configured, or 'onward up' must run on the same data folder.

    onward run trainer --dir data
    """
    if role not in host.ROLES:
        raise ConfigError(f"Unknown role {role!r}: expected one of {', '.join(host.ROLES)}.")
    logs.setup(log_level)
    settings = load_settings(file, data_dir, device=device, dtype=dtype)

    def introduce(loop: host.Loop) -> None:
        for name, address in loop.ctx.endpoints.items():
            say(f"{name.removesuffix('_url')}: {address}")
        say(f"The {role} is up. Ctrl-C stops it.")

    run_async(host.up(settings, roles=(role,), join=True, announce=typer.echo, introduce=introduce))


def introduction(loop: host.Loop) -> tuple[str, Table, str]:
    """Returns the text shown after the start: addresses, the location of the key, a command to try."""
    at, settings = loop.endpoints, loop.ctx.settings
    where = (
        "" if settings.data_dir == Settings().data_dir else f" --dir {shlex.quote(str(settings.data_dir))}"
    )
    failed = "failed and is started again: see 'onward status'"
    gateway, api = at.get("gateway_url"), at.get("api_url")
    shown = {
        "gateway": f"{gateway}/v1 (the base URL of any OpenAI client)" if gateway else failed,
        "api": f"{api} (open it in a browser: what is where)" if api else failed,
        "NATS": at["nats_url"],
        "key": f"in {settings.run_dir / 'api.key'}",
        "data": str(settings.data_dir),
        "next": f"{program()} status{where}",
    }
    return "Onward is up. Ctrl-C stops it.", facts(shown), ""
