"""``onward models pull|list``."""

from __future__ import annotations

from typing import Annotated

import typer

from onward.cli import app
from onward.cli.help import Commands
from onward.serving import base_models

models_app = Commands(
    help="""Base models on this machine.

    onward models list
    onward models pull smollm2
    """
)
app.add_typer(models_app, name="models")


@models_app.command()
def pull(
    name: Annotated[str, typer.Argument(help="Only smollm2; a folder of your own needs none.")],
) -> None:
    """Fetch a base model by pinned version and checksum; a second call does nothing.

    onward models pull smollm2
    """
    folder = base_models.pull(name, progress=typer.echo)
    typer.echo(f"{name} is at {folder}")


@models_app.command(name="list")
def list_models() -> None:
    """Show the base models that Onward knows and whether they are here.

    onward models list
    """
    for line in base_models.describe():
        typer.echo(line)
