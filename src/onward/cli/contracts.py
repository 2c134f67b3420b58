"""The command ``onward contracts export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onward.cli import app
from onward.cli.help import Commands
from onward.cli.output import say

contracts_app = Commands(
    help="""The messages that cross the bus, as JSON Schema.

    onward contracts export schemas
    """
)
app.add_typer(contracts_app, name="contracts")


@contracts_app.callback()
def _group() -> None:
    """Keeps ``export`` a subcommand."""


@contracts_app.command()
def export(folder: Annotated[Path, typer.Argument(help="Where to write; created when absent.")]) -> None:
    """Export topics.json and every schema, in the file tree that existing publishers use.

    onward contracts export schemas
    """
    from onward.contracts.generate import export as write

    for path in write(folder):
        say(str(path))
