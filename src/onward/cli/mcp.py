"""``onward mcp``: the tools of a running service as a server of the Model Context Protocol."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from onward import extras
from onward.attach import is_running
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.output import say
from onward.config import Settings
from onward.errors import nothing_runs
from onward.tools import Toolbox
from onward.tools.tool import parse_scopes
from onward.tools.toolbox import DOWNLOADS

PORT = 8300
ScopeList = Annotated[
    str,
    typer.Option("--scope", help="Scopes of the tools, with commas between: read, train, release."),
]


@app.command()
def mcp(
    http: Annotated[
        bool, typer.Option("--http", help="Streamable HTTP instead of standard input and output.")
    ] = False,
    scope: ScopeList = "read",
    host: Annotated[str, typer.Option(help="With --http: address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="With --http: port; 0 takes a free one.", min=0, max=65535)
    ] = PORT,
    downloads: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="Folder of download_checkpoint; nothing is written outside of it."
        ),
    ] = DOWNLOADS,
    file: ConfigFile = None,
    data_dir: DataDir = None,
) -> None:
    """Serve the tools to an agent: Claude, Cursor, VS Code, Agent Zero, any client of the protocol.

    'read' looks and changes nothing. 'train' starts and cancels jobs. 'release' asks for releases, which wait
    for 'onward releases approve', and takes models back. Tools without their scope are not listed. Over HTTP
    a client sends an API key ('Authorization: Bearer KEY', the one in run/api.key); its scopes count too.

    onward mcp --dir data
    onward mcp --scope read,train --dir data
    onward mcp --http --port 8300 --scope read,train
    """
    extras.require("mcp", "mcp", "The MCP server")
    scopes = parse_scopes(scope)
    settings = load_settings(file, data_dir)
    box = Toolbox(settings, scopes=scopes, downloads=downloads, config_file=file)
    if not is_running(settings) and settings.external.agentgym_rl_url is None:
        say(nothing_runs(settings.data_dir), err=True)  # the tools work as soon as it runs
    if not http:
        if sys.stdin.isatty():
            say("This is a server for a program, on standard input and output. Ctrl-D ends it.", err=True)
        run_async(_stdio(box))
        return
    extras.require("server", "fastapi", "The MCP server over HTTP")
    run_async(_http(box, settings, host, port))


async def _stdio(box: Toolbox) -> None:
    from onward.tools.mcp_server import serve_stdio

    async with box:
        await serve_stdio(box)


async def _http(box: Toolbox, settings: Settings, host: str, port: int) -> None:
    from onward.tools.mcp_http import serving_http

    async with box, serving_http(box, host, port) as address:
        say(f"MCP: {address}")
        say(f"key: in {settings.run_dir / 'api.key'}")
        say("Ctrl-C stops it.")
        await asyncio.Event().wait()
