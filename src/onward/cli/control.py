"""``onward control …``: train, test, export and compare control policies."""

from __future__ import annotations

import typer

from onward.cli import app

control = typer.Typer(
    no_args_is_help=True,
    help="Control policies for Gymnasium environments: train, evaluate, resume, export, compare.",
)
app.add_typer(control, name="control")
