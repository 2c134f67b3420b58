"""The command ``onward demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onward.cli import app, run_async
from onward.cli.choosing import expanded
from onward.cli.output import console, plain
from onward.telemetry import logs

COSTS = {
    "tiny": "about 1 M parameters, trained from nothing: 3 cycles take about 3 minutes on two cores",
    "smollm2": "SmolLM2-135M: 2 cycles take about 13 minutes on two cores and 6 GB of memory",
}


@app.command()
def demo(
    model: Annotated[str, typer.Option(help="tiny, smollm2, an alias, or a folder with a model.")] = "tiny",
    cycles: Annotated[
        int | None, typer.Option(min=1, help="Turns of the loop: 3 with tiny, else 2, unless you say.")
    ] = None,
    sabotage: Annotated[
        bool, typer.Option("--sabotage", help="Plant a bad model and see it taken back.")
    ] = False,
    folder: Annotated[Path, typer.Option("--dir", help="Where data and pictures go.")] = Path("demo-output"),
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of tasks, model and sampling.")] = 0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning, error or critical.")] = "critical",
) -> None:
    """Watch an agent get better: the whole loop on this machine, with real parts and no service needed.

    Agents work on small office tasks. Their trajectories are redacted, scored and stored. A policy is
    trained from them, validated, released to a growing share of traffic, and rolled back if it is worse.

    onward demo
    onward demo --sabotage --json figures.json
    """
    from rich.text import Text

    from onward.demo.run import Options, demonstrate
    from onward.serving import base_models

    logs.setup(log_level)
    out = console()
    model = expanded(model)
    if model != base_models.TINY:  # an unusable one is reported before anything is printed
        base_models.require(model, folder, purpose="serving", device="auto", dtype="auto")
    out.print(Text(f"Model: {plain(model)} ({COSTS.get(model, 'your own folder')})."))
    if model == "tiny":
        out.print(Text(f"With --model smollm2: {COSTS['smollm2']}."))
    turns = cycles or (3 if model == "tiny" else 2)
    try:
        run_async(demonstrate(Options(model, turns, sabotage, folder, json_file, seed), out))
    except KeyboardInterrupt:
        out.print(Text(f"Stopped. What was stored so far is in {plain(str(folder))}."))
        raise typer.Exit(130) from None
